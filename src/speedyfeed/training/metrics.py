"""Metrics of a run: lines of JSON, which trackers get too."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self, TextIO

from speedyfeed.batching.batches import Batch
from speedyfeed.errors import InputError
from speedyfeed.files import parse_json, read_json
from speedyfeed.training.distributed.process_group import Traffic
from speedyfeed.training.run_folder import RUN
from speedyfeed.training.trackers import DEFAULT, TrackedRun, Tracker, open_trackers

METRICS = "metrics.jsonl"
SECONDS_PER_LINE = 5.0


class Meter:
    """Sums over steps until a line of metrics is due."""

    def __init__(self) -> None:
        self._since = perf_counter()
        self._reset()

    def add(
        self, batch: Batch, *, clicks: float, loss: float, seconds: float, waited: float, traffic: Traffic
    ) -> None:
        """Add one step: the clicks it learned, its loss, its time, the part spent waiting, its communication."""
        self._steps += 1
        self._loss += loss
        self._seconds += seconds
        self._waited += waited
        self._communicated += traffic.seconds
        self._bytes += traffic.num_bytes
        self._clicks += clicks
        self._full += batch.is_full
        self._encoded += len(batch.encode_E)
        self._read += len(batch.cached_R)
        self._tokens += batch.num_tokens
        self._padded += batch.num_padded_tokens

    def is_due(self, *, last: bool) -> bool:
        """Whether there are steps to report and the last line is some seconds old, or this is the last one."""
        return self._steps > 0 and (last or perf_counter() - self._since >= SECONDS_PER_LINE)

    def values(self) -> dict[str, float]:
        """Means per step and rates per second since the last line."""
        values = {
            "loss": self._loss / self._steps,
            "step_seconds": self._seconds / self._steps,
            "clicks_per_second": self._clicks / self._seconds,
            "news_encoded_per_second": self._encoded / self._seconds,
            "tokens_per_second": self._tokens / self._seconds,
            "cache_hit_rate": self._read / max(1, self._read + self._encoded),
            "data_efficiency": self._tokens / self._padded if self._padded else 1.0,
            "wait_share": self._waited / self._seconds,
            "max_clicks_share": self._full / self._steps,
        }
        if self._bytes:
            values["communication_share"] = self._communicated / self._seconds
            values["communicated_bytes"] = self._bytes / self._steps
        return values

    def take(self) -> dict[str, float]:
        """Return `values` and start the sums anew."""
        values = self.values()
        self._since = perf_counter()
        self._reset()
        return values

    def note(self) -> str:
        """Short summary for a progress bar."""
        values = self.values()
        return (
            f"loss {values['loss']:.4f}  {values['clicks_per_second']:,.0f} clicks/s  "
            f"{values['news_encoded_per_second']:,.0f} news/s  hits {values['cache_hit_rate']:.0%}  "
            f"valid tokens {values['data_efficiency']:.0%}"
        )

    def _reset(self) -> None:
        self._steps = self._full = self._encoded = self._read = self._tokens = self._padded = 0
        self._clicks = self._loss = self._seconds = self._waited = self._communicated = self._bytes = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationPoint:
    """AUC of the validation sample at one moment of a run."""

    auc: float
    clicks: float
    """Number of clicks learned from until then, each by its weight in the loss."""
    seconds: float
    """Seconds of training until then."""

    def metrics(self) -> dict[str, float]:
        """Values for a line of metrics."""
        return {"validation_auc": self.auc, "clicks": self.clicks, "seconds": self.seconds}


class MetricsFile:
    """Appends to `metrics.jsonl` in the run folder, and to trackers."""

    def __init__(
        self,
        folder: Path | None,
        *,
        resume_step: int,
        trackers: Sequence[str] = (DEFAULT,),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Open the files, without lines that a resumed run repeats: those after `resume_step`.

        A `resume_step` of -1 is a new run. Without a folder nothing is written. `settings` are those of the run,
        which trackers record.
        """
        self._file: TextIO | None = None
        self._trackers: list[Tracker] = []
        self.initial_auc: float | None = None
        """Validation AUC of the initial model, once it is known."""
        if folder is None:
            return
        path = folder / METRICS
        lines = list(zip(_lines(path), _values(path), strict=True))
        retained = [line for line, values in lines if values["step"] <= resume_step]
        initial = [values["validation_auc"] for _, values in lines if _is_initial(values)] if retained else []
        self.initial_auc = initial[0] if initial else None
        partial = path.with_suffix(".partial")
        partial.write_text("".join(retained), encoding="utf-8")
        os.replace(partial, path)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 closed by __exit__
        tracked = TrackedRun(folder=folder, settings=settings or {}, resume_step=resume_step)
        self._trackers = open_trackers(trackers, tracked)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Write one line to disk, before the next step."""
        if self._file is None or not values:
            return
        self._append(step, values)
        for tracker in self._trackers:
            tracker.log(step, values)

    def write_initial(self, point: ValidationPoint, step: int) -> None:
        """Write the validation of the initial model, measured after `step`, as a line of step 0.

        Trackers, some of which allow no step before the last one, get it as `initial_validation_auc`.
        """
        self.initial_auc = point.auc
        self._append(0, point.metrics())
        for tracker in self._trackers:
            tracker.log(step, {"initial_validation_auc": point.auc})

    def _append(self, step: int, values: Mapping[str, float]) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"step": step, **values}) + "\n")
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        for tracker in self._trackers:
            tracker.close()


def load_rates(folder: Path) -> dict[str, float]:
    """Mean of every rate in the second half of the lines of a run, when the cache is warm."""
    lines = [line for line in _values(folder / METRICS) if "clicks_per_second" in line]
    late = lines[len(lines) // 2 :]
    names = [name for name in lines[0] if all(name in line for line in late)] if lines else []
    return {name: sum(line[name] for line in late) / len(late) for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedModel:
    """Which model of a run was saved: the best by its validations."""

    clicks: float
    """Clicks learned from until then; 0 for the initial model."""

    @property
    def kind(self) -> str:
        """One word for the saved model: initial or trained."""
        return "trained" if self.clicks else "initial"

    def __str__(self) -> str:
        if not self.clicks:
            return "the initial model"
        return f"the model after {self.clicks:,.0f} clicks"


def load_saved(folder: Path) -> SavedModel | None:
    """Which model of a run was saved, as its metrics have it; None for a run without validations.

    None also for a recommender alone, without a run. A run whose metrics are gone, or say something else than
    run.json, is refused.
    """
    facts = read_json(folder / RUN) if (folder / RUN).exists() else None
    if facts is not None and not (folder / METRICS).exists():
        raise _without_metrics(folder, "is missing")
    best = find_best(folder)
    found = None if best is None else (best.auc, best.clicks)
    if facts and facts.get("best_clicks") is not None and found != (facts["best_auc"], facts["best_clicks"]):
        raise _without_metrics(folder, "is damaged")
    return None if best is None else SavedModel(clicks=best.clicks)


def find_best(folder: Path) -> ValidationPoint | None:
    """The best validation of a run in its metrics, the first of equals; None for a run without validations."""
    points = [line for line in _values(folder / METRICS) if "validation_auc" in line]
    if not points:
        return None
    best = max(points, key=lambda line: line["validation_auc"])
    return ValidationPoint(auc=best["validation_auc"], clicks=best["clicks"], seconds=best["seconds"])


def _without_metrics(folder: Path, problem: str) -> InputError:
    return InputError(
        f"{folder / METRICS}: {problem}, and says which model of the run was saved; put it back from a copy, or "
        f"give the model alone, {folder / 'model'}"
    )


def load_history(folder: Path) -> list[dict[str, float]]:
    """Every line of the metrics of a run: its step and whatever was measured then."""
    return _values(folder / METRICS)


def _is_initial(values: Mapping[str, float]) -> bool:
    return values["step"] == 0 and "validation_auc" in values


def _values(path: Path) -> list[dict[str, float]]:
    """Values of every complete line of a file of metrics."""
    found: list[dict[str, float]] = []
    for number, line in enumerate(_lines(path), 1):
        try:
            values = parse_json(line)
            float(values["step"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}:{number}: is damaged; remove this line and resume") from error
        found.append(values)
    return found


def _lines(path: Path) -> list[str]:
    """Complete lines of a file, without one that a kill cut short."""
    if not path.exists():
        return []
    text = path.read_text("utf-8", errors="replace")
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
