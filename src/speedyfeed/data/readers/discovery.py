"""Which files of a folder are the items and the interactions: by their names, or else by their columns.

movies.csv   movieId, title, genres                  items
ratings.csv  userId, movieId, rating, timestamp      interactions
tags.csv     userId, movieId, tag, timestamp         as good by its columns, but `ratings` is a known name

Files with the same columns whose names differ in their numbers alone are parts of one table, and so are the files
of a folder called `items` or `interactions`. A table with the columns of both is both, where it is the only one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from speedyfeed.data.reader_options import NO_COLUMN, TABLES, ReaderOptions
from speedyfeed.data.readers.headed import KINDS, HeadedTable
from speedyfeed.data.readers.parted import PartedTable
from speedyfeed.data.readers.roles import find_roles, has_title, has_user, has_weight, may_lack_header
from speedyfeed.errors import InputError

FILES = (
    "items (or articles, news) and interactions (or clicks, events), each as .csv, .tsv, .jsonl, one of these "
    "with .gz, or .parquet, or a folder of such parts; files of other names are known by their columns"
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
MAX_TABLES = 30
"""Number of tables up to which a folder is searched by columns."""
MAX_SHOWN = 12
"""Number of columns of a table that a message names."""

Pair = dict[str, PartedTable]


def is_found(folder: Path) -> bool:
    """Whether a folder has both tables by name, or some files that could be tables."""
    by_name = all(_named_tables(folder, names) for names in NAMES.values())
    return by_name or 1 <= len({_stem(path) for path in _table_files(folder)}) <= MAX_TABLES


def find_tables(folder: Path, options: ReaderOptions) -> tuple[PartedTable, PartedTable]:
    """Find the tables of items and of interactions."""
    found: Pair = {}
    for table in TABLES:
        if name := options.table_files().get(table):
            found[table] = _open(folder, _require(folder, table, name), options)
        elif tables := _named_tables(folder, NAMES[table]):
            found[table] = _open(folder, _only(folder, table, tables), options)
    if len(found) < len(TABLES):
        found = _find_by_columns(folder, found, options)
    if found["items"].paths == found["interactions"].paths:
        found["items"] = found["interactions"]  # so that broken rows are counted once
    return found["items"], found["interactions"]


def unread_files(tables: Iterable[PartedTable]) -> tuple[str, ...]:
    """Names of the files beside some tables that could be tables as well, and are not read."""
    paths = {path for table in tables for path in table.paths}
    folders = sorted({table.folder for table in tables} | {path.parent for path in paths})
    return tuple(path.name for folder in folders for path in _table_files(folder) if path not in paths)


def _find_by_columns(folder: Path, known: Mapping[str, PartedTable], options: ReaderOptions) -> Pair:
    tables = _open_all(folder, options)
    items, interactions = ([known[table]] if table in known else tables for table in TABLES)
    named = options.column_names()
    untimed = {**named, "time": NO_COLUMN}  # the reader then says that a time is missing
    two = [{"items": one, "interactions": other} for one in items for other in interactions]
    two = [pair for pair in two if not set(pair["items"].paths) & set(pair["interactions"].paths)]
    for columns in (named, untimed):
        pairs = [pair for pair in two if _fits(pair, columns) and not has_user(pair["items"], columns)]
        # A table of descriptions alone may lie beside the one with the titles.
        pairs = [pair for pair in pairs if has_title(pair["items"], columns)] or pairs
        for kind in TABLES:
            pairs = _prefer(pairs, kind)
        if not pairs and columns is named and not known:
            # The texts of a table with ratings are reviews, not items.
            both = [{"items": table, "interactions": table} for table in tables if not has_weight(table)]
            pairs = [pair for pair in both if _fits(pair, columns)]
        if len(pairs) == 1:
            return pairs[0]
        if pairs:
            raise _several(folder, pairs)
    raise _nothing(folder, known, tables)


def _open_all(folder: Path, options: ReaderOptions) -> list[PartedTable]:
    """Open all tables of a folder; files with the same columns and the same name but for its numbers are parts."""
    groups: dict[tuple[str, ...], list[Path]] = {}
    for path in _table_files(folder):
        if names := _names(_open(folder, (path,), options)):
            groups.setdefault((_stem(path), *names), []).append(path)
    return [_open(folder, paths, options) for paths in groups.values()]


def _stem(path: Path) -> str:
    """Name of a file without its numbers."""
    return re.sub(r"\d+", "#", path.name)


def _names(table: PartedTable) -> tuple[str, ...]:
    """Names of the columns; none of a file that is no table, which files with the ending of one may be."""
    try:
        return table.names
    except InputError:
        return ()


def _fits(pair: Pair, named: Mapping[str, str]) -> bool:
    """Whether the columns of two tables are those of items and of interactions."""
    try:
        find_roles(pair["items"], pair["interactions"], named)
    except InputError:
        return False
    return True


def _prefer(pairs: list[Pair], table: str) -> list[Pair]:
    """Pairs whose file has a known word in its name, or all if there are none."""
    hinted = [pair for pair in pairs if any(hint in pair[table].path.name.lower() for hint in HINTS[table])]
    return hinted or pairs


def _several(folder: Path, pairs: list[Pair]) -> InputError:
    table = next(name for name in TABLES if len({pair[name].path for pair in pairs}) > 1)
    names = sorted({pair[table].path.name for pair in pairs})
    return InputError(
        f"{folder}: found {' and '.join(names)}, expected one table of {table}; say which is meant with "
        f"--tables {table}={names[0]}, where a * in the name stands for parts of one table"
    )


def _nothing(folder: Path, known: Mapping[str, PartedTable], tables: Sequence[PartedTable]) -> InputError:
    shown = "; ".join(f"{table.name} ({_few(table.names)})" for table in tables) or "none"
    missing = " and ".join(table for table in TABLES if table not in known)
    without = [table.path.name for table in tables if may_lack_header(table)]
    hint = f"; if the first line of {without[0]} is no header, put one before it" if without else ""
    return InputError(
        f"{folder}: found no table of {missing} among {shown}, expected one with item and title, abstract or "
        "body, and one with user, item and time; name them with --tables items=FILE,interactions=FILE, and their "
        f"columns with --columns title=COLUMN,...{hint}"
    )


def _few(names: Sequence[str]) -> str:
    """The first names of columns, for a message."""
    return ", ".join([*names[:MAX_SHOWN], *(["..."] if len(names) > MAX_SHOWN else [])])


def _open(folder: Path, paths: Sequence[Path], options: ReaderOptions) -> PartedTable:
    return PartedTable(tuple(HeadedTable(path, options.charset, options.skip_broken) for path in paths), folder)


def _named_tables(folder: Path, names: tuple[str, ...]) -> list[tuple[Path, ...]]:
    """Files of each table of one of these names: a file, or the files of a folder."""
    paths = [folder / f"{name}{kind}" for name in names for kind in KINDS]
    folders = [folder / name for name in names if (folder / name).is_dir()]
    found = [(path,) for path in paths if path.is_file()] + [_table_files(path) for path in folders]
    return [files for files in found if files]


def _table_files(folder: Path) -> tuple[Path, ...]:
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] not in "._")
    return tuple(path for path in files if path.name.lower().endswith(KINDS))


def _require(folder: Path, table: str, name: str) -> tuple[Path, ...]:
    found = sorted(folder.glob(name)) if "*" in name else [folder / name]
    paths = tuple(path for path in found if path.is_file() and path.name.lower().endswith(KINDS))
    if not paths:
        names = ", ".join(path.name for path in _table_files(folder)) or "none"
        raise InputError(
            f"--tables {table}={name}: found no such table in {folder} (tables: {names}), expected one of them; "
            "correct it"
        )
    return paths


def _only(folder: Path, table: str, tables: list[tuple[Path, ...]]) -> tuple[Path, ...]:
    if len(tables) > 1:
        names = [paths[0].relative_to(folder).as_posix() for paths in tables]
        raise InputError(
            f"{folder}: found {' and '.join(names)}, expected one table of {table}; remove one of them, or say "
            f"which is meant with --tables {table}={names[0]}"
        )
    return tables[0]
