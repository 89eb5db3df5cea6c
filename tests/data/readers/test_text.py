import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speedyfeed.data.readers import text
from speedyfeed.data.readers.text import filter_lists, read_lines, split_lists
from speedyfeed.errors import InputError


def lines_of(path):
    return [line for lines in read_lines(path) for line in zip(lines.numbers, lines.text.to_pylist(), strict=True)]


@pytest.fixture
def file(tmp_path):
    def write(content: bytes):
        path = tmp_path / "log.tsv"
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize(
    "content",
    [b"a\tb\nc", b"a\tb\nc\n", b"a\tb\r\nc\r\n", b"a\tb\nc\n\n\n", b"a\tb\r\nc\r\n\r\n", b"\xef\xbb\xbfa\tb\nc\n"],
)
def test_line_ends_marks_and_last_blank_lines_are_not_text(file, content):
    assert lines_of(file(content)) == [(1, "a\tb"), (2, "c")]


def test_quotes_and_lone_carriage_returns_are_text(file):
    assert lines_of(file(b'say "hi\nto\rme\\\n')) == [(1, 'say "hi'), (2, "to\rme\\")]


@given(
    lines=st.lists(st.text(alphabet="abæ\t", max_size=9), min_size=1, max_size=30),
    end=st.sampled_from(["\n", "\r\n"]),
    size=st.integers(1, 40),
)
def test_blocks_of_any_size_give_the_same_lines(tmp_path_factory, lines, end, size):
    lines = [*lines, "last"]
    path = tmp_path_factory.mktemp("text") / "log.tsv"
    path.write_bytes((end.join(lines) + end).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", size)
        assert lines_of(path) == list(enumerate(lines, start=1))


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\r\n"])
def test_an_empty_file_is_an_error(file, content):
    with pytest.raises(InputError, match=r"log\.tsv: found an empty file, expected at least one line; "):
        lines_of(file(content))


def test_invalid_utf8_names_its_line(file, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_BYTES", 4)
    with pytest.raises(InputError, match=r"log\.tsv:3: found the byte 0xff, expected UTF-8; save"):
        lines_of(file(b"ab\ncd\nx\xff\nef\n"))


@pytest.mark.parametrize(("bad", "count"), [("a", "1 column"), ("a\tb\tc", "3 columns"), ("", "1 column")])
def test_a_wrong_number_of_columns_names_its_line(file, bad, count):
    (lines,) = read_lines(file(f"a\tb\n{bad}\na\tb\n".encode()))
    with pytest.raises(InputError, match=rf"log\.tsv:2: found {count} separated by tab, expected 2 \(x, y\); "):
        lines.split(("x", "y"))


def test_an_empty_id_names_its_line(file):
    (lines,) = read_lines(file(b"N1\t\n\tb\n"))
    with pytest.raises(InputError, match=r"log\.tsv:2: found an empty id, expected a news_id; remove the line"):
        lines.split(("news_id", "title"))


def test_empty_strings_and_repeated_separators_give_no_empty_ids():
    lists = split_lists(pa.array(["N1 N2", "", " N3  N4 ", "N5"]), " ")
    assert lists.to_pylist() == [["N1", "N2"], [], ["N3", "N4"], ["N5"]]


@given(st.lists(st.lists(st.tuples(st.text(max_size=3), st.booleans()))), st.data())
def test_filtered_lists_are_the_lists_filtered(rows, data):
    start = data.draw(st.integers(0, len(rows)))
    lists = pa.array([[value for value, _ in row] for row in rows], pa.list_(pa.string())).slice(start)
    keep = pa.array([kept for row in rows[start:] for _, kept in row], pa.bool_())
    expected = [[value for value, kept in row if kept] for row in rows[start:]]
    assert filter_lists(lists, keep).to_pylist() == expected
