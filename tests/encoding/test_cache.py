from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from speedyfeed.encoding.cache import NewsCache
from speedyfeed.errors import InputError


def filled(dtype: str = "fp32") -> NewsCache:
    """News 1, 2 and 4 of five written, at steps 3, 3 and 8."""
    cache = NewsCache(num_news=5, width=2, dtype=dtype)
    cache.write(torch.tensor([2, 1]), torch.tensor([[0.2, 2.0], [0.1, 1.0]]), step=3)
    cache.write(torch.tensor([4]), torch.tensor([[0.4, 4.0]]), step=8)
    return cache


def test_rows_and_stamps_are_written_together() -> None:
    cache = filled()
    assert cache.stamps_V.tolist() == [-1, 3, 3, -1, 8, -1]
    assert torch.equal(cache.read(torch.tensor([4, 1, 4])), torch.tensor([[0.4, 4.0], [0.1, 1.0], [0.4, 4.0]]))
    cache.write(torch.tensor([1]), torch.tensor([[9.0, 9.0]]), step=9)
    assert cache.stamps_V.tolist() == [-1, 9, 3, -1, 8, -1]
    assert cache.read(torch.tensor([1, 2])).tolist() == [[9.0, 9.0], [pytest.approx(0.2), 2.0]]


def test_a_row_that_was_never_written_is_not_read() -> None:
    cache = filled()
    with pytest.raises(AssertionError, match=r"news \[3\] read before"):
        cache.read(torch.tensor([1, 3]))
    with pytest.raises(AssertionError, match=r"news \[0\] read before"):
        cache.read(torch.tensor([0]))


def test_what_does_not_fit_is_not_written() -> None:
    cache = filled()
    before = cache.checksum()
    for ids, rows in (([0], [[1.0, 1.0]]), ([1], [[1.0, 1.0, 1.0]]), ([1, 2], [[1.0, 1.0]])):
        with pytest.raises(AssertionError):
            cache.write(torch.tensor(ids), torch.tensor(rows), step=9)
    assert cache.checksum() == before


def test_what_is_read_has_no_gradient_and_is_a_copy() -> None:
    cache = filled()
    rows = torch.ones(1, 2, requires_grad=True)
    cache.write(torch.tensor([5]), rows * 2, step=9)
    read = cache.read(torch.tensor([5]))
    assert not read.requires_grad
    assert not cache.rows_VH.requires_grad
    read.fill_(7.0)
    assert cache.read(torch.tensor([5])).tolist() == [[2.0, 2.0]]


def test_bf16_rounds_rows_and_halves_their_size() -> None:
    whole, half = filled(), filled("bf16")
    assert half.rows_VH.nbytes * 2 == whole.rows_VH.nbytes
    ids = torch.tensor([1, 2, 4])
    assert half.read(ids).dtype == torch.float32
    torch.testing.assert_close(half.read(ids), whole.read(ids).bfloat16().float(), rtol=0, atol=0)
    assert not torch.equal(half.read(ids), whole.read(ids))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_saved_cache_loads_as_it_was(tmp_path: Path, dtype: str) -> None:
    cache = filled(dtype)
    save_file(cache.export(), tmp_path / "cache.safetensors")
    again = NewsCache(num_news=5, width=2, dtype=dtype)
    again.write(torch.tensor([5]), torch.ones(1, 2), step=1)  # to be forgotten
    again.load(load_file(tmp_path / "cache.safetensors"))
    assert torch.equal(again.stamps_V, cache.stamps_V)
    assert again.checksum() == cache.checksum()
    assert torch.equal(again.read(torch.tensor([1, 2, 4])), cache.read(torch.tensor([1, 2, 4])))


def test_old_rows_are_left_out_of_an_export() -> None:
    cache = filled()
    exported = cache.export(since=4)
    assert {name: tensor.tolist() for name, tensor in exported.items()} == {
        "ids": [4],
        "stamps": [8],
        "rows": [[pytest.approx(0.4), 4.0]],
    }
    assert cache.export(since=8)["ids"].tolist() == [4]
    assert cache.export(since=9)["ids"].tolist() == []
    fresh = NewsCache(num_news=5, width=2)
    fresh.load(exported)
    assert fresh.checksum(since=4) == cache.checksum(since=4)
    assert fresh.checksum() != cache.checksum()


def test_before_gamma_steps_everything_written_is_exported() -> None:
    assert filled().export(since=-17)["ids"].tolist() == [1, 2, 4]


def test_the_checksum_tells_rows_stamps_and_positions_apart() -> None:
    caches = []
    for news, value, step in ((1, 1.0, 3), (2, 1.0, 3), (1, 1.5, 3), (1, 1.0, 4)):
        cache = NewsCache(num_news=5, width=2)
        cache.write(torch.tensor([news]), torch.full((1, 2), value), step=step)
        caches.append(cache.checksum())
    assert len(set(caches)) == 4
    assert filled().checksum() == filled().checksum()


def test_a_cache_of_other_settings_is_refused() -> None:
    exported = filled().export()
    with pytest.raises(InputError, match=r"rows of 2 x torch.float32, expected 2 x torch.bfloat16"):
        NewsCache(num_news=5, width=2, dtype="bf16").load(exported)
    with pytest.raises(InputError, match="expected 3 x"):
        NewsCache(num_news=5, width=3).load(exported)
    with pytest.raises(InputError, match="has article 4, expected at most 3"):
        NewsCache(num_news=3, width=2).load(exported)
    with pytest.raises(InputError, match="no cache dtype 'fp8': choose fp32 or bf16"):
        NewsCache(num_news=5, width=2, dtype="fp8")
