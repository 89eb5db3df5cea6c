"""Figures of a synthetic newsroom beside those the paper reports of its log."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from speedyfeed.synthetic.audience import Visits
from speedyfeed.synthetic.pages import Pages, auc_by_impression, score_pages
from speedyfeed.synthetic.world import World

PAPER_SHARES = {1: 59.53, 3: 77.65, 5: 84.82, 10: 92.47, 20: 97.36, 30: 98.97}
"""Share of clicks (%) on the top x% of articles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One property of a log, as found and as the paper reports it."""

    name: str
    found: float
    paper: float | None
    """Value in the paper; None where it reports none."""


@dataclass(kw_only=True, slots=True)
class Tally:
    """Counts that accumulate while a newsroom is written."""

    world: World
    clicks: NDArray[np.int64]
    """Number of clicks of each article."""
    in_train: NDArray[np.bool_]
    """Whether each article occurs in train: in a history, clicked or skipped."""
    in_dev: NDArray[np.bool_]
    """Whether each article occurs in dev."""
    in_test: NDArray[np.bool_]
    """Whether each article occurs in test."""
    dev_candidates: NDArray[np.int64]
    """How often each article is shown in dev."""
    num_users: int = 0
    num_above_100: int = 0
    num_above_150: int = 0
    num_train_impressions: int = 0
    num_dev_impressions: int = 0
    num_test_impressions: int = 0
    num_logged_clicks: int = 0
    num_candidates: int = 0
    num_words: dict[str, int] = field(default_factory=dict)
    """Number of words of each field, over all articles."""
    num_written: int = 0
    num_aucs: int = 0
    best_sum: float = 0.0
    popularity_sum: float = 0.0

    @classmethod
    def of(cls, world: World) -> "Tally":
        """An empty tally of a newsroom."""
        num_news = len(world.born)
        return cls(
            world=world,
            clicks=np.zeros(num_news, np.int64),
            in_train=np.zeros(num_news, bool),
            in_dev=np.zeros(num_news, bool),
            in_test=np.zeros(num_news, bool),
            dev_candidates=np.zeros(num_news, np.int64),
        )

    def add_users(self, visits: Visits, train: Pages, dev: Pages, test: Pages) -> None:
        """Count a block of users: all their visits, and their part of each split."""
        self.clicks += np.bincount(visits.clicked, minlength=len(self.clicks))
        by_user = np.bincount(visits.user[visits.clicked_visit], minlength=len(visits.tastes))
        self.num_users += len(by_user)
        self.num_above_100 += int((by_user > 100).sum())
        self.num_above_150 += int((by_user > 150).sum())

        for occurs, pages in ((self.in_train, train), (self.in_dev, dev), (self.in_test, test)):
            occurs[pages.candidates.values] = True
            occurs[pages.history.values] = True
            self.num_logged_clicks += int(pages.is_clicked.sum())
            self.num_candidates += len(pages.is_clicked)
        self.dev_candidates += np.bincount(dev.candidates.values, minlength=len(self.clicks))
        self.num_train_impressions += len(train.user)
        self.num_dev_impressions += len(dev.user)
        self.num_test_impressions += len(test.user)
        best, popularity = score_pages(self.world, dev, visits.tastes)
        aucs = auc_by_impression(dev, best)
        self.num_aucs += len(aucs)
        self.best_sum += float(aucs.sum())
        self.popularity_sum += float(auc_by_impression(dev, popularity).sum())

    def add_news(self, news: pa.RecordBatch) -> None:
        """Count the words of a batch of articles."""
        self.num_written += news.num_rows
        for name in ("title", "abstract", "body"):
            spaces = pc.count_substring(news[name], " ")
            count = pc.sum(pc.if_else(pc.equal(news[name], ""), 0, pc.add(spaces, 1))).as_py()
            self.num_words[name] = self.num_words.get(name, 0) + count

    @property
    def best_auc(self) -> float:
        """Mean AUC on dev of the true preferences."""
        return self.best_sum / self.num_aucs

    @property
    def popularity_auc(self) -> float:
        """Mean AUC on dev of popularity and freshness alone."""
        return self.popularity_sum / self.num_aucs

    def figures(self) -> tuple[Figure, ...]:
        """All figures by which the log can be compared with the paper's."""
        ranked = np.sort(self.clicks)[::-1]
        num_clicks = int(ranked.sum())
        impressions = self.num_train_impressions + self.num_dev_impressions + self.num_test_impressions
        unseen = self.dev_candidates[~self.in_train].sum() / self.dev_candidates.sum()
        per_news = {name: num_words / self.num_written for name, num_words in self.num_words.items()}
        has_bodies = per_news["body"] > 0
        found: list[tuple[str, float, float | None]] = [
            (f"clicks on the top {top}% of news (%)", 100 * _share(ranked, top), paper)
            for top, paper in PAPER_SHARES.items()
        ]
        found += [
            ("clicks per user", num_clicks / self.num_users, 15.27),
            ("users with more than 100 clicks (%)", 100 * self.num_above_100 / self.num_users, 3.26),
            ("users with more than 150 clicks (%)", 100 * self.num_above_150 / self.num_users, 1.44),
            ("clicks per impression", self.num_logged_clicks / impressions, 72_093_567 / 41_481_252),
            ("candidates per impression", self.num_candidates / impressions, None),
            ("words per title", per_news["title"], None),
            ("words per abstract", per_news["abstract"], None),
            ("words per article", sum(per_news.values()), 659.64 if has_bodies else None),
            ("dev candidates unseen in train (%)", 100 * float(unseen), None),
        ]
        return tuple(Figure(name=name, found=value, paper=paper) for name, value, paper in found)


def _share(ranked: NDArray[np.int64], percent: int) -> float:
    top = round(len(ranked) * percent / 100)
    return float(ranked[:top].sum() / ranked.sum())
