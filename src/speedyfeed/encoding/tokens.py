"""The news of a store as a recommender wants them; here data and models meet."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from speedyfeed.data.store import NewsTokens, Store
from speedyfeed.data.tables import FIELDS
from speedyfeed.models.id_maps import IdMaps, lookup_indices
from speedyfeed.models.packed import PackedNews
from speedyfeed.ragged import Array


def open_packed(store: Store, *, words: bool = False, id_maps: IdMaps | None = None) -> PackedNews:
    """All news of a store, row n is news n; mapped, not read.

    As tokens of the store's language model, or as its words; with the numbers of the categories that are `known`.
    """
    news = packed(store.words if words else store.news, store.manifest["settings"]["fields"])
    if id_maps is None or not id_maps.categories:
        return news
    titles = store.load_titles()
    categories_M, subcategories_M = (
        nn.functional.pad(torch.from_numpy(lookup_indices(titles[column], names)), (1, 0))  # news 0 is padding
        for column, names in (("category", id_maps.categories), ("subcategory", id_maps.subcategories))
    )
    return replace(news, categories_M=categories_M, subcategories_M=subcategories_M)


def packed(news: NewsTokens, fields: Sequence[str]) -> PackedNews:
    """The same arrays as tensors; `fields` are those the news were read from, in order."""
    fields_K = _as_tensor(news.fields)
    places = [FIELDS.index(name) for name in fields]
    if places != list(range(len(places))):
        fields_K = torch.tensor(places, dtype=torch.uint8)[fields_K.long()]
    return PackedNews(
        tokens_T=_as_tensor(news.tokens.values),
        frequencies_T=_as_tensor(news.frequencies),
        segment_starts=_as_tensor(news.tokens.offsets),
        news_starts=_as_tensor(news.segments),
        fields_K=fields_K,
        ids_M=torch.arange(len(news.segments) - 1),
    )


def _as_tensor(array: Array) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # we only read
        return torch.from_numpy(array)
