"""SpeedyFeed: news recommenders with a pretrained language model in the loop, trained end to end, fast.

    import speedyfeed

    speedyfeed.synthesize("logs")                             # or your own click logs
    speedyfeed.prepare("logs", "store")
    speedyfeed.train("store", "runs/first", "speed-mini")
    speedyfeed.evaluate("runs/first").overall.metrics["auc"]
    speedyfeed.Recommender.from_pretrained("runs/first").recommend(["N1", "N2"], k=5)

Names are imported when they are first used, so that `import speedyfeed` takes milliseconds.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from speedyfeed.api import evaluate, open_store, prepare, synthesize, train
    from speedyfeed.errors import InputError
    from speedyfeed.evaluation.evaluate import Report
    from speedyfeed.preparation.config import PrepareConfig
    from speedyfeed.pretrained import Recommendation, Recommender
    from speedyfeed.recipes import recipe
    from speedyfeed.retrieval.hnsw import HnswIndex
    from speedyfeed.retrieval.index import ExactIndex
    from speedyfeed.synthetic.newsroom import SynthConfig
    from speedyfeed.training.config import RunConfig

__version__ = "0.3.0"

__all__ = [
    "ExactIndex",
    "HnswIndex",
    "InputError",
    "PrepareConfig",
    "Recommendation",
    "Recommender",
    "Report",
    "RunConfig",
    "SynthConfig",
    "evaluate",
    "open_store",
    "prepare",
    "recipe",
    "synthesize",
    "train",
]

_HOMES = {
    "ExactIndex": "retrieval.index",
    "HnswIndex": "retrieval.hnsw",
    "InputError": "errors",
    "PrepareConfig": "preparation.config",
    "Recommendation": "pretrained",
    "Recommender": "pretrained",
    "Report": "evaluation.evaluate",
    "RunConfig": "training.config",
    "SynthConfig": "synthetic.newsroom",
    "evaluate": "api",
    "open_store": "api",
    "prepare": "api",
    "recipe": "recipes",
    "synthesize": "api",
    "train": "api",
}

# oneDNN, which multiplies bf16 matrices on CPUs, caches up to 1,024 kernels, one per shape. Every batch has
# another number of tokens, so memory would grow for hours. oneDNN reads the limit when torch is loaded.
for _name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_name, "256")


if not TYPE_CHECKING:  # a type checker would take every name for one that exists

    def __getattr__(name: str) -> Any:
        """Import a public name from its module when it is first used (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module 'speedyfeed' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"speedyfeed.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
