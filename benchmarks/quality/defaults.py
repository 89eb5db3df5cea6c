"""What each default of training is worth in AUC: the default run, with one setting at a time changed to another.

A default stays only if its change loses, so the table of this benchmark is the reason of each. With --frozen the
language model is frozen, which makes a run some five times as fast, and the changes that concern it are left out.
AUC is compared with that of the default, paired by impression.

Example: python -m benchmarks defaults --store store/ --frozen --seeds 0 1 2 --epochs 3
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.newsroom import WORK
from benchmarks.quality.ablation import DEFAULT, AblationFigures, draw, rows_of, tables
from speedyfeed.data.store import open_store
from speedyfeed.errors import InputError
from speedyfeed.recipes import recipe
from speedyfeed.sweep.config import Limits
from speedyfeed.sweep.trials import Variant, run_trials
from speedyfeed.sweep.variants import frozen
from speedyfeed.training.config import RunConfig

__all__ = ["DefaultsConfig", "draw", "measure", "tables"]

Change = Callable[[RunConfig], RunConfig]

CHANGES: Mapping[str, Change] = {
    "mean-of-clicks": lambda run: replace(run, user=replace(run.user, sharpness=0.0)),
    "no-recency": lambda run: replace(run, user=replace(run.user, recency=False)),
    "no-categories": lambda run: replace(run, news=replace(run.news, categories=False)),
    "no-article-bias": lambda run: replace(run, loss=replace(run.loss, article_bias=False)),
    "no-in-batch-loss": lambda run: replace(run, loss=replace(run.loss, in_batch=0.0)),
    "no-popularity-correction": lambda run: replace(run, loss=replace(run.loss, popularity_correction=0.0)),
    "biases-from-log-clicks": lambda run: replace(run, loss=replace(run.loss, bias_start=1.0)),
    "temperature-0.05": lambda run: replace(run, loss=replace(run.loss, temperature=0.05)),
    "temperature-0.4": lambda run: replace(run, loss=replace(run.loss, temperature=0.4)),
    "one-negative": lambda run: replace(run, batch=replace(run.batch, negatives=1)),
    "twenty-negatives": lambda run: replace(run, batch=replace(run.batch, negatives=20)),
    "random-init": lambda run: replace(run, train=replace(run.train, init="random")),
    "constant-rates": lambda run: replace(run, train=replace(run.train, schedule="constant")),
    "no-weight-decay": lambda run: replace(run, train=replace(run.train, weight_decay=0.0)),
    "no-clipping": lambda run: replace(run, train=replace(run.train, clip=0.0)),
    "head-rate-1e-4": lambda run: replace(run, train=replace(run.train, lr=1e-4)),
    "head-rate-4e-3": lambda run: replace(run, train=replace(run.train, lr=4e-3)),
}
"""Changes of single settings, by the name of the variant."""
ENCODER_CHANGES: Mapping[str, Change] = {
    "encoder-rate-5e-6": lambda run: replace(run, train=replace(run.train, encoder_lr=5e-6)),
    "encoder-rate-5e-5": lambda run: replace(run, train=replace(run.train, encoder_lr=5e-5)),
    "no-deferred-gradients": lambda run: replace(run, cache=replace(run.cache, gradients=False)),
    "no-centering": lambda run: replace(run, cache=replace(run.cache, center=False)),
    "one-draw-per-step": lambda run: replace(run, cache=replace(run.cache, draw="step")),
    "slow-lookup-rate": lambda run: replace(run, cache=replace(run.cache, beta=2e-3)),
    "dropout": lambda run: replace(run, news=replace(run.news, hidden_dropout=0.1)),
}
"""Changes that matter only while the language model is trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultsConfig(Limits):
    """Which run has its settings changed one at a time, and for how long it trains."""

    store: Path
    """Folder of the prepared store, with a dev split."""
    frozen: bool = False
    """Train with the language model frozen."""
    only: tuple[str, ...] = ()
    """Names of the changes to measure, as in the table; by default all of them."""
    seeds: tuple[int, ...] = (0,)
    """Seeds that every variant is trained with."""
    work: Path = WORK / "defaults"
    """Folder for the runs, which a later call continues."""
    recipe: str = "speed-mini"
    """Recipe of the default run."""
    encoder: str | None = None
    """Pretrained news encoder to use instead of the recipe's."""


def variants_of(config: DefaultsConfig) -> dict[str, RunConfig]:
    """The default run, and the runs with one setting changed."""
    default = config.limit(recipe(config.recipe))
    default = replace(default, news=replace(default.news, encoder=config.encoder or default.news.encoder))
    changes = dict(CHANGES) if config.frozen else {**CHANGES, **ENCODER_CHANGES}
    if config.frozen:
        default = frozen(default)
    if unknown := sorted(set(config.only) - set(changes)):
        raise InputError(f"--only {unknown[0]!r}: no such change; choose {', '.join(changes)}")
    chosen = {name: change(default) for name, change in changes.items() if name in (config.only or changes)}
    return {DEFAULT: default, **chosen}


def measure(config: DefaultsConfig) -> AblationFigures:
    """Train and evaluate all trials that are not finished yet."""
    variants = [Variant(name=name, config=run) for name, run in variants_of(config).items()]
    trials = run_trials(variants, config.seeds, open_store(config.store), config.work)
    return AblationFigures(rows=rows_of(trials, config.seeds, config.work), left_out=[])
