"""Measure ranking and recall of a trained recommender on a split, overall and by group.

Raw logs are prepared on the fly, like the training data of the run.

Example: speedyfeed evaluate runs/first later-logs/ --split test --json
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from speedyfeed.errors import InputError
from speedyfeed.evaluation.metrics import Pool
from speedyfeed.files import require_new_file
from speedyfeed.progress import progress_bars
from speedyfeed.retrieval.rerank import RerankConfig

if TYPE_CHECKING:
    from speedyfeed.evaluation.bootstrap import Estimate
    from speedyfeed.evaluation.evaluate import Report
    from speedyfeed.finished_run import EvaluationData
    from speedyfeed.sweep.references import Reference

GROUP_METRICS = ("auc", "mrr", "ndcg@5", "ndcg@10", "recall@200")
TARGET_METRICS = ("hit@10", "pool_ndcg@10", "recall@20", "recall@50", "recall@200")
"""Metrics of the groups in logs of clicks without impressions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a finished run, or name of a recommender on the Hub."""
    data: Annotated[Positional[Path | None], arg(metavar="STORE|LOGS")] = None
    """Store or raw logs to evaluate on; by default the store that the run was trained on."""
    split: Literal["dev", "test", "valid"] | None = None
    """Split to evaluate on; by default dev, or test where there is no dev. valid is the validation split, by which
    training chose the model: figures on it are optimistic."""
    format: str | None = None
    """Format of raw logs, such as mind or ebnerd; detected by default."""
    pool: Pool | None = None
    """Articles among which recall searches, without those of the user's history: candidates of the whole split, of
    the day of the impression, or all articles. By default day, but all in a log without impressions."""
    exact: bool = False
    """Search all articles exactly for recall, without an HNSW index."""
    popularity: Literal["auto", "on", "off"] = "auto"
    """Add the learned popularity of an article to its score: on, off, or auto, which adds it for runs trained on a
    log without impressions. Articles that training did not see have none."""
    references: bool = False
    """Also measure rankings that read no text: chance, popularity in the train split, title length, and category
    counts of the history. Needs a store with a train split."""
    beyond: bool = False
    """Also measure lists of ten articles beyond accuracy, in the order of their scores and re-ranked as a feed:
    diversity, calibration error, sections (distinct categories), coverage, novelty; at most 1000 impressions."""
    rerank: RerankConfig = field(default_factory=RerankConfig)
    per_impression: Path | None = None
    """Parquet file to write all metrics of each impression to; by default none is written."""
    json: bool = False
    """Print the metrics as one JSON object."""


def run(arguments: Arguments) -> None:
    from speedyfeed.encoding.ids import known_user_share
    from speedyfeed.finished_run import open_data, open_finished_run
    from speedyfeed.run_evaluation import evaluate_feeds, evaluate_run, write_per_impression
    from speedyfeed.training.metrics import load_saved

    if arguments.per_impression is not None:
        require_new_file(arguments.per_impression)
    finished = open_finished_run(arguments.run)
    saved = load_saved(arguments.run)
    with (
        progress_bars() as progress,
        open_data(
            finished, arguments.data, split=arguments.split, format=arguments.format, report=progress
        ) as data,
    ):
        report = evaluate_run(
            finished,
            data,
            pool=arguments.pool,
            exact=arguments.exact,
            popularity={"auto": None, "on": True, "off": False}[arguments.popularity],
            report=progress,
        )
        if arguments.per_impression:
            write_per_impression(arguments.per_impression, data, report)
        split = data.split
        beyond: Mapping[str, Mapping[str, float]] = {}
        if arguments.beyond:
            beyond = evaluate_feeds(finished, data, arguments.rerank, pool=arguments.pool, report=progress)
        references = _measure_references(data, pool=arguments.pool) if arguments.references else []
        known_users = None
        if finished.model.config.user.uses_user_ids:
            known_users = known_user_share(data.store, split, finished.model.id_maps)
    if arguments.json:
        found: dict[str, object] = {} if saved is None else {"saved": asdict(saved)}
        if known_users is not None:
            found["known_users"] = known_users
        if references:
            found["references"] = {one.name: one.metrics for one in references}
        if beyond:
            found["beyond"] = {name: _numbers(one) for name, one in beyond.items()}
        print(json.dumps(report.to_json() | {"split": split} | found))
    else:
        if saved is not None:
            print(f"{arguments.run}: saved is {saved}")
        if known_users is not None:
            print(
                f"{known_users:.1%} of the impressions are of users that training knew; others share one embedding"
            )
        print_report(report, split)
        print_references(references)
        print_beyond(beyond)


def print_report(report: "Report", split: str) -> None:
    """Print what was skipped, every metric with its interval, then the groups."""
    overall = report.overall
    are_targets = "hit@10" in overall.metrics
    if are_targets:
        repeated = overall.num_in_history
        rest = f"; left out: {repeated:,} on articles that the user had clicked before" if repeated else ""
        print(f"{split}: {overall.num_impressions:,} clicks, each to be found among all articles{rest}")
    else:
        print(
            f"{split}: {overall.num_impressions:,} impressions scored; not scored: {overall.num_one_class:,} with "
            f"all or no candidates clicked, {overall.num_unlabelled:,} unlabelled"
        )
    if split == "valid":
        print("training chose the model by this split: expect less on dev and test")
    if report.num_candidates_without_text:
        print(f"candidates without text, ranked last: {report.num_candidates_without_text:,}")
    if not any(found.num_impressions for found in overall.metrics.values()):
        print("no impression has a label: write their ranking with speedyfeed rank")
        return
    print(f"\n{'metric':12}{'mean':>8}   95% interval")
    for name, found in overall.metrics.items():
        if found.num_impressions:
            print(f"{name:12}{_mean(found)}   {found.ci95[0]:.4f} to {found.ci95[1]:.4f}")
    print(f"\nrecall{_pools(report)}\nby {_index(report)}")
    shown = TARGET_METRICS if are_targets else GROUP_METRICS
    print(
        f"\n{'group':21}{'clicks' if are_targets else 'impressions':>12}" + "".join(f"{one:>13}" for one in shown)
    )
    for name, group in report.groups.items():
        means = "".join(f"{_mean(group.metrics[metric]):>13}" for metric in shown)
        print(f"{name.replace('_', ' '):21}{group.num_impressions:>12,}{means}")
    if "news_seen" not in report.groups:
        print("(no groups by articles seen in training: the store of the run is gone)")


def print_references(references: "Sequence[Reference]") -> None:
    """Print the metrics of rankings that read no text, a line each."""
    if references:
        print(f"\n{'reference':33}" + "".join(f"{name:>13}" for name in GROUP_METRICS))
    for one in references:
        means = [one.metrics.get(metric) for metric in GROUP_METRICS]
        print(f"{one.name:33}" + "".join(f"{'-' if mean is None else f'{mean:.4f}':>13}" for mean in means))


def print_beyond(beyond: Mapping[str, Mapping[str, float]]) -> None:
    """Print what lists are like in the order of the scores and as a feed, a line for each figure."""
    if not beyond:
        return
    print(f"\n{'lists of ten':20}{'by score':>10}{'feed':>10}   on {beyond['feed']['impressions']:,} impressions")
    for name in beyond["feed"]:
        if name != "impressions":
            figures = [beyond[kind][name] for kind in ("scores", "feed")]
            print(f"{name:20}" + "".join(f"{'-' if math.isnan(one) else f'{one:.4f}':>10}" for one in figures))


def _numbers(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in figures.items()}


def _measure_references(data: "EvaluationData", *, pool: Pool | None) -> "list[Reference]":
    from speedyfeed.sweep.references import find_references

    if "train" not in data.store.splits:
        raise InputError(
            f"{data.store.path}: found no train split, expected one for --references; leave that option out"
        )
    return find_references(data.store, None, data.split, pool=pool).references


def _mean(found: "Estimate") -> str:
    return f"{found.mean:8.4f}" if found.num_impressions else f"{'-':>8}"


def _pools(report: "Report") -> str:
    found = report.retrieved
    size = f"{found.news_per_pool:,.0f}"
    if found.searches_all:
        return f"@K and hit@K: the first K of all {size} articles, less those the user has clicked before"
    if found.num_pools == 1:
        return f"@K: the first K of the {size} candidates, less those the user has clicked before"
    return (
        f"@K: the first K of the candidates of the day, {size} on average over {found.num_pools:,} days, less "
        "those the user has clicked before"
    )


def _index(report: "Report") -> str:
    facts = report.retrieved.index_parameters
    if facts["kind"] == "exact":
        return "exact search"
    graphs = "1 HNSW graph" if facts["graphs"] == 1 else f"{facts['graphs']} HNSW graphs"
    return (
        f"{graphs} (connectivity {facts['connectivity']}, expansion {facts['expansion_add']} "
        f"and {facts['expansion_search']}), found {report.retrieved.index_recall:.1%} of exact search"
    )
