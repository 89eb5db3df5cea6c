"""Names of a store as indices of a recommender: its categories, and the users of a split."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from speedyfeed.data.store import Store
from speedyfeed.models.config import RecommenderConfig
from speedyfeed.models.id_maps import IdMaps, lookup_indices


def id_maps_of(store: Store, config: RecommenderConfig) -> IdMaps:
    """Categories of the train articles and users of the train split, as far as the recommender uses them."""
    categories, subcategories, users = [], [], []
    if config.uses_categories:
        titles = store.load_titles()[: store.num_train_news]
        categories, subcategories = (_distinct(titles[name]) for name in ("category", "subcategory"))
    if config.uses_user_ids:
        users = store.load_users()["user_id"].to_pylist()
    return IdMaps(categories=categories, subcategories=subcategories, users=users)


def user_indices(store: Store, split: str, id_maps: IdMaps) -> NDArray[np.int64]:
    """Index of the user of each history in a valid, dev or test split; 0 for users not in the train split."""
    impressions = store.impressions(split)
    indices = np.zeros(len(impressions.histories), np.int64)
    if id_maps.users:
        user_ids = store.load_impressions(split)["user_id"]
        indices[impressions.users] = lookup_indices(user_ids, id_maps.users)
    return indices


def known_user_share(store: Store, split: str, id_maps: IdMaps) -> float:
    """Fraction of the impressions of a valid, dev or test split whose user is in the train split."""
    known = lookup_indices(store.load_impressions(split)["user_id"], id_maps.users)
    return float(np.mean(known > 0)) if len(known) else 0.0


def _distinct(names: pa.ChunkedArray) -> list[str]:
    """Distinct names in alphabetical order; an empty name is no category."""
    return sorted(name for name in pc.unique(names).to_pylist() if name)
