"""All benchmarks by name: the module that measures, and what it measures."""

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Where a benchmark lives, and its line in `python -m benchmarks --help`."""

    module: str
    about: str


BENCHMARKS = {
    "speedup": Benchmark("speed.speedup", "speed-up over the conventional workflow, and each technique's factor"),
    "time-to-quality": Benchmark("speed.time_to_quality", "validation AUC against training time, all techniques"),
    "growth": Benchmark("speed.growth", "cost of a click and speed-up as users and articles grow together"),
    "step": Benchmark("speed.step", "where the time of a training step goes"),
    "data-efficiency": Benchmark("speed.data_efficiency", "share of the encoded tokens that is text, not padding"),
    "encoder": Benchmark("speed.encoder", "packed encoder against the stock padded one, and share of peak FLOPS"),
    "bus": Benchmark("speed.bus", "time and memory of an encoder step against the number of segments"),
    "prepare": Benchmark("speed.prepare", "time and memory to prepare a store, at three sizes"),
    "loader": Benchmark("speed.loader", "speed of the loader against that of the trainer, at three sizes"),
    "recall": Benchmark("serving.recall", "HNSW search against exact search, at three sizes"),
    "serve": Benchmark("serving.serve", "latency of the HTTP service at a steady rate, alone and while ingesting"),
    "quality": Benchmark("quality.quality", "the main table: baselines and Speed-Mini, over seeds"),
    "cache": Benchmark("quality.cache", "AUC, time, hit rate and drift for several values of gamma"),
    "ablation": Benchmark("quality.ablation", "AUC without bus, without cache and without refinement"),
    "defaults": Benchmark(
        "quality.defaults", "AUC with one default of training at a time changed to another choice"
    ),
    "id-models": Benchmark("quality.id_models", "models of item ids, which read no text, on a shop's log"),
    "ranks": Benchmark("speed.ranks", "cost of a step on 1, 2 and 4 ranks, and a model of many devices"),
    "kills": Benchmark("robustness.kills", "runs in which a rank is killed: cost, and whether anything is lost"),
    "faults": Benchmark("robustness.faults", "damaged files of stores and runs: refused in one line, or harmless"),
    "fuzz": Benchmark("robustness.fuzz", "mutated log files: read, or refused in one line"),
    "schema": Benchmark("robustness.schema", "requests made from the OpenAPI document, against a real server"),
    "sudden": Benchmark("robustness.sudden", "every command killed at random moments: nothing lost or half-made"),
    "all": Benchmark(
        "report", "all of these but time-to-quality, growth, defaults, ranks and robustness, as one report"
    ),
}


def load_benchmark(name: str) -> Any:
    """Import the module of a benchmark."""
    return importlib.import_module(f"benchmarks.{BENCHMARKS[name].module}")
