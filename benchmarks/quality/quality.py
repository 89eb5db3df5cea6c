"""The main table: baselines and speed-mini, each trained with the same seeds for the same time.

The variants are NPA, NAML, LSTUR and NRMS, each conventional and fast, and speed-mini, speed-half and speed-last;
also the controls, speed-mini with its language model frozen and MiniLM untrained. The best validated model of each
run is evaluated on all impressions of dev. Rankings that read no text are shown beside them, and the best possible
AUC of a synthetic newsroom. Stopped or killed, the same command continues.

Example: python -m benchmarks quality --store store/ --runs nrms speed-mini --seeds 0 1 2 --minutes 1
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.newsroom import WORK
from speedyfeed.data.store import open_store
from speedyfeed.errors import InputError
from speedyfeed.recipes import conventional, recipe
from speedyfeed.sweep.config import SweepConfig
from speedyfeed.sweep.figures import draw_sweep
from speedyfeed.sweep.table import Sweep, run_sweep, sweep_table
from speedyfeed.sweep.variants import frozen, is_encoder_name, with_encoder
from speedyfeed.training.config import RunConfig

WIDTH, HEADS = 64, 4
"""Width and heads of the baselines: narrow enough to learn from some ten thousand clicks in a minute."""
HISTORY = 20
"""Clicks of a history in the conventional workflow; with 100, few steps fit into a minute."""
SLOWEST = "plm-conventional"


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityConfig(SweepConfig):
    """Which variants are trained on which store, and for how long."""

    store: Path
    """Folder of the prepared store, with a dev split."""
    runs: tuple[str, ...] = ()
    """Variants by name, or by the first part of it: npa, naml, lstur, nrms (each -conventional and -fast),
    speed-mini, speed-half, speed-last, or an encoder (a folder, ORG/NAME, half:NAME), which is trained as
    speed-mini is. By default all but plm-conventional."""
    work: Path = WORK / "quality"
    """Folder for the runs, which a later call continues."""


def main_variants() -> Mapping[str, RunConfig]:
    """All runs of the table by name, with settings for some minutes on a CPU."""
    naml, lstur = _narrow(recipe("naml")), _narrow(recipe("lstur"), dim=2 * WIDTH)
    nrms, npa = (_narrow(recipe(name), lr=3e-3) for name in ("nrms", "npa"))
    return {
        "npa-conventional": _conventional(npa),
        "npa-fast": _fast_in_place(npa),
        "naml-conventional": _conventional(naml),
        "naml-fast": naml,
        "lstur-conventional": _conventional(lstur),
        "lstur-fast": lstur,
        "nrms-conventional": _conventional(nrms),
        "nrms-fast": nrms,
        "speed-mini": recipe("speed-mini"),
        "speed-half": recipe("speed-half"),
        "speed-last": recipe("speed-last"),
        "speed-mini-frozen": frozen(recipe("speed-mini")),
        "zero-shot": recipe("zero-shot"),
        SLOWEST: _conventional(recipe(SLOWEST)),
    }


def measure(config: QualityConfig) -> Sweep:
    """Train and evaluate all trials that are not finished yet."""
    return run_sweep(choose(config.runs), config, open_store(config.store), config.work)


def choose(names: Sequence[str]) -> dict[str, RunConfig]:
    """The variants with these names, in the order of the table; all but the slowest without names."""
    every = main_variants()
    if not names:
        return {name: run for name, run in every.items() if name != SLOWEST}
    chosen = {known: run for known, run in every.items() if any(_is_meant(known, name, every) for name in names)}
    for name in names:
        if any(_is_meant(known, name, every) for known in every):
            continue
        if not is_encoder_name(name):
            raise InputError(f"no run {name!r}: choose {', '.join(every)}, or an encoder's folder or Hub name")
        chosen[name] = with_encoder(name)
    return chosen


def _is_meant(known: str, name: str, every: Mapping[str, RunConfig]) -> bool:
    """Whether a name is that of a variant or, where no variant has it, the first part of its name."""
    return known == name or (name not in every and known.startswith(f"{name}-"))


def tables(figures: Sweep) -> str:
    """Means and deviations, a row per variant."""
    return sweep_table(figures)


def draw(figures: Sweep, folder: Path) -> list[Path]:
    """Draw how AUC rises with time and with clicks, and where every run ends."""
    return draw_sweep(figures, folder, "quality")


def _narrow(run: RunConfig, *, dim: int = WIDTH, lr: float | None = None) -> RunConfig:
    """A baseline with few parameters; those without category embeddings learn faster with a larger `lr`.

    Category embeddings are as wide as in the recipe: narrower ones cost up to three points of AUC. LSTUR
    concatenates them to its text, which is as wide as that of the others.
    """
    return replace(
        run,
        news=replace(run.news, dim=dim),
        words=replace(run.words, width=WIDTH, heads=HEADS, query_width=WIDTH),
        user=replace(run.user, heads=HEADS, query_width=WIDTH),
        train=replace(run.train, lr=lr or run.train.lr),
    )


def _conventional(run: RunConfig) -> RunConfig:
    """The run without accelerations, with short histories."""
    run = conventional(run)
    return replace(run, batch=replace(run.batch, max_clicks=HISTORY))


def _fast_in_place(run: RunConfig) -> RunConfig:
    """All accelerations but those that share articles among users, which a user-dependent embedding forbids."""
    return replace(run, batch=replace(run.batch, autoregressive=True, size=0, mode="packed", token_budget=4096))
