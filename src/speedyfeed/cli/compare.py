"""Which of two runs ranks better, and whether the data can tell: a paired bootstrap per metric.

Each run is given the texts as its own store would hold them, so runs prepared differently can be compared.

Example: speedyfeed compare runs/zero-shot runs/first
"""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from tyro.conf import Positional, arg

from speedyfeed.errors import InputError
from speedyfeed.evaluation.bootstrap import Estimate, compare, verdict
from speedyfeed.evaluation.evaluate import Report
from speedyfeed.progress import progress_bars
from speedyfeed.run_evaluation import SEED, EvaluationData, evaluate_run, open_data, open_finished_run


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    run_a: Annotated[Positional[Path], arg(metavar="RUN_A")]
    """Folder of a finished run."""
    run_b: Annotated[Positional[Path], arg(metavar="RUN_B")]
    """Folder of another."""
    data: Annotated[Positional[Path | None], arg(metavar="STORE|LOGS")] = None
    """Prepared or raw logs; by default the store each run was trained on."""
    split: Literal["dev", "test"] | None = None
    """By default dev, or test where there is no dev."""
    format: str | None = None
    """Format of raw logs; recognised when not given."""
    exact: bool = False
    """Search all news exactly, without an index."""
    json: bool = False
    """Print the figures as one JSON object."""


def run(arguments: Arguments) -> None:
    runs = [open_finished_run(path) for path in (arguments.run_a, arguments.run_b)]
    with progress_bars() as report, ExitStack() as stack:
        both = [
            stack.enter_context(
                open_data(one, arguments.data, split=arguments.split, format=arguments.format, report=report)
            )
            for one in runs
        ]
        if not _is_same(*both):  # told before anything is encoded
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


def _is_same(a: EvaluationData, b: EvaluationData) -> bool:
    """Whether both hold the same impressions, with the same clicks."""
    return a.load_ids().equals(b.load_ids()) and np.array_equal(a.impressions.labels, b.impressions.labels)


def _figures(a: Report, b: Report, found: dict[str, Estimate]) -> dict[str, object]:
    """Both runs, B - A as fractions with intervals, and the verdict on each metric."""
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


def _print_table(arguments: Arguments, a: Report, b: Report, found: dict[str, Estimate]) -> None:
    print(f"A {arguments.run_a}\nB {arguments.run_b}\n{a.overall.num_impressions:,} impressions scored\n")
    print(f"{'metric':12}{'A':>8}{'B':>8}   verdict (B - A)")
    for name, estimate in found.items():
        means = "".join(
            f"{one.overall.metrics[name].mean:8.4f}" if estimate.num_impressions else f"{'-':>8}" for one in (a, b)
        )
        print(f"{name:12}{means}   {verdict(estimate)}")
