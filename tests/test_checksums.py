"""Damage is named, whatever byte it is in."""

import contextlib
import json

import pytest

from speedyfeed.checksums import SHARED_BYTES, is_intact, seal, share_equal, verify_checksums, write_checksums
from speedyfeed.errors import InputError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.bin").write_bytes(bytes(range(64)))
    (tmp_path / "sub" / "b.bin").write_bytes(b"text")
    write_checksums(tmp_path)
    return tmp_path


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_every_flipped_byte_is_found(folder):
    verify_checksums(folder, "do this")
    for name, size in (("a.bin", 64), ("sub/b.bin", 4)):
        for position in range(size):
            flip(folder / name, position)
            with pytest.raises(InputError, match=rf"{name}: is damaged.*; do this"):
                verify_checksums(folder, "do this")
            flip(folder / name, position)
    verify_checksums(folder, "do this")


def test_no_flipped_byte_of_the_checksums_ends_in_another_error(folder):
    path = folder / "checksums.json"
    for position in range(len(path.read_bytes())):
        flip(path, position)
        with contextlib.suppress(InputError):  # a flipped space changes nothing
            verify_checksums(folder, "do this")
        flip(path, position)


def test_missing_and_cut_files_are_found(folder):
    (folder / "a.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"a\.bin: is damaged"):
        verify_checksums(folder, "")
    (folder / "a.bin").unlink()
    with pytest.raises(InputError, match=r"a\.bin: is missing"):
        verify_checksums(folder, "")


def test_a_sealed_object_survives_json_and_no_change():
    value = {"b": [1, 2.5, None], "a": {"é": (1, 2)}}
    sealed = json.loads(json.dumps(seal(value)))
    assert is_intact(sealed)
    assert is_intact(value)
    assert not is_intact(sealed | {"b": [1, 2.5, 0]})
    assert not is_intact(sealed | {"c": 1})


def test_equal_files_are_shared_and_damaged_twins_are_not(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
        (folder / "same.bin").write_bytes(b"x" * SHARED_BYTES)
        (folder / "small.bin").write_bytes(b"x")
        (folder / "twin.bin").write_bytes(b"y" * SHARED_BYTES)
        (folder / "other.bin").write_bytes(folder.name.encode() * SHARED_BYTES)
        write_checksums(folder)
    (theirs / "twin.bin").write_bytes(b"z" * SHARED_BYTES)  # damaged after it was recorded
    for _ in range(2):  # the second time it is shared already
        share_equal(ours, [tmp_path / "nothing here", theirs])
    assert len(list(ours.iterdir())) == 5
    shared = {file.name for file in ours.iterdir() if file.samefile(theirs / file.name)}
    assert shared == {"same.bin"}
    verify_checksums(ours, "")
