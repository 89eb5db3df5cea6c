"""The tokens of a store as the news encoder wants them; here data and models meet."""

import warnings

import torch
from torch import Tensor

from speedyfeed.data.store import NewsTokens, Store
from speedyfeed.models.packed import PackedNews
from speedyfeed.ragged import Array


def open_packed(store: Store) -> PackedNews:
    """All news of a store, row n is news n; mapped, not read."""
    return packed(store.news)


def packed(news: NewsTokens) -> PackedNews:
    """The same arrays as tensors."""
    return PackedNews(
        tokens_T=_as_tensor(news.tokens.values),
        frequencies_T=_as_tensor(news.frequencies),
        segment_starts=_as_tensor(news.tokens.offsets),
        news_starts=_as_tensor(news.segments),
        ids_M=torch.arange(len(news.segments) - 1),
    )


def _as_tensor(array: Array) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # we only read
        return torch.from_numpy(array)
