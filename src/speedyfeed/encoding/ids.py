"""Names of a store as numbers of a recommender: which it may learn about, and who reads in a split."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from speedyfeed.data.store import Store
from speedyfeed.models.id_maps import Known, numbers_of
from speedyfeed.models.recommender import RecommenderConfig


def known_in(store: Store, config: RecommenderConfig) -> Known:
    """Categories of the store and readers of its train split, as far as that recommender makes use of them."""
    categories, subcategories, readers = [], [], []
    if config.knows_categories:
        titles = store.load_titles()
        categories, subcategories = (_distinct(titles[name]) for name in ("category", "subcategory"))
    if config.knows_readers:
        readers = store.load_users()["user_id"].to_pylist()
    return Known(categories=categories, subcategories=subcategories, readers=readers)


def reader_numbers(store: Store, split: str, known: Known) -> NDArray[np.int64]:
    """Beside each history of a dev or test split, the number of its reader; 0 for those not in the train split."""
    impressions = store.impressions(split)
    numbers = np.zeros(len(impressions.histories), np.int64)
    if known.readers:
        users = store.load_impressions(split)["user_id"]
        numbers[impressions.readers] = numbers_of(users, known.readers)
    return numbers


def _distinct(names: pa.ChunkedArray) -> list[str]:
    """In alphabetical order; no name is no category."""
    return sorted(name for name in pc.unique(names).to_pylist() if name)
