"""The articles that a recommender can recommend: their ids, titles and embeddings.

Shapes: V articles of the catalogue, D embedding width.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from speedyfeed.data.bodies import BODIES
from speedyfeed.data.headlines import headline_codes
from speedyfeed.errors import InputError
from speedyfeed.models.packed import PackedNews

ADDS_BIASES = "adds_biases"
"""Key in the metadata of `news.parquet` of a catalogue whose biases are part of every score."""


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Articles to recommend; row i of every column is article i + 1 of the store they came from."""

    news_ids: Sequence[str]
    titles: Sequence[str]
    categories: Sequence[str]
    embeddings_VD: Tensor
    """Embeddings in host memory, (articles, dim); of width 0 where `texts` replace them."""
    num_clicks: Sequence[int] | None = None
    """Number of clicks on each article in the training log; None where it is unknown."""
    biases: Sequence[float] | None = None
    """Popularity of each article as training learned it, in units of scores; None where it was not learned."""
    adds_biases: bool = False
    """Whether the biases are part of every score, as after training on a log without impressions."""
    abstracts: Sequence[str] | None = None
    """Summaries to show beside the titles; None where the store holds none."""
    published: Sequence[float | None] | None = None
    """When the log first showed each article, in seconds since 1970; None where that is unknown."""
    bodies: Path | None = None
    """File of the full texts (`speedyfeed.data.bodies`); None where there are none."""
    texts: PackedNews | None = None
    """Tokens of the articles, for user-dependent encoders, which encode them for each user."""

    def __post_init__(self) -> None:
        assert len(self.news_ids) == len(self.titles) == len(self.categories) == len(self.embeddings_VD)

    def __len__(self) -> int:
        return len(self.news_ids)

    @cached_property
    def row(self) -> dict[str, int]:
        """Row of each article, by its id."""
        return {news_id: row for row, news_id in enumerate(self.news_ids)}

    @cached_property
    def sections(self) -> NDArray[np.int64]:
        """Category of each article as a number from 1; 0 for none."""
        codes = {"": 0}
        return np.array([codes.setdefault(name or "", len(codes)) for name in self.categories], np.int64)

    @cached_property
    def headlines(self) -> NDArray[np.int64]:
        """Code of each article's headline, to tell duplicates by."""
        return headline_codes(title or "" for title in self.titles)

    @cached_property
    def section_clicks(self) -> NDArray[np.float64]:
        """Number of clicks on each section, by its number, and one for each article of it."""
        clicks = 1 + np.asarray(self.num_clicks or np.zeros(len(self)), np.float64)
        totals = np.zeros(1 + self.sections.max(initial=0))
        np.add.at(totals, self.sections, clicks)
        return totals

    @cached_property
    def added(self) -> NDArray[np.float32]:
        """Number that is added to every score of each article: its bias, or 0."""
        biases = self.biases if self.adds_biases and self.biases is not None else np.zeros(len(self))
        return np.asarray(biases, np.float32)

    def save(self, folder: Path) -> None:
        """Write `news.parquet`, `news.safetensors` and full texts, if there are any, into an existing folder."""
        columns: dict[str, Any] = {
            "news_id": self.news_ids,
            "title": self.titles,
            "category": self.categories,
        }
        if self.num_clicks is not None:
            columns["num_clicks"] = self.num_clicks
        if self.biases is not None:
            columns["bias"] = self.biases
        if self.abstracts is not None:
            columns["abstract"] = self.abstracts
        if self.published is not None:
            columns["published"] = pa.array(self.published, pa.float64())
        facts = {ADDS_BIASES: "true"} if self.adds_biases else None
        pq.write_table(pa.table(columns).replace_schema_metadata(facts), folder / "news.parquet")
        if self.bodies is not None and self.bodies.resolve() != (folder / BODIES).resolve():
            shutil.copyfile(self.bodies, folder / BODIES)
        texts = {f"texts.{name}": column for name, column in _columns(self.texts).items()}
        save_file({"embeddings": self.embeddings_VD.contiguous(), **texts}, folder / "news.safetensors")


def load_catalogue(folder: Path) -> Catalogue:
    """Load what `Catalogue.save` wrote."""
    try:
        table = pq.ParquetFile(folder / "news.parquet").read()  # read_table would import pandas
        tensors = load_file(folder / "news.safetensors")
    except FileNotFoundError as error:
        raise InputError(f"{folder}: holds no news embeddings; finish the training first") from error
    return Catalogue(
        news_ids=table["news_id"].to_pylist(),
        titles=table["title"].to_pylist(),
        categories=table["category"].to_pylist(),
        embeddings_VD=tensors.pop("embeddings"),
        num_clicks=table["num_clicks"].to_pylist() if "num_clicks" in table.column_names else None,
        biases=table["bias"].to_pylist() if "bias" in table.column_names else None,
        adds_biases=ADDS_BIASES.encode() in (table.schema.metadata or {}),
        abstracts=table["abstract"].to_pylist() if "abstract" in table.column_names else None,
        published=table["published"].to_pylist() if "published" in table.column_names else None,
        bodies=folder / BODIES if (folder / BODIES).exists() else None,
        texts=_texts({name.removeprefix("texts."): column for name, column in tensors.items()}),
    )


def _texts(columns: dict[str, Any]) -> PackedNews | None:
    return PackedNews(**columns) if columns else None


def _columns(news: PackedNews | None) -> dict[str, Tensor]:
    if news is None:
        return {}
    columns = {field.name: getattr(news, field.name) for field in fields(news)}
    return {name: column.contiguous() for name, column in columns.items() if isinstance(column, Tensor)}
