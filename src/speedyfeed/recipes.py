"""Recipes: settings of whole runs by name."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from speedyfeed.batching.batches import BatchConfig
from speedyfeed.batching.cache_plan import CacheConfig
from speedyfeed.errors import InputError
from speedyfeed.models.config import NewsEncoderConfig, UserConfig
from speedyfeed.training.config import LossConfig, RunConfig, TrainConfig

CONVENTIONAL_SIZE = 32
"""Clicks per update of the conventional workflow, as in Microsoft Recommenders."""
TOP_LAYERS = 2
"""Number of layers that speed-top trains."""
PAPER_CACHE = CacheConfig(beta=2e-3, draw="step", gradients=False)
"""Cache of the paper: one lookup draw per step, a lookup rate that grows slowly, and no gradient of cache hits."""


def speed_mini() -> RunConfig:
    """MiniLM trained end to end with all accelerations, as Speed-Mini in the paper; the default."""
    return RunConfig()


def speed_unilm() -> RunConfig:
    """UniLMv2 trained end to end; give its checkpoint with --encoder unilm:PATH."""
    return replace(
        speed_mini(),
        news=NewsEncoderConfig(encoder="unilm:unilm2-base"),
        train=TrainConfig(encoder_lr=8e-6),
    )


def speed_top() -> RunConfig:
    """MiniLM of which the last two layers are trained; the layers below run once per article.

    About a third of the cost of training all layers, and half a point of AUC less on MIND titles. Cached rows
    drift less, so the learning rate of the language model can be higher.
    """
    return replace(
        speed_mini(), news=NewsEncoderConfig(train_layers=TOP_LAYERS), train=TrainConfig(encoder_lr=5e-5)
    )


def speed_half() -> RunConfig:
    """MiniLM with half the layers and half the width, initialized from the full model."""
    return replace(speed_mini(), news=NewsEncoderConfig(encoder="half:minilm"))


def speed_last() -> RunConfig:
    """MiniLM of which the last layer alone is trained; the layers below run once per article."""
    return replace(speed_mini(), news=NewsEncoderConfig(encoder="last:minilm"))


def paper_unilm() -> RunConfig:
    """UniLMv2 trained as the paper says, Speed-UniLM; give its checkpoint with --encoder unilm:PATH.

    Meant for a store prepared likewise: prepare --encoder unilm:PATH --refine long --body-paragraphs 1.
    """
    return _as_in_the_paper("unilm:unilm2-base")


def paper_mini() -> RunConfig:
    """MiniLM trained as the paper says, Speed-Mini; minilm is a sentence encoder, others go by --encoder PATH.

    Meant for a store prepared likewise: prepare --refine long --body-paragraphs 1.
    """
    return _as_in_the_paper("minilm")


def paper_half() -> RunConfig:
    """UniLMv2 of half the layers and half the width, trained as the paper says, Speed-Half."""
    return _as_in_the_paper("half:unilm:unilm2-base")


def paper_last() -> RunConfig:
    """UniLMv2 of which the last layer is trained as the paper says, Speed-Last; all layers run at every step."""
    run = _as_in_the_paper("last:unilm:unilm2-base")
    return replace(run, news=replace(run.news, frozen_gigabytes=0.0))


def zero_shot() -> RunConfig:
    """Untrained MiniLM, the baseline of training: means of tokens and of clicks, embeddings of unit norm.

    Meant for a store of plain titles: prepare --refine none --fields title.
    """
    return RunConfig(
        news=NewsEncoderConfig(dim=0, categories=False),
        user=UserConfig(sharpness=0.0),
        batch=BatchConfig(negatives=1),
        cache=PAPER_CACHE,
        train=TrainConfig(steps=0, precision="fp32", validations=0),
    )


def tiny() -> RunConfig:
    """Small batches and a narrow embedding of MiniLM, for trying things out."""
    return replace(
        speed_mini(),
        news=NewsEncoderConfig(dim=32),
        batch=BatchConfig(token_budget=512, max_clicks=20, negatives=1),
        cache=PAPER_CACHE,
        train=TrainConfig(epochs=1, precision="fp32", validations=4, validation_impressions=100),
    )


def plm_conventional() -> RunConfig:
    """MiniLM trained end to end without any acceleration, to compare speed-mini with."""
    return conventional(speed_mini())


def nrms() -> RunConfig:
    """Self-attention over words, then over clicks (Wu et al., 2019)."""
    return _from_words("nrms", UserConfig(name="self-attention", heads=16), temperature=0.1)


def naml() -> RunConfig:
    """Convolutions over title, abstract and body, and attention over these views (Wu et al., 2019)."""
    return _from_words("naml", UserConfig(name="additive"))


def lstur() -> RunConfig:
    """Words and categories, and a GRU over clicks that starts from the user embedding (An et al., 2019)."""
    return _from_words("lstur", UserConfig(name="lstur-ini"))


def npa() -> RunConfig:
    """Attention over words and clicks with a query of each user (Wu et al., 2019); conventional only."""
    return conventional(_from_words("npa", UserConfig(name="npa", id_dropout=0.1), temperature=0.1))


def conventional(run: RunConfig) -> RunConfig:
    """Conventional twin of a run, without any acceleration: one click per instance, padding, no sharing, no cache.

    Histories are padded or cut to 100 articles, and articles to the longest text, as one sequence. A language
    model takes the clicks of an update one by one: all at once would take 80 GB.
    """
    size = CONVENTIONAL_SIZE if run.recommender.uses_words else 1
    return replace(
        run,
        news=replace(run.news, segments=False),
        loss=replace(run.loss, in_batch=None),
        batch=replace(run.batch, central=False, autoregressive=False, size=size, mode="padded"),
        cache=replace(run.cache, gamma=0),
        train=replace(run.train, accumulate=CONVENTIONAL_SIZE // size),
    )


def fast(run: RunConfig) -> RunConfig:
    """Fast twin of a run, with all accelerations at their defaults."""
    usual = BatchConfig()
    return replace(
        run,
        news=replace(run.news, segments=True),
        batch=replace(
            run.batch,
            central=usual.central,
            autoregressive=usual.autoregressive,
            size=usual.size,
            mode=usual.mode,
        ),
        cache=replace(run.cache, gamma=CacheConfig().gamma),
        train=replace(run.train, accumulate=TrainConfig().accumulate),
    )


def in_workflow(run: RunConfig, name: str | None) -> RunConfig:
    """Run in the workflow of that name; unchanged for None."""
    if name is None:
        return run
    if name not in WORKFLOWS:
        raise InputError(f"no workflow {name!r}: choose {' or '.join(WORKFLOWS)}")
    return WORKFLOWS[name](run)


def _as_in_the_paper(encoder: str) -> RunConfig:
    """Method and training configuration of the paper; docs/paper.md lists what differs all the same."""
    return RunConfig(
        news=NewsEncoderConfig(
            encoder=encoder,
            dim=0,
            normalize=False,
            categories=False,
            hidden_dropout=None,
            attention_dropout=None,
        ),
        user=UserConfig(name="attentive", recency=False, sharpness=0.0),
        loss=LossConfig(temperature=1.0, fallback_negatives_weight=0.0, in_batch=0.0, article_bias=False),
        batch=BatchConfig(
            max_clicks=100,
            max_clicks_per_batch=16_384,
            negatives=1,
            first_click=False,
            mode="padded",
            num_buckets=2,
            token_budget=39_800,
        ),
        cache=CacheConfig(gamma=20, beta=2e-3, draw="step", gradients=False),
        train=TrainConfig(
            encoder_lr=8e-6, lr=1e-4, schedule="constant", weight_decay=0.0, clip=0.0, init="random"
        ),
    )


def _from_words(encoder: str, user: UserConfig, *, temperature: float = 1.0) -> RunConfig:
    """Word encoder trained from scratch in the fast workflow, with four negatives as in Microsoft Recommenders."""
    return replace(
        speed_mini(),
        news=NewsEncoderConfig(encoder=encoder, normalize=False),
        user=user,
        loss=LossConfig(fallback_negatives_weight=0.0, temperature=temperature),
        batch=BatchConfig(token_budget=2048, negatives=4),
        cache=PAPER_CACHE,
        train=TrainConfig(lr=1e-3, precision="fp32"),
    )


WORKFLOWS: Mapping[str, Callable[[RunConfig], RunConfig]] = {"fast": fast, "conventional": conventional}

RECIPES: Mapping[str, Callable[[], RunConfig]] = {
    "speed-mini": speed_mini,
    "speed-top": speed_top,
    "speed-unilm": speed_unilm,
    "speed-half": speed_half,
    "speed-last": speed_last,
    "paper-unilm": paper_unilm,
    "paper-mini": paper_mini,
    "paper-half": paper_half,
    "paper-last": paper_last,
    "plm-conventional": plm_conventional,
    "nrms": nrms,
    "naml": naml,
    "lstur": lstur,
    "npa": npa,
    "zero-shot": zero_shot,
    "tiny": tiny,
}


def recipe(name: str, **changes: Any) -> RunConfig:
    """Settings of the recipe called `name`, with changes named as on the command line of `train`.

    Settings of a part are given as a dictionary.

    >>> recipe("speed-mini", epochs=1, encoder_lr=0, user={"name": "gru"})
    """
    if name not in RECIPES:
        raise InputError(f"no recipe {name!r}: choose {', '.join(RECIPES)}")
    run = RECIPES[name]()
    parts = {part.name: getattr(run, part.name) for part in fields(RunConfig)}
    for setting, value in changes.items():
        if setting in parts and not isinstance(value, Mapping):
            parts[setting] = value
        elif setting in parts:
            parts[setting] = _changed(parts[setting], setting, value)
        else:
            owner = "news" if setting == "encoder" else "train"
            parts[owner] = _changed(parts[owner], "", {setting: value})
    return RunConfig(**parts)


def _changed(part: Any, name: str, changes: Mapping[str, Any]) -> Any:
    known = [setting.name for setting in fields(part)]
    if unknown := [setting for setting in changes if setting not in known]:
        more = "" if name else f", or encoder, or a part: {', '.join(one.name for one in fields(RunConfig))}"
        raise InputError(f"recipe: no setting {name and name + '.'}{unknown[0]}: choose {', '.join(known)}{more}")
    return replace(part, **changes)
