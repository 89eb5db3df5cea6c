"""Columns of a Parquet file, checked against a schema and cast to it, a few thousand rows at a time."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from speedyfeed.errors import InputError

BATCH_ROWS = 8192


def read_columns(path: Path, schema: pa.Schema, defaults: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Read the columns of `schema` in its types; only a column with a default may be absent or null."""
    with open_parquet(path) as file:
        present = [field.name for field in schema if _is_present(path, field, file.schema_arrow, defaults)]
        start = 0
        for batch in read_batches(path, file, columns=present):
            columns = [_column(path, start, batch, field, defaults) for field in schema]
            yield pa.record_batch(columns, schema=schema)
            start += len(batch)
        if not start:  # whatever a damaged footer says
            raise InputError(f"{path}: found no rows, expected at least one; export the table again")


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file; any other file is an error."""
    try:
        file = pq.ParquetFile(path)
        file.schema_arrow  # noqa: B018 read when it is first asked for
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # the file cannot be opened at all
        raise _unreadable(path, error) from None
    return file


def read_batches(
    path: Path, file: pq.ParquetFile, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read an open Parquet file in batches; damage of any kind is an error that names the file."""
    try:
        for batch in file.iter_batches(BATCH_ROWS, columns=columns):
            batch.validate(full=True)  # text that is no UTF-8, offsets beyond the end
            yield batch
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> InputError:
    found = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError(f"{path}: found {found!r}, expected a whole Parquet file; export the table again")


def _is_present(path: Path, field: pa.Field, found: pa.Schema, defaults: Mapping[str, Any]) -> bool:
    """Whether the file has the column; a type that cannot be cast to the field's is an error."""
    if field.name not in found.names:
        if field.name not in defaults:
            names = ", ".join(found.names)
            raise InputError(f"{path}: found columns {names}, expected {field.name} among them; add the column")
        return False
    type_ = found.field(field.name).type
    if not _is_castable(type_, field.type):
        raise InputError(
            f"{path}: found column {field.name} of type {type_}, expected {field.type}; cast the column"
        )
    return True


def _is_castable(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pt.is_dictionary(found):
        return _is_castable(found.value_type, wanted)
    if is_list(wanted):
        return is_list(found) and _is_castable(found.value_type, wanted.value_type)
    if pt.is_timestamp(wanted):
        return bool(pt.is_timestamp(found) or pt.is_date(found))
    is_text = pt.is_string(found) or pt.is_large_string(found) or pt.is_string_view(found)
    return bool(pt.is_integer(found) or pt.is_null(found) or (pt.is_string(wanted) and is_text))


def is_list(type_: pa.DataType) -> bool:
    """Whether a type is one of Arrow's kinds of lists."""
    kinds = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)
    return any(is_kind(type_) for is_kind in kinds)


def _column(
    path: Path, start: int, batch: pa.RecordBatch, field: pa.Field, defaults: Mapping[str, Any]
) -> pa.Array:
    if field.name not in batch.schema.names:
        return pa.repeat(pa.scalar(defaults[field.name], field.type), len(batch))
    column = batch.column(field.name)
    if pt.is_list_view(column.type) or pt.is_large_list_view(column.type):
        column = _unview(column)
    try:
        # Times may lose nanoseconds; nothing else may lose anything.
        column = column.cast(field.type, safe=not pt.is_timestamp(field.type))
    except pa.ArrowInvalid as error:
        raise InputError(
            f"{path}: found column {field.name} with {error}, expected values of {field.type}; correct them"
        ) from None
    if column.null_count and defaults.get(field.name) is not None:
        column = pc.fill_null(column, pa.scalar(defaults[field.name], field.type))
    row = _first_null(column, field)
    if row is not None:
        raise InputError(
            f"{path}: found null in column {field.name}, row {start + row + 1}, expected a value; "
            "fill it or leave the row out"
        )
    return column


def _unview(views: pa.Array) -> pa.ListArray:
    """Rebuild list views as lists: Arrow 26 casts them with broken offsets."""
    offsets = np.zeros(len(views) + 1, dtype=np.int32)
    np.cumsum(views.value_lengths().fill_null(0).to_numpy(), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), views.flatten(), mask=views.is_null())


def _first_null(column: pa.Array, field: pa.Field) -> int | None:
    """First row that is null, or a list with a null in it, where the field does not allow that."""
    if column.null_count and not field.nullable:
        return int(pc.index(column.is_null(), True).as_py())
    if is_list(field.type) and column.flatten().null_count:
        value = pc.index(column.flatten().is_null(), True).as_py()
        return int(pc.list_parent_indices(column)[value].as_py())
    return None
