"""Whole runs by name."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from speedyfeed.batching.batches import BatchConfig
from speedyfeed.errors import InputError
from speedyfeed.models.news import NewsEncoderConfig
from speedyfeed.training.run import RunConfig, TrainConfig


def speedy_mini() -> RunConfig:
    """MiniLM trained end to end, as Speed-Mini in the paper."""
    return RunConfig(batch=BatchConfig(negatives=4, cache_draw="news", beta=0.05))


def speedy_unilm() -> RunConfig:
    """A full UniLMv2 trained end to end; give its checkpoint with --news.encoder unilm:PATH."""
    return replace(
        speedy_mini(),
        news=NewsEncoderConfig(encoder="unilm:unilm2-base"),
        train=TrainConfig(encoder_lr=8e-6, lr=1e-4),
    )


def speedy_half() -> RunConfig:
    """Half the layers and half the width of the encoder, weights inherited."""
    return replace(speedy_mini(), news=NewsEncoderConfig(encoder="half:minilm"))


def speedy_last() -> RunConfig:
    """Only the last layer of the encoder trains; what lies below is encoded once per news."""
    return replace(speedy_mini(), news=NewsEncoderConfig(encoder="last:minilm"))


def zero_shot() -> RunConfig:
    """The pretrained encoder untouched: tokens and clicks averaged, embeddings of length one, not a step taken.

    What training must beat. Meant for a store of plain titles: prepare --refine none --fields title.
    """
    return RunConfig(
        news=NewsEncoderConfig(dim=0),
        train=TrainConfig(steps=0, precision="fp32", validations=0),
    )


def tiny() -> RunConfig:
    """Small steps of a narrow model, for trying things out."""
    return replace(
        speedy_mini(),
        news=NewsEncoderConfig(dim=32),
        batch=BatchConfig(token_budget=512, max_clicks=20),
        train=TrainConfig(epochs=1, precision="fp32", validation_impressions=100),
    )


RECIPES: Mapping[str, Callable[[], RunConfig]] = {
    "speedy-mini": speedy_mini,
    "speedy-unilm": speedy_unilm,
    "speedy-half": speedy_half,
    "speedy-last": speedy_last,
    "zero-shot": zero_shot,
    "tiny": tiny,
}


def recipe(name: str) -> RunConfig:
    """The run called `name`."""
    if name not in RECIPES:
        raise InputError(f"no recipe {name!r}: choose {', '.join(RECIPES)}")
    return RECIPES[name]()
