"""Meanings of columns: which column of a table is the user, the item, the time, the title.

    user_id, asin, unixReviewTime   ->   user: user_id, item: asin, time: unixReviewTime

A column is known by one of its usual names, whatever its case and underscores, by a name that only means it where
no usual one is there, or named by `--columns`. Two usual names in one table are an error, but of two names of the
item the one that both tables have is meant.
"""

import re
from collections.abc import Mapping, Sequence

from speedyfeed.data.reader_options import NO_COLUMN
from speedyfeed.data.readers.parted import PartedTable
from speedyfeed.data.tables import FIELDS
from speedyfeed.errors import InputError

USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "user": (
        *("user_id", "user", "uid", "reviewer_id", "visitor_id", "visitor", "customer_id", "reader_id"),
        *("member_id", "person_id", "account_id", "viewer_id", "user_pseudo_id", "full_visitor_id"),
    ),
    "item": (
        *("item_id", "item", "article_id", "news_id", "asin", "product_id", "document_id", "doc_id", "id"),
        *("movie_id", "book_id", "business_id", "content_id", "post_id", "story_id", "video_id", "isbn", "sku"),
        *("parent_asin", "app_id", "game_id", "song_id", "track_id", "anime_id", "recipe_id", "course_id"),
    ),
    "time": (
        *("timestamp", "time", "ts", "date", "datetime", "unix_review_time", "event_time", "created_at"),
        *("event_timestamp", "click_time", "click_timestamp", "t_dat"),
    ),
    "title": ("title", "headline", "name"),
    "abstract": ("abstract", "description", "subtitle", "summary"),
    "body": ("body", "text", "content"),
    "category": ("category", "section", "genre"),
    "subcategory": ("subcategory",),
    "event": (),
    "weight": (),
    "label": (),
    "impression": (),
}
"""Usual names of each meaning; case, and all but letters and digits, do not matter."""

OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "user": (
        "session_id",
        "client_id",
        "device_id",
        "cookie_id",
        "anonymous_id",
        "username",
        "user_name",
        "email",
    ),
    "item": ("click_article_id", "stock_code", "product_code", "page_path", "page_location", "url"),
    "time": (
        *("viewed_at", "clicked_at", "date_added", "date_hour_minute", "event_date", "purchase_date"),
        *("order_date", "invoice_date", "review_time", "review_date", "session_start"),
    ),
    "title": (
        *("prod_name", "product_name", "item_name", "product_title", "article_title", "news_title"),
        *("book_title", "movie_title", "original_title", "page_title", "post_title", "app_name", "track_name"),
    ),
    "abstract": (
        *("detail_desc", "short_description", "product_description", "overview", "lead", "teaser", "excerpt"),
        "snippet",
    ),
    "body": (
        "full_text",
        "body_text",
        "body_html",
        "article_text",
        "article_body",
        "article_content",
        "post_content",
        "features",
        "feature",
    ),
    "category": (
        *("main_category", "main_cat", "categories", "genres", "topic", "product_group_name", "category_name"),
        *("product_category", "department", "category_code", "category_id"),
    ),
    "subcategory": ("product_type_name", "subcategory_name"),
    "event": ("event", "event_type", "event_name", "action", "behavior", "behavior_type", "interaction_type"),
    "weight": ("weight", "rating", "stars", "overall", "score"),
    "label": ("clicked", "is_clicked", "click", "is_click", "label"),
    "impression": ("impression_id", "imp_id", "impr_id", "request_id", "page_view_id", "pageview_id"),
}
"""Names of each meaning where no usual one is there; the first that a table has is meant."""

_TIME_ENDING = re.compile(
    r"(time|date|timestamp|_at|_ts)(_?(utc|unix|epoch|s|sec|ms|us|ns))?$|[a-z]At$", re.IGNORECASE
)
"""Ends of the names of times, with their unit, which the only column with one is where no known name is there."""

INTERACTION_ROLES = ("user", "item", "time", "event", "weight", "label", "impression")
CLICKED = "clicked"
"""Meaning of the item's column in the interactions, where it has another name than in the items."""
OPTIONAL_ROLES = ("time", "label")
"""Meanings that `--columns MEANING=none` says no column has."""
ITEM_ROLES = ("item", "title", "abstract", "body", "category", "subcategory")


def find_roles(
    items: PartedTable, interactions: PartedTable, named: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Find the columns of both tables by meaning; `named` are those of `--columns`.

    The interactions have no time where `--columns time=none` says so, and impressions only beside a label.
    """
    _check_named(items, interactions, named)
    item, item_of_click = _find_items(items, interactions, named)
    item_columns = _find(items, ITEM_ROLES, named) | {"item": item}
    columns = _find(interactions, INTERACTION_ROLES, named) | {"item": item_of_click}
    if "label" not in columns:
        columns.pop("impression", None)
    if "title" not in item_columns and "abstract" in item_columns and "abstract" not in named:
        item_columns["title"] = item_columns.pop("abstract")  # an article is shown by its title
    if not set(FIELDS) & set(item_columns):
        names = ", ".join(name for field in FIELDS for name in USUAL_NAMES[field])
        raise _error(items, "no column of text", f"at least one of {names}", "--columns title=COLUMN")
    for role in ("user", "time"):
        if role not in columns and not (role == "time" and named.get(role) == NO_COLUMN):
            raise _missing(interactions, role)
    return _in_order(item_columns, ITEM_ROLES), _in_order(columns, INTERACTION_ROLES)


def has_user(table: PartedTable, named: Mapping[str, str]) -> bool:
    """Whether a table has a column of users, as only interactions have."""
    usual = {plain(name) for name in USUAL_NAMES["user"]}
    return any(plain(name) in usual or name == named.get("user") for name in table.names)


def has_title(table: PartedTable, named: Mapping[str, str]) -> bool:
    """Whether a table has a column of titles, by its name or as named."""
    return bool(_candidates(table, "title") or _others(table, "title")) or named.get("title") in table.names


def has_weight(table: PartedTable) -> bool:
    """Whether a table has a column of weights or ratings, as reviews have."""
    return bool(_others(table, "weight"))


def may_lack_header(table: PartedTable) -> bool:
    """Whether the first line of a CSV or TSV file has none of the known names of columns, and may be a row."""
    names = {plain(name) for name in table.names}
    by_role = (*USUAL_NAMES.values(), *OTHER_NAMES.values())
    known = {plain(name) for some in by_role for name in some}
    return bool(names) and not names & known and bool({".csv", ".tsv"} & set(table.path.suffixes))


def plain(name: str) -> str:
    """A name without case and without anything but letters and digits."""
    return re.sub(r"[\W_]", "", name).lower()


def _check_named(items: PartedTable, interactions: PartedTable, named: Mapping[str, str]) -> None:
    """Refuse columns of `--columns` that the tables do not have."""
    for role, name in named.items():
        tables = [
            table
            for table, roles in ((items, ITEM_ROLES), (interactions, (*INTERACTION_ROLES, CLICKED)))
            if role in roles and name not in table.names
        ]
        if role == "item" and len(tables) == 1:
            continue  # the other table may call it otherwise
        if role in OPTIONAL_ROLES and name == NO_COLUMN:
            continue
        for table in tables:
            raise _error(table, f"no column {name}", f"the column of --columns {role}={name}")


def _find(table: PartedTable, roles: Sequence[str], named: Mapping[str, str]) -> dict[str, str]:
    """Columns of a table by meaning, all but the item."""
    found: dict[str, str] = {}
    for role in roles:
        if role == "item" or (role in OPTIONAL_ROLES and named.get(role) == NO_COLUMN):
            continue
        if named.get(role) in table.names:
            found[role] = named[role]
            continue
        columns = [name for name in _candidates(table, role) if name not in named.values()]
        if len(columns) > 1:
            raise _ambiguous(table, role, columns)
        others = [name for name in _others(table, role) if name not in (*named.values(), *found.values())]
        if role == "time" and not columns and not others:
            others = [name for name in table.names if _TIME_ENDING.search(name) and name not in named.values()]
            others = others if len(others) == 1 else []
        if columns := columns or others[:1]:
            found[role] = columns[0]
    return found


def _find_items(items: PartedTable, interactions: PartedTable, named: Mapping[str, str]) -> tuple[str, str]:
    """Column of the item in the items and in the interactions."""
    found = [_item_columns(table, named) for table in (items, interactions)]
    if CLICKED in named:
        found[1] = [named[CLICKED]]
    if len(found[1]) > 1:  # beside an item's own column, `id` is the number of the interaction
        found[1] = [name for name in found[1] if plain(name) != "id"]
    shared = {plain(name) for name in found[0]} & {plain(name) for name in found[1]}
    for number, columns in enumerate(found):
        if len(columns) > 1 and len(shared) == 1:
            found[number] = [name for name in columns if plain(name) in shared]
    if not found[0] or not found[1]:
        users = {plain(name) for name in (*USUAL_NAMES["user"], *OTHER_NAMES["user"], *named.values())}
        ids = [name for name in items.names if name in interactions.names and plain(name).endswith("id")]
        ids = [name for name in ids if plain(name) not in users]
        if len(ids) == 1:
            return ids[0], ids[0]
    for table, columns in zip((items, interactions), found, strict=True):
        if not columns:
            raise _missing(table, "item")
        if len(columns) > 1:
            raise _ambiguous(table, "item", columns)
    return found[0][0], found[1][0]


def _item_columns(table: PartedTable, named: Mapping[str, str]) -> list[str]:
    if asked := named.get("item"):
        alike = [name for name in table.names if name == asked] or [
            name for name in table.names if plain(name) == plain(asked)
        ]
        if alike:
            return alike
    taken = {name for role, name in named.items() if role != CLICKED}  # a column of the other table
    usual = [name for name in _candidates(table, "item") if name not in taken]
    return usual or [name for name in _others(table, "item") if name not in taken][:1]


def _in_order(columns: Mapping[str, str], roles: Sequence[str]) -> dict[str, str]:
    return {role: columns[role] for role in roles if role in columns}


def _candidates(table: PartedTable, role: str) -> list[str]:
    usual = {plain(name) for name in USUAL_NAMES[role]}
    return [name for name in table.names if plain(name) in usual]


def _others(table: PartedTable, role: str) -> list[str]:
    """Columns with other names of a meaning, in the order of these names."""
    columns = {plain(name): name for name in table.names}
    return [columns[plain(name)] for name in OTHER_NAMES[role] if plain(name) in columns]


def _missing(table: PartedTable, role: str) -> InputError:
    options = f"--columns {role}=COLUMN"
    if role == "time":
        options += f", or --columns time={NO_COLUMN} for the order of the rows"
    if may_lack_header(table):
        options += "; if the first line is no header, put one before it"
    return _error(table, f"no {role} column", f"one of {', '.join(USUAL_NAMES[role])}", options)


def _ambiguous(table: PartedTable, role: str, columns: Sequence[str]) -> InputError:
    option = f"--columns {role}={columns[0]}"
    return _error(table, f"columns {' and '.join(columns)}", f"one {role} column", option)


def _error(table: PartedTable, found: str, expected: str, option: str = "--columns") -> InputError:
    names = ", ".join(table.names) or "none"
    return InputError(
        f"{table.path}: found {found} (columns: {names}), expected {expected}; say which is meant with {option}"
    )
