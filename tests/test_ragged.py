import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedyfeed.ragged import ArrayWriter, Ragged, RaggedWriter, offsets_of, open_array, open_ragged

rows_of_numbers = st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=8)


def ragged(rows: list[list[int]]) -> Ragged:
    values = np.array([value for row in rows for value in row], dtype=np.int32)
    return Ragged(values=values, offsets=offsets_of(np.array([len(row) for row in rows], dtype=np.int64)))


def test_rows_of_unequal_length_come_back():
    table = ragged([[7, 9], [], [4]])
    assert [row.tolist() for row in table] == [[7, 9], [], [4]]
    assert table.lengths.tolist() == [2, 0, 1]
    with pytest.raises(IndexError):
        table[3]
    with pytest.raises(IndexError):
        table[-1]


@given(rows=rows_of_numbers, data=st.data())
def test_take_equals_picking_rows_one_by_one(rows, data):
    picks = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10)) if rows else []
    taken = ragged(rows).take(np.array(picks, dtype=np.int64))
    assert [row.tolist() for row in taken] == [rows[pick] for pick in picks]


@given(rows=rows_of_numbers, limit=st.none() | st.integers(1, 5))
def test_tails_are_the_ends_of_all_rows(rows, limit):
    tails = ragged(rows).tails(limit)
    assert [row.tolist() for row in tails] == [row if limit is None else row[-limit:] for row in rows]


@given(rows=rows_of_numbers, draw=st.randoms())
def test_heads_are_the_beginnings_of_all_rows(rows, draw):
    lengths = [draw.randint(0, len(row)) for row in rows]
    heads = ragged(rows).heads(np.array(lengths, np.int64))
    assert [row.tolist() for row in heads] == [row[:length] for row, length in zip(rows, lengths, strict=True)]


@given(parts=st.lists(rows_of_numbers, max_size=4))
def test_a_table_written_in_parts_opens_as_one(parts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ragged")
    with RaggedWriter(folder, "table", np.int32) as writer:
        for part in parts:
            piece = ragged(part)
            writer.append(piece.values, piece.lengths)
    table = open_ragged(folder, "table")
    assert isinstance(table.values, np.memmap) or len(table.values) == 0
    assert [row.tolist() for row in table] == [row for part in parts for row in part]


def test_a_writer_refuses_values_that_would_lose_their_kind(tmp_path):
    with pytest.raises(AssertionError), ArrayWriter(tmp_path, "ids", np.int32) as writer:
        writer.append(np.array([0.5]))


def test_an_interrupted_write_leaves_an_array_of_length_zero(tmp_path):
    with pytest.raises(RuntimeError), ArrayWriter(tmp_path, "ids", np.int32) as writer:
        writer.append(np.arange(3, dtype=np.int32))
        raise RuntimeError
    assert len(open_array(tmp_path, "ids")) == 0
