"""A small prepared newsroom, made once for all training tests."""

import pytest

from speedyfeed.batching.batches import BatchConfig
from speedyfeed.batching.cache_plan import CacheConfig
from speedyfeed.models.config import NewsEncoderConfig
from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.synthetic import SynthConfig, synthesize
from speedyfeed.training.config import LossConfig, RunConfig, TrainConfig


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("newsroom")
    synthesize(folder / "logs", SynthConfig(users=300, news=800, days=10))
    return prepare(folder / "logs", folder / "store", PrepareConfig()).store


@pytest.fixture
def config(tiny_encoder):
    """A run of some seconds."""
    return RunConfig(
        news=NewsEncoderConfig(encoder=str(tiny_encoder), dim=16),
        batch=BatchConfig(token_budget=1500, max_clicks=30, negatives=1),
        loss=LossConfig(fallback_negatives_weight=0.05, in_batch=0.0),
        cache=CacheConfig(gamma=5, beta=0.1, draw="step"),
        train=TrainConfig(
            epochs=1,
            encoder_lr=1e-3,
            lr=3e-3,
            precision="fp32",
            validations=2,
            validation_impressions=50,
            checkpoint_every=4,
        ),
    )
