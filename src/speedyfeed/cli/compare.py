"""Test whether one of two runs ranks better: a paired bootstrap of the difference in each metric.

Texts are prepared for each run as in its training, so that runs on differently prepared stores can be compared.

Example: speedyfeed compare runs/zero-shot runs/first
"""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from speedyfeed.errors import InputError
from speedyfeed.progress import progress_bars

if TYPE_CHECKING:
    from speedyfeed.evaluation.bootstrap import Estimate
    from speedyfeed.evaluation.evaluate import Report
    from speedyfeed.run_evaluation import EvaluationData


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    run_a: Annotated[Positional[Path], arg(metavar="RUN_A")]
    """Folder of the first finished run, A."""
    run_b: Annotated[Positional[Path], arg(metavar="RUN_B")]
    """Folder of the second finished run, B."""
    data: Annotated[Positional[Path | None], arg(metavar="STORE|LOGS")] = None
    """Store or raw logs to compare on; by default the store that each run was trained on."""
    split: Literal["dev", "test"] | None = None
    """Split to evaluate on; by default dev, or test where there is no dev."""
    format: str | None = None
    """Format of raw logs, such as mind or ebnerd; detected by default."""
    exact: bool = False
    """Search all articles exactly for recall, without an HNSW index."""
    json: bool = False
    """Print metrics, differences and verdicts as one JSON object."""


def run(arguments: Arguments) -> None:
    import numpy as np

    from speedyfeed.evaluation.bootstrap import compare
    from speedyfeed.run_evaluation import SEED, evaluate_run, open_data, open_finished_run

    runs = [open_finished_run(path) for path in (arguments.run_a, arguments.run_b)]
    with progress_bars() as report, ExitStack() as stack:
        both = [
            stack.enter_context(
                open_data(one, arguments.data, split=arguments.split, format=arguments.format, report=report)
            )
            for one in runs
        ]
        if not _is_same(*both):  # checked before anything is encoded
            raise InputError(
                f"{arguments.run_a} and {arguments.run_b} were trained on stores of different logs; "
                "give STORE or LOGS to compare them on"
            )
        a, b = (
            evaluate_run(one, data, exact=arguments.exact, report=report)
            for one, data in zip(runs, both, strict=True)
        )
    rng = np.random.default_rng(SEED)
    found = {name: compare(values, b.values[name], rng) for name, values in a.values.items()}
    if arguments.json:
        print(json.dumps(_figures(a, b, found), allow_nan=False))
    else:
        _print_table(arguments, a, b, found)


def _is_same(a: "EvaluationData", b: "EvaluationData") -> bool:
    """Whether both splits have the same impressions and clicks."""
    import numpy as np

    return a.load_ids().equals(b.load_ids()) and np.array_equal(a.impressions.labels, b.impressions.labels)


def _figures(a: "Report", b: "Report", found: "dict[str, Estimate]") -> dict[str, object]:
    """Metrics of both runs, B - A with intervals, and a verdict on each metric, for JSON."""
    from speedyfeed.evaluation.bootstrap import verdict

    difference: dict[str, object] = {}
    for name, estimate in found.items():
        is_there = estimate.num_impressions > 0
        difference[name] = estimate.mean if is_there else None
        difference[f"{name}_ci95"] = list(estimate.ci95) if is_there else [None, None]
    return {
        "a": a.overall.to_json(),
        "b": b.overall.to_json(),
        "difference": difference,
        "verdict": {name: verdict(estimate) for name, estimate in found.items()},
    }


def _print_table(arguments: Arguments, a: "Report", b: "Report", found: "dict[str, Estimate]") -> None:
    from speedyfeed.evaluation.bootstrap import verdict

    print(f"A {arguments.run_a}\nB {arguments.run_b}\n{a.overall.num_impressions:,} impressions scored\n")
    print(f"{'metric':12}{'A':>8}{'B':>8}   verdict (B - A)")
    for name, estimate in found.items():
        means = "".join(
            f"{one.overall.metrics[name].mean:8.4f}" if estimate.num_impressions else f"{'-':>8}" for one in (a, b)
        )
        print(f"{name:12}{means}   {verdict(estimate)}")
