"""HNSW search against exact search: queries per second, and the share of exact results that HNSW finds.

Article embeddings are drawn as stories within topics, with a decaying spectrum and optionally log-normal norms,
which is harder than independent vectors; users lie between one and four articles. --million adds a size of a
million articles, which takes minutes and 4 GB.

Example: python -m benchmarks recall --json
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import time_in_turn
from speedyfeed.drawing import ACCENT, DARK, from_zero, new_figure, plain_numbers, save
from speedyfeed.markdown import table
from speedyfeed.retrieval.hnsw import HnswIndex
from speedyfeed.retrieval.index import Embeddings, ExactIndex, Index, overlap

TOPICS = 200
NEWS_PER_STORY = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallBenchmarkConfig:
    """How many articles and users are searched."""

    sizes: tuple[int, ...] = (10_000, 30_000, 100_000)
    """Numbers of articles to search, one measurement each."""
    million: bool = False
    """Measure a million articles as well."""
    width: int = 256
    """Width of the drawn embeddings."""
    spread: float = 0.0
    """Standard deviation of the logarithm of the norms; 0 is unit norm, titles in pretrained MiniLM have 0.14."""
    queries: int = 500
    """Users whose results are searched in one call."""
    alone: int = 50
    """Users whose results are searched one by one."""
    k: int = 200
    """Articles to find for each user."""
    rounds: int = 3
    """Timed rounds over all searches; the best one counts."""
    seed: int = 0
    """Seed of the embeddings of articles and users."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallRow:
    """Both kinds of search over the same articles."""

    news: int
    recall: float
    """Share of the k results of exact search that HNSW finds."""
    exact_queries_per_second: float
    hnsw_queries_per_second: float
    exact_alone_seconds: float
    hnsw_alone_seconds: float
    build_seconds: float
    parameters: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallFigures:
    rows: list[RecallRow]


def measure(config: RecallBenchmarkConfig) -> RecallFigures:
    """Measure all sizes."""
    sizes = (*config.sizes, 1_000_000) if config.million else config.sizes
    return RecallFigures(rows=[measure_size(config, num_news) for num_news in sizes])


def measure_size(config: RecallBenchmarkConfig, num_news: int) -> RecallRow:
    """Build both indexes, compare their results, and time them in turn."""
    rng = np.random.default_rng(config.seed)
    news_VD = draw_news(num_news, config.width, config.spread, rng)
    users_BD = draw_users(news_VD, config.queries, rng)
    ids = np.arange(1, num_news + 1)
    exact = ExactIndex.build(ids, news_VD)
    started = time.perf_counter()
    hnsw = HnswIndex.build(ids, news_VD)
    build_seconds = time.perf_counter() - started

    def search_alone(index: Index) -> None:
        for row in range(min(config.alone, len(users_BD))):
            index.search(users_BD[row : row + 1], config.k)

    best = time_in_turn(
        {
            "exact": lambda: exact.search(users_BD, config.k),
            "hnsw": lambda: hnsw.search(users_BD, config.k),
            "exact alone": lambda: search_alone(exact),
            "hnsw alone": lambda: search_alone(hnsw),
        },
        rounds=config.rounds,
    )
    alone = min(config.alone, len(users_BD))
    return RecallRow(
        news=num_news,
        recall=overlap(hnsw.search(users_BD, config.k), exact.search(users_BD, config.k)),
        exact_queries_per_second=len(users_BD) / best["exact"],
        hnsw_queries_per_second=len(users_BD) / best["hnsw"],
        exact_alone_seconds=best["exact alone"] / alone,
        hnsw_alone_seconds=best["hnsw alone"] / alone,
        build_seconds=build_seconds,
        parameters=hnsw.parameters,
    )


def draw_news(num_news: int, width: int, spread: float, rng: np.random.Generator) -> Embeddings:
    """Embeddings as they might be learned: similar within a story, less so within a topic."""
    num_stories = max(1, num_news // NEWS_PER_STORY)
    topics = rng.standard_normal((TOPICS, width), dtype=np.float32)
    share = np.arange(1, TOPICS + 1) ** -0.8
    topic_of = rng.choice(TOPICS, num_stories, p=share / share.sum())
    stories = topics[topic_of] + 0.8 * rng.standard_normal((num_stories, width), dtype=np.float32)
    news_VD = stories[rng.integers(0, num_stories, num_news)]
    news_VD += 0.5 * rng.standard_normal((num_news, width), dtype=np.float32)
    news_VD *= np.arange(1, width + 1, dtype=np.float32) ** -0.5
    lengths = np.exp(spread * rng.standard_normal((num_news, 1)))
    news_VD *= (lengths / np.linalg.norm(news_VD, axis=1, keepdims=True)).astype(np.float32)
    return news_VD


def draw_users(news_VD: Embeddings, num_users: int, rng: np.random.Generator) -> Embeddings:
    """Embeddings of users, each a mixture of one to four articles with noise."""
    users_BD = np.empty((num_users, news_VD.shape[1]), np.float32)
    for row in range(num_users):
        liked = news_VD[rng.integers(0, len(news_VD), rng.integers(1, 5))]
        between = rng.dirichlet(np.ones(len(liked))) @ liked
        noise = rng.standard_normal(between.shape)
        users_BD[row] = between + 0.3 * np.linalg.norm(between) * noise / np.linalg.norm(noise)
    return users_BD


def tables(figures: RecallFigures) -> str:
    """A row per size."""
    return table(
        [
            "news",
            "recall",
            "graphs",
            "build s",
            "exact queries/s",
            "HNSW queries/s",
            "exact alone ms",
            "HNSW alone ms",
        ],
        [
            [
                f"{row.news:,}",
                f"{row.recall:.4f}",
                str(row.parameters["graphs"]),
                f"{row.build_seconds:.1f}",
                f"{row.exact_queries_per_second:,.0f}",
                f"{row.hnsw_queries_per_second:,.0f}",
                f"{1e3 * row.exact_alone_seconds:.1f}",
                f"{1e3 * row.hnsw_alone_seconds:.1f}",
            ]
            for row in figures.rows
        ],
    )


def draw(figures: RecallFigures, folder: Path) -> list[Path]:
    """Draw queries per second against the number of articles."""
    figure, ax = new_figure("Queries per second, many users at once")
    news = [row.news for row in figures.rows]
    ax.plot(news, [row.hnsw_queries_per_second for row in figures.rows], "o-", color=DARK, label="HNSW")
    ax.plot(news, [row.exact_queries_per_second for row in figures.rows], "s--", color=ACCENT, label="exact")
    for row in figures.rows:
        point = (row.news, row.hnsw_queries_per_second)
        ax.annotate(f"recall {row.recall:.3f}", point, xytext=(0, 14), textcoords="offset points", ha="center")
    ax.set_xscale("log")
    plain_numbers(ax.xaxis, news)
    ax.margins(x=0.12)
    from_zero(
        ax,
        [row.hnsw_queries_per_second for row in figures.rows]
        + [row.exact_queries_per_second for row in figures.rows],
    )
    ax.set_xlabel("articles to search, log scale")
    ax.set_ylabel("queries per second")
    ax.legend(loc="lower left")
    return [save(figure, folder / "recall.png")]
