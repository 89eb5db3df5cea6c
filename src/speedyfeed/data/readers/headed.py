"""Tables whose columns have names, read as strings: CSV, TSV and JSON lines, also gzipped, and Parquet.

    items.csv   HeadedTable.names -> item_id, title      HeadedTable.read(("title",)) -> batches of one column

Ids and texts come as strings with "" for null, and lists as JSON; only times of Parquet keep their type. A row is
found again by its number: `locate` names the line of the file, which a CSV with newlines in its fields has to be
read again for. The separator of a CSV is that of its header.
"""

import ast
import csv
import gzip
import itertools
import json
import re
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.types as pt

from speedyfeed.data.readers.columns import is_list, open_parquet, read_batches
from speedyfeed.data.readers.json_list import read_array
from speedyfeed.data.readers.text import Lines, read_lines
from speedyfeed.errors import InputError
from speedyfeed.files import parse_json

_JSON = (".jsonl", ".json", ".ndjson")
_TEXT = (".csv", ".tsv", *_JSON)
KINDS = (*_TEXT, *(f"{kind}.gz" for kind in _TEXT), ".parquet")
"""Endings of the files that can be read."""
_SEPARATORS = (",", ";", "\t", "|")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
BLOCK_BYTES = 1 << 24
"""Bytes of a CSV read at once, and the longest row."""


@dataclass(frozen=True)
class HeadedTable:
    """A file with named columns, not yet read."""

    path: Path
    charset: str | None = None
    """Encoding of a text file; None for UTF-8, or UTF-16 where the file begins with its mark."""
    skips_broken: bool = False
    """Whether rows that cannot be read are left out and noted; otherwise the first one is an error."""
    broken: dict[int, str] = field(default_factory=dict)
    """Place and mistake of the rows left out, by their number; those without a number have negative ones."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all columns; those of JSON lines are the keys of the first thousands of lines."""
        names = self._find_names()
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"{self.path}: found column {name} twice, expected it once; rename one of them")
        return names

    def read(self, columns: Sequence[str], *, lists: bool = False) -> Iterator[pa.RecordBatch]:
        """Read some columns in the order asked for; at least one row must exist.

        With `lists`, values of JSON and Parquet may be lists, which are given as JSON.
        """
        num_rows = 0
        for batch in self.read_rows(columns, lists=lists):
            yield batch
            num_rows += len(batch)
        if not num_rows:
            raise self.no_rows()

    def read_rows(self, columns: Sequence[str], *, lists: bool = False) -> Iterator[pa.RecordBatch]:
        """Read some columns like `read`, of a table that may have no rows."""
        try:
            yield from self._read(list(columns), lists)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._broken_gzip(error) from None
        except OSError as error:
            if error.filename is not None or self.path.suffix != ".gz":
                raise
            raise self._broken_gzip(error) from None

    def no_rows(self) -> InputError:
        """Error of a table without rows."""
        return InputError(f"{self.path}: found no rows, expected at least one; export the table again")

    def locate(self, row: int) -> str:
        """File and line of a row, counted from 0, for a message; of Parquet and JSON lists, rows are counted."""
        if self._kind == ".parquet" or (self.is_json and self._is_array):
            return f"{self.path}: row {row + 1}"
        return f"{self.path}:{row + 1 if self._kind in _JSON else self._find_line(row)}"

    def reject(self, row: int, found: str, expected: str, remedy: str) -> None:
        """Raise an error for a row, or note it where such rows are skipped: only the first with its place."""
        if not self.skips_broken:
            raise InputError(
                f"{self.locate(row)}: found {found}, expected {expected}; {remedy}, or leave out all such rows "
                "with --skip-broken"
            )
        if row not in self.broken:
            self.broken[row] = found if self.broken else f"{self.locate(row)}: {found}"

    @property
    def is_json(self) -> bool:
        """Whether the rows are JSON objects, which may leave columns out."""
        return self._kind in _JSON

    @property
    def _kind(self) -> str:
        return Path(self.path.name.removesuffix(".gz")).suffix

    @cached_property
    def _separator(self) -> str:
        """The usual separator of the kind of file, or the one that is most frequent in a header without it."""
        usual = "\t" if self._kind == ".tsv" else ","
        with self._open_text() as file:
            header = next((line for line in file if line.strip()), "")
        return usual if usual in header else max((usual, *_SEPARATORS), key=header.count)

    @cached_property
    def _encoding(self) -> str:
        if self.charset is not None:
            return self.charset
        opens = gzip.open if self.path.suffix == ".gz" else open
        with opens(self.path, "rb") as file:
            return "utf-16" if file.read(2) in _UTF_16 else "utf-8"

    def _find_names(self) -> tuple[str, ...]:
        if self._kind == ".parquet":
            with open_parquet(self.path) as file:
                return tuple(file.schema_arrow.names)
        try:
            if self._kind in _JSON:
                rows = self._parse_json(next(self._read_objects()))
                return tuple(dict.fromkeys(name for row in rows for name in row))
            with self._open_text() as file:
                return tuple(next(filter(None, csv.reader(file, delimiter=self._separator)), ()))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._broken_gzip(error) from None
        except csv.Error as error:
            raise InputError(
                f"{self.path}:1: found no header ({error}), expected the names of the columns; check the file"
            ) from None

    def _read(self, columns: list[str], lists: bool) -> Iterator[pa.RecordBatch]:
        if self._kind == ".parquet":
            yield from self._read_parquet(columns, lists)
        elif self._kind in _JSON:
            for lines in self._read_objects():
                rows = self._parse_json(lines)
                yield pa.record_batch([_json_column(lines, rows, name, lists) for name in columns], columns)
        else:
            yield from self._read_csv(columns)

    def _read_parquet(self, columns: list[str], lists: bool) -> Iterator[pa.RecordBatch]:
        with open_parquet(self.path) as file:
            for batch in read_batches(self.path, file, list(dict.fromkeys(columns))):
                yield pa.record_batch([_as_text(self.path, name, batch[name], lists) for name in columns], columns)

    @cached_property
    def _is_array(self) -> bool:
        """Whether a JSON file is one list of objects instead of one object a line."""
        with self._open_text() as file:
            return file.read(1 << 16).lstrip()[:1] == "["

    def _read_objects(self) -> Iterator[Lines]:
        return read_array(self.path, self._open_text) if self._is_array else read_lines(self.path, self._encoding)

    def _parse_json(self, lines: Lines) -> list[dict[str, Any]]:
        """Objects of the lines; a broken line that is skipped is an object without ids."""
        rows: list[dict[str, Any]] = []
        for place, text in enumerate(lines.text.to_pylist()):
            try:
                row = parse_json(text)
                found = f"a JSON {type(row).__name__}"
            except ValueError as error:
                row, found = _parse_literal(text), f"no JSON ({error})"
            if not isinstance(row, dict):
                where = f"{lines.path}:{lines.numbers[place]}"
                if not self.skips_broken:
                    raise InputError(
                        f"{where}: found {found}, expected one JSON object; correct or remove the line, or leave "
                        "out all such rows with --skip-broken"
                    )
                row = {}
            rows.append(row)
        return rows

    def _read_csv(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        invalid: list[pcsv.InvalidRow] = []

        def refuse(row: pcsv.InvalidRow) -> str:
            if self.skips_broken:
                place = f"{self.path}: " if not self.broken else ""
                self.broken[-row.number] = f"{place}row {row.number}: {row.actual_columns} fields"
                return "skip"
            invalid.append(row)
            return "error"

        parsing = pcsv.ParseOptions(delimiter=self._separator, newlines_in_values=True, invalid_row_handler=refuse)
        converting = pcsv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()), include_columns=columns, strings_can_be_null=False
        )
        # One thread: only then rows are numbered in errors.
        reading = pcsv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, encoding=self._encoding)
        compression = "gzip" if self.path.suffix == ".gz" else None
        num_rows = 0
        with pa.input_stream(str(self.path), compression=compression) as stream:
            try:
                for batch in pcsv.open_csv(stream, reading, parsing, converting):
                    yield batch
                    num_rows += len(batch)
            except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
                self._explain(error, invalid)
        self._check_quotes(num_rows)

    def _explain(self, error: pa.ArrowException, invalid: list[pcsv.InvalidRow]) -> NoReturn:
        """Turn an error of the CSV parser into one that names the line."""
        number = re.search(r"Row #(\d+)", str(error))
        where = self.locate(int(number[1]) - 2) if number else str(self.path)  # Arrow counts the header as row 1
        if invalid:
            row = invalid[-1]
            names = ", ".join(self.names)
            raise InputError(
                f"{where}: found {row.actual_columns} fields, expected {row.expected_columns} ({names}); "
                'add what is missing, or put "..." around a field that holds a separator or a newline, or leave '
                "out all such rows with --skip-broken"
            ) from None
        if "straddling" in str(error):  # a row longer than a block
            deque(self._lines_of_rows(), maxlen=0)
            raise self._too_long(str(self.path)) from None
        if "UTF8" in str(error) or "\ufffd" in "".join(self.names):
            raise InputError(
                f"{where}: found bytes that are no UTF-8, expected UTF-8; save the file as UTF-8, or give its "
                "encoding, as --charset latin-1"
            ) from None
        found = " ".join(str(error).split())[:120]
        raise InputError(f"{where}: found {found!r}, expected a table with a header; check its quotes") from None

    def _find_line(self, row: int) -> int:
        """Line on which a row of a CSV begins; fields may hold newlines, and blank lines are no rows."""
        return next(itertools.islice(self._lines_of_rows(), row + 1, None), row + 2)

    def _check_quotes(self, num_rows: int) -> None:
        """Refuse a quote that is not closed, which Arrow reads as a field of many lines."""
        opens = gzip.open if self.path.suffix == ".gz" else open
        with opens(self.path, "rb") as file:
            num_lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
        if num_lines > num_rows + 1:  # only then a field may hold a newline
            deque(self._lines_of_rows(), maxlen=0)

    def _lines_of_rows(self) -> Iterator[int]:
        """Line on which each row of a CSV begins, the header first; quotes are checked on the way."""
        limit = csv.field_size_limit(BLOCK_BYTES)
        before = 0
        try:
            with self._open_text() as file:
                rows = csv.reader(file, delimiter=self._separator, strict=True)
                num_names = 0
                for fields in rows:
                    num_names = num_names or len(fields)
                    if fields and (not self.skips_broken or len(fields) == num_names):
                        yield before + 1
                    before = rows.line_num
        except csv.Error as error:
            if "field larger" in str(error):
                raise self._too_long(f"{self.path}:{before + 1}") from None
            raise InputError(
                f"{self.path}:{before + 1}: found a quote that is not closed, or text behind it ({error}), "
                'expected "..." around a field and "" for a quote in it; correct the quotes'
            ) from None
        finally:
            csv.field_size_limit(limit)

    def _open_text(self) -> TextIO:
        opens = gzip.open if self.path.suffix == ".gz" else open
        encoding = "utf-8-sig" if self._encoding == "utf-8" else self._encoding
        return cast(TextIO, opens(self.path, "rt", encoding=encoding, errors="replace", newline=""))

    def _too_long(self, where: str) -> InputError:
        return InputError(
            f"{where}: found a row of more than {BLOCK_BYTES:,} bytes, expected a shorter one; check that its "
            "quotes are closed, or shorten its text"
        )

    def _broken_gzip(self, error: Exception) -> InputError:
        return InputError(
            f"{self.path}: found {str(error)!r}, expected a whole gzip file; fetch or export it again"
        )


def _parse_literal(text: str) -> Any:
    """Row written by Python, as {'asin': 'B1'}, which older exports call JSON; None for anything else."""
    try:
        return ast.literal_eval(text) if text.startswith("{") else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _json_column(lines: Lines, rows: list[dict[str, Any]], name: str, lists: bool) -> pa.StringArray:
    values = [row.get(name) for row in rows]
    refused = dict if lists else dict | list
    is_plain = pa.array([not isinstance(value, refused) for value in values])
    lines.check(is_plain, lambda _: f"a list or an object as {name}", "a string or a number", "flatten the column")
    return pa.array([_json_text(value) for value in values], pa.string())


def _json_text(value: Any) -> str:
    if isinstance(value, list):
        return json.dumps(value)
    return "" if value is None else str(value)


def _as_text(path: Path, name: str, column: pa.Array, lists: bool) -> pa.Array:
    """A column of Parquet as strings, whole floats as `12.0`; times stay times."""
    if pt.is_timestamp(column.type) or pt.is_date(column.type):
        return column
    if pt.is_floating(column.type):
        text = column.cast(pa.string())
        is_whole = pc.equal(pc.round(column), column)
        text = pc.if_else(is_whole, pc.binary_join_element_wise(text, pa.scalar(".0"), ""), text)
        return pc.if_else(pc.is_null(column, nan_is_null=True), "", text)
    if lists and is_list(column.type):
        return pa.array([_json_text(value) for value in column.to_pylist()], pa.string())
    try:
        return column.cast(pa.string()).fill_null("")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(
            f"{path}: found column {name} of type {column.type}, expected strings or numbers; cast the column"
        ) from None
