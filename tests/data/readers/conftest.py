"""What the tests of all readers share: a split's streams as plain rows, with the schema checked."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from speedyfeed.data.tables import IMPRESSIONS, NEWS, Split

Rows = Callable[[Split], list[dict[str, Any]]]


@pytest.fixture
def news_rows() -> Rows:
    return lambda split: pa.Table.from_batches(split.news(), schema=NEWS).to_pylist()


@pytest.fixture
def impression_rows() -> Rows:
    return lambda split: pa.Table.from_batches(split.impressions(), schema=IMPRESSIONS).to_pylist()
