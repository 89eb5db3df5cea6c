"""Meanings of columns: which column of a table is the user, the item, the time, the title.

    user_id, asin, unixReviewTime   ->   user: user_id, item: asin, time: unixReviewTime

A column is known by one of its usual names, whatever its case and underscores, or named by `--columns`. Nothing is
guessed: two columns that could both be meant are an error.
"""

import re
from collections.abc import Mapping, Sequence

from speedyfeed.data.readers.headed import HeadedTable
from speedyfeed.data.tables import FIELDS
from speedyfeed.errors import InputError

USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "user": ("user_id", "user", "uid", "reviewer_id", "visitor_id", "visitor", "customer_id", "reader_id"),
    "item": ("item_id", "item", "article_id", "news_id", "asin", "product_id", "document_id", "doc_id", "id"),
    "time": ("timestamp", "time", "ts", "date", "datetime", "unix_review_time", "event_time", "created_at"),
    "title": ("title", "headline", "name"),
    "abstract": ("abstract", "description", "subtitle", "summary"),
    "body": ("body", "text", "content"),
    "category": ("category", "section", "genre"),
    "subcategory": ("subcategory",),
}
"""Usual names of each meaning; case, spaces, dashes and underscores do not matter."""

INTERACTION_ROLES = ("user", "item", "time")
ITEM_ROLES = ("item", "title", "abstract", "body", "category", "subcategory")


def find_roles(
    items: HeadedTable, interactions: HeadedTable, named: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Find the columns of both tables by meaning; `named` are those of `--columns`."""
    for role, name in named.items():
        tables = [
            table
            for table, roles in ((items, ITEM_ROLES), (interactions, INTERACTION_ROLES))
            if role in roles and name not in table.names
        ]
        if role == "item" and len(tables) == 1:
            continue  # the other table may call it otherwise
        for table in tables:
            raise _error(table, f"no column {name}", f"the column of --columns {role}={name}")
    item_columns = _find(items, ITEM_ROLES, named)
    if "item" not in item_columns:
        raise _missing(items, "item")
    if not set(FIELDS) & set(item_columns):
        names = ", ".join(name for field in FIELDS for name in USUAL_NAMES[field])
        raise _error(items, "no column of text", f"at least one of {names}", "--columns title=COLUMN")
    columns = _find(interactions, INTERACTION_ROLES, named)
    for role in INTERACTION_ROLES:
        if role not in columns:
            raise _missing(interactions, role)
    return item_columns, columns


def _find(table: HeadedTable, roles: Sequence[str], named: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for role in roles:
        if named.get(role) in table.names:
            found[role] = named[role]
            continue
        usual = {_plain(name) for name in USUAL_NAMES[role]}
        if table.names and "user" in roles:
            usual = _without_row_id(table, usual)
        columns = [name for name in table.names if _plain(name) in usual and name not in named.values()]
        if len(columns) > 1:
            raise _error(
                table, f"columns {' and '.join(columns)}", f"one {role} column", f"--columns {role}={columns[0]}"
            )
        if columns:
            found[role] = columns[0]
    return found


def _without_row_id(table: HeadedTable, usual: set[str]) -> set[str]:
    """Names of the item without `id`, which beside an item's own column is the number of the interaction."""
    others = {_plain(name) for name in table.names} & usual - {"id"}
    return usual - {"id"} if others else usual


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


def _missing(table: HeadedTable, role: str) -> InputError:
    return _error(table, f"no {role} column", f"one of {', '.join(USUAL_NAMES[role])}", f"--columns {role}=COLUMN")


def _error(table: HeadedTable, found: str, expected: str, option: str = "--columns") -> InputError:
    names = ", ".join(table.names) or "none"
    return InputError(
        f"{table.path}: found {found} (columns: {names}), expected {expected}; say which is meant with {option}"
    )
