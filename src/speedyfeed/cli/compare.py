"""Test whether one of two runs ranks better: a paired bootstrap of the difference in each metric.

Intervals are over users, since the impressions of one user are alike. With --more-a and --more-b, runs of the same
two recipes with other seeds, they are over users and seeds. Texts are prepared for each run as in its training, so
that runs on differently prepared stores can be compared.

Example: speedyfeed compare runs/a0 runs/b0 --more-a runs/a1 --more-b runs/b1
"""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from speedyfeed.errors import InputError
from speedyfeed.progress import progress_bars

if TYPE_CHECKING:
    from speedyfeed.evaluation.bootstrap import Estimate
    from speedyfeed.finished_run import EvaluationData
    from speedyfeed.training.metrics import SavedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    run_a: Annotated[Positional[Path], arg(metavar="RUN_A")]
    """Folder of the first finished run, A."""
    run_b: Annotated[Positional[Path], arg(metavar="RUN_B")]
    """Folder of the second finished run, B."""
    data: Annotated[Positional[Path | None], arg(metavar="STORE|LOGS")] = None
    """Store or raw logs to compare on; by default the store that each run was trained on."""
    more_a: tuple[Path, ...] = ()
    """Runs like A with other seeds."""
    more_b: tuple[Path, ...] = ()
    """Runs like B with other seeds."""
    split: Literal["dev", "test"] | None = None
    """Split to evaluate on; by default dev, or test where there is no dev."""
    format: str | None = None
    """Format of raw logs, such as mind or ebnerd; detected by default."""
    exact: bool = False
    """Search all articles exactly for recall, without an HNSW index."""
    json: bool = False
    """Print metrics, differences and verdicts as one JSON object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """A or B: its runs, and its metrics over users and seeds."""

    saved: "Mapping[Path, SavedModel | None]"
    """Which model of each run was saved; None where it had no validations, or is no folder of a run."""
    metrics: "Mapping[str, Estimate]"
    num_impressions: int

    def to_json(self) -> dict[str, Any]:
        """Means and intervals by metric, and which model of each run was saved."""
        return {
            **_numbers(self.metrics),
            "impressions": self.num_impressions,
            "runs": {str(path): None if saved is None else str(saved) for path, saved in self.saved.items()},
        }


def run(arguments: Arguments) -> None:
    import numpy as np

    from speedyfeed.evaluation.bootstrap import Bootstrap
    from speedyfeed.finished_run import open_data, open_finished_run
    from speedyfeed.run_evaluation import SEED, evaluate_run
    from speedyfeed.training.metrics import load_saved

    sides = ([arguments.run_a, *arguments.more_a], [arguments.run_b, *arguments.more_b])
    runs = {path: open_finished_run(path) for side in sides for path in side}
    saved = {path: load_saved(path) for path in runs}
    with progress_bars() as report, ExitStack() as stack:
        data = {
            path: stack.enter_context(
                open_data(one, arguments.data, split=arguments.split, format=arguments.format, report=report)
            )
            for path, one in runs.items()
        }
        first = data[arguments.run_a]
        for path, other in data.items():
            if not _is_same(first, other):  # checked before anything is encoded
                raise InputError(
                    f"{arguments.run_a} and {path} were trained on stores of different logs; "
                    "give STORE or LOGS to compare them on"
                )
        reports = {
            path: evaluate_run(one, data[path], exact=arguments.exact, report=report) for path, one in runs.items()
        }
        drawn = Bootstrap(first.number_users(), np.random.default_rng(SEED))
    names = reports[arguments.run_a].values
    values = [{name: np.stack([reports[path].values[name] for path in side]) for name in names} for side in sides]
    a, b = (
        Side(
            saved={path: saved[path] for path in side},
            metrics={name: drawn.estimate(values) for name, values in found.items()},
            num_impressions=reports[side[0]].overall.num_impressions,
        )
        for side, found in zip(sides, values, strict=True)
    )
    difference = {name: drawn.compare(values[0][name], values[1][name]) for name in names}
    if arguments.json:
        print(json.dumps(_figures(a, b, difference), allow_nan=False))
    else:
        _print_table(a, b, difference)


def _is_same(a: "EvaluationData", b: "EvaluationData") -> bool:
    """Whether both splits have the same impressions and clicks."""
    import numpy as np

    return a.load_ids().equals(b.load_ids()) and np.array_equal(a.impressions.labels, b.impressions.labels)


def _numbers(found: "Mapping[str, Estimate]") -> dict[str, Any]:
    """Means and `<key>_ci95` pairs; null where no impression has a value."""
    numbers: dict[str, Any] = {}
    for name, estimate in found.items():
        is_there = estimate.num_impressions > 0
        numbers[name] = estimate.mean if is_there else None
        numbers[f"{name}_ci95"] = list(estimate.ci95) if is_there else [None, None]
    return numbers


def _figures(a: Side, b: Side, difference: "Mapping[str, Estimate]") -> dict[str, Any]:
    """Metrics of both sides, B - A with intervals, and a verdict on each metric, for JSON."""
    from speedyfeed.evaluation.bootstrap import verdict

    return {
        "a": a.to_json(),
        "b": b.to_json(),
        "difference": _numbers(difference),
        "verdict": {name: verdict(estimate) for name, estimate in difference.items()},
    }


def _print_table(a: Side, b: Side, difference: "Mapping[str, Estimate]") -> None:
    from speedyfeed.evaluation.bootstrap import verdict

    for letter, side in (("A", a), ("B", b)):
        for path, saved in side.saved.items():
            print(f"{letter} {path}" + ("" if saved is None else f": saved is {saved}"))
    is_over_seeds = min(len(a.saved), len(b.saved)) > 1
    print(
        f"{a.num_impressions:,} impressions scored; intervals over users"
        + (" and seeds" if is_over_seeds else ": one seed each says nothing of other seeds")
        + "\n"
    )
    print(f"{'metric':12}{'A':>8}{'B':>8}   verdict (B - A)")
    for name, estimate in difference.items():
        means = "".join(
            f"{side.metrics[name].mean:8.4f}" if estimate.num_impressions else f"{'-':>8}" for side in (a, b)
        )
        print(f"{name:12}{means}   {verdict(estimate)}")
