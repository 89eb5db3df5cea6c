"""Which files of a folder are the items and the interactions: by their names, or else by their columns.

movies.csv   movieId, title, genres                  items
ratings.csv  userId, movieId, rating, timestamp      interactions
tags.csv     userId, movieId, tag, timestamp         as good by its columns, but `ratings` is a known name
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from speedyfeed.data.reader_options import NO_TIME, TABLES, ReaderOptions
from speedyfeed.data.readers.headed import KINDS, HeadedTable
from speedyfeed.data.readers.roles import find_roles, has_user
from speedyfeed.errors import InputError

FILES = (
    "items (or articles, news) and interactions (or clicks, events), each as .csv, .tsv, .jsonl, one of these "
    "with .gz, or .parquet; files of other names are known by their columns"
)
NAMES: Mapping[str, tuple[str, ...]] = {
    "items": ("items", "articles", "news"),
    "interactions": ("interactions", "clicks", "events"),
}
"""Names of the files of each table; where there are such files, no other is looked at."""
HINTS: Mapping[str, tuple[str, ...]] = {
    "items": ("meta", "item", "article", "news", "product", "movie", "book"),
    "interactions": ("interaction", "click", "event", "rating", "review", "transaction", "purchase", "train"),
}
"""Words in the names of files that decide between several whose columns would do."""
MAX_FILES = 30
"""Number of files up to which a folder is searched by columns."""
MAX_SHOWN = 12
"""Number of columns of a file that a message names."""


def is_found(folder: Path) -> bool:
    """Whether a folder has both tables by name, or at least two files that could be tables."""
    by_name = all(_named_files(folder, names) for names in NAMES.values())
    return by_name or 2 <= len(_table_files(folder)) <= MAX_FILES


def find_tables(folder: Path, options: ReaderOptions) -> tuple[HeadedTable, HeadedTable]:
    """Find the tables of items and of interactions."""
    found: dict[str, HeadedTable] = {}
    for table in TABLES:
        if name := options.table_files().get(table):
            found[table] = _open(_require(folder, table, name), options)
        elif paths := _named_files(folder, NAMES[table]):
            found[table] = _open(_only(folder, table, paths), options)
    if len(found) < len(TABLES):
        found = _find_by_columns(folder, found, options)
    return found["items"], found["interactions"]


def _find_by_columns(
    folder: Path, known: Mapping[str, HeadedTable], options: ReaderOptions
) -> dict[str, HeadedTable]:
    tables = [table for path in _table_files(folder) if _has_names(table := _open(path, options))]
    items, interactions = ([known[table]] if table in known else tables for table in TABLES)
    named = options.column_names()
    untimed = {**named, "time": NO_TIME}  # the reader then says that a time is missing
    for columns in (named, untimed):
        pairs = [
            {"items": one, "interactions": other}
            for one in items
            for other in interactions
            if one.path != other.path and _fits(one, other, columns)
        ]
        for kind in TABLES:
            pairs = _prefer(pairs, kind)
        if len(pairs) == 1:
            return pairs[0]
        if pairs:
            raise _several(folder, pairs)
    shown = "; ".join(f"{table.path.name} ({_few(table.names)})" for table in tables) or "none"
    missing = " and ".join(table for table in TABLES if table not in known)
    raise InputError(
        f"{folder}: found no table of {missing} among {shown}, expected one with item and title, abstract or "
        "body, and one with user, item and time; name them with --tables items=FILE,interactions=FILE, and their "
        "columns with --columns title=COLUMN,..."
    )


def _few(names: Sequence[str]) -> str:
    """The first names of columns, for a message."""
    return ", ".join([*names[:MAX_SHOWN], *(["..."] if len(names) > MAX_SHOWN else [])])


def _has_names(table: HeadedTable) -> bool:
    """Whether a file is a table at all, which other files with its ending may not be."""
    try:
        return bool(table.names)
    except InputError:
        return False


def _fits(items: HeadedTable, interactions: HeadedTable, named: Mapping[str, str]) -> bool:
    """Whether the columns of two files are those of items and of interactions."""
    try:
        find_roles(items, interactions, named)
    except InputError:
        return False
    return not has_user(items, named)


def _prefer(pairs: list[dict[str, HeadedTable]], table: str) -> list[dict[str, HeadedTable]]:
    """Pairs whose file has a known word in its name, or all if there are none."""
    hinted = [pair for pair in pairs if any(hint in pair[table].path.name.lower() for hint in HINTS[table])]
    return hinted or pairs


def _several(folder: Path, pairs: list[dict[str, HeadedTable]]) -> InputError:
    table = next(name for name in TABLES if len({pair[name].path for pair in pairs}) > 1)
    names = sorted({pair[table].path.name for pair in pairs})
    return InputError(
        f"{folder}: found {' and '.join(names)}, expected one table of {table}; say which is meant with "
        f"--tables {table}={names[0]}"
    )


def _open(path: Path, options: ReaderOptions) -> HeadedTable:
    return HeadedTable(path, options.charset, options.skip_broken)


def _named_files(folder: Path, names: tuple[str, ...]) -> list[Path]:
    paths = [folder / f"{name}{kind}" for name in names for kind in KINDS]
    return [path for path in paths if path.is_file()]


def _table_files(folder: Path) -> list[Path]:
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith("."))
    return [path for path in files if path.name.lower().endswith(KINDS)]


def _require(folder: Path, table: str, name: str) -> Path:
    path = folder / name
    if not path.is_file() or not name.lower().endswith(KINDS):
        names = ", ".join(path.name for path in _table_files(folder)) or "none"
        raise InputError(
            f"--tables {table}={name}: found no such table in {folder} (tables: {names}), expected one of them; "
            "correct it"
        )
    return path


def _only(folder: Path, table: str, paths: list[Path]) -> Path:
    if len(paths) > 1:
        found = " and ".join(path.name for path in paths)
        raise InputError(
            f"{folder}: found {found}, expected one table of {table}; remove one of them, or say which is meant "
            f"with --tables {table}={paths[0].name}"
        )
    return paths[0]
