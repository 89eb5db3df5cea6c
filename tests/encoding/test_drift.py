"""Drift of cached rows, and the gamma that it asks for."""

import logging
import math

import pytest
import torch
from torch import Tensor

from speedyfeed.encoding.cache import NewsCache
from speedyfeed.encoding.drift import MAX_ROWS, CacheDrift


class Halved:
    """Encoder that projects rows to their first two columns."""

    def encode_text(self, news: object) -> Tensor:
        raise AssertionError("nothing is encoded to measure drift")

    def project(self, news_MH: Tensor, categories_M: Tensor | None) -> Tensor:
        assert categories_M is None
        return news_MH[:, :2]


def directions(*degrees: float) -> Tensor:
    """Rows whose projections point in these directions."""
    return torch.tensor([[math.cos(math.radians(d)), math.sin(math.radians(d)), d] for d in degrees])


def test_new_rows_are_compared_with_those_they_replace() -> None:
    cache, drift = NewsCache(num_news=9, width=3), CacheDrift(gamma=20)
    assert drift.take() == {}
    drift.compare(Halved(), cache, torch.tensor([2, 5]), directions(0, 0), 3)
    assert drift.take() == {}  # both are encoded for the first time
    cache.write(torch.tensor([2, 5]), directions(0, 0), 3)
    drift.compare(Halved(), cache, torch.tensor([1, 2, 5]), directions(0, 60, 90), 8)
    taken = drift.take()
    assert taken["cache_cosine"] == pytest.approx(0.25, abs=1e-6)
    assert taken["cache_cosine_p5"] == pytest.approx(0.025, abs=1e-6)
    assert drift.take() == {}
    cache.write(torch.tensor([2]), directions(60), 8)
    drift.compare(Halved(), cache, torch.tensor([2]), directions(60), 9)
    assert drift.take()["cache_cosine"] == pytest.approx(1)
    assert drift.by_age() == pytest.approx({"cache_cosine_age_1": 1, "cache_cosine_age_4": 0.25}, abs=1e-6)


def test_only_so_many_rows_are_compared_in_a_step() -> None:
    cache, drift = NewsCache(num_news=300, width=3), CacheDrift(gamma=20)
    ids = torch.arange(1, 301)
    cache.write(ids, directions(0).expand(300, -1), 0)
    compared: list[int] = []
    drift.add = lambda cosines_E, ages_E: compared.append(len(ages_E))  # type: ignore[method-assign]
    drift.compare(Halved(), cache, ids, directions(0).expand(300, -1), 1)
    assert MAX_ROWS / 2 < compared[0] <= MAX_ROWS


def test_it_warns_once_and_says_which_gamma_is_low_enough(caplog: pytest.LogCaptureFixture) -> None:
    drift = CacheDrift(gamma=20)
    for _ in range(2):  # a hundredth of cosine in each step: 0.05 in five
        drift.add(torch.full((200,), 0.7), torch.full((200,), 30))
        drift.take()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "20 steps old" in record.message
    assert "about 0.800" in record.message
    assert "--cache.gamma 5" in record.message


@pytest.mark.parametrize(("cosine", "num_rows"), [(0.93, 200), (0.7, 50)])
def test_it_does_not_warn_of_little_drift_nor_from_few_rows(
    cosine: float, num_rows: int, caplog: pytest.LogCaptureFixture
) -> None:
    drift = CacheDrift(gamma=20)
    drift.add(torch.full((num_rows,), cosine), torch.full((num_rows,), 30))
    drift.take()
    assert not caplog.records
