"""Settings of a sweep: which variants are trained with which seeds, and for how long."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

from speedyfeed.ranges import MANY, Ranges, check_ranges
from speedyfeed.training.config import RunConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How long every run trains and how often it is validated."""

    epochs: int = 1
    """Number of passes over all users after which a run ends."""
    steps: int | None = None
    """Maximum number of batches that a run trains on; by default unlimited."""
    minutes: float | None = None
    """Maximum training time of a run in minutes, validations not counted; by default unlimited."""
    validations: int = 4
    """Number of validations of a run after the initial one; the best validated model is evaluated. With 0, the
    last model is evaluated."""
    validation_impressions: int = 400
    """Number of impressions of the validation split by which the best model of a run is chosen."""
    precision: str = "fp32"
    """Precision of all runs: fp32, bf16, or auto, which measures both at every start."""

    RANGES: ClassVar[Ranges] = {
        "epochs": (1, MANY),
        "steps": (0, MANY),
        "minutes": (0.001, MANY),
        "validations": (0, MANY),
        "validation_impressions": (1, MANY),
    }
    """Smallest and largest value of each number."""

    def __post_init__(self) -> None:
        check_ranges(self)

    def limit(self, run: RunConfig) -> RunConfig:
        """The run within these limits; one without training steps, such as zero-shot, stays without."""
        limits = {field.name: getattr(self, field.name) for field in fields(Limits)}
        if run.train.steps == 0:
            limits |= {"steps": 0, "validations": 0}
        return replace(run, train=replace(run.train, max_checkpoints=1, **limits))


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepConfig(Limits):
    """Which variants are trained with which seeds, and for how long."""

    runs: tuple[str, ...] = ("speed-mini", "nrms", "naml", "lstur", "npa")
    """Variants to train: names of recipes, changed by what follows (nrms-conventional, npa-fast, nrms-minilm for
    words from MiniLM's word pieces, speed-mini-frozen for a frozen language model, speed-mini-no-gradients
    without deferred gradients), or of encoders (a folder, ORG/NAME, half:NAME), which are trained as
    speed-mini is."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds that every variant is trained with."""
    logs: Path | None = None
    """Raw logs that the store was prepared from, if they are of a synthetic newsroom: adds the best possible
    AUC."""
    minutes: float | None = 1.0
    """Training time of every run in minutes, validations not counted; None sets no limit."""
    epochs: int = 100
    """Maximum number of passes over all users; a run that reaches it ends before its minutes have passed."""
