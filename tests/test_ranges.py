"""Every numeric setting has a range, and no number outside it is accepted."""

import dataclasses
import importlib
import math
import typing

import pytest

from speedyfeed.batching.batches import BatchConfig
from speedyfeed.batching.cache_plan import CacheConfig
from speedyfeed.cli.main import COMMANDS, main
from speedyfeed.errors import InputError
from speedyfeed.models.config import NewsEncoderConfig, UserConfig, WordConfig
from speedyfeed.preparation.config import EngineConfig, PrepareConfig
from speedyfeed.sweep.config import SweepConfig
from speedyfeed.synthetic import SynthConfig
from speedyfeed.training.config import LossConfig, ProfileConfig, TrainConfig

CONFIGS = (
    BatchConfig,
    CacheConfig,
    EngineConfig,
    LossConfig,
    NewsEncoderConfig,
    PrepareConfig,
    ProfileConfig,
    SweepConfig,
    SynthConfig,
    TrainConfig,
    UserConfig,
    WordConfig,
)
FIELDS = [
    (config, field.name)
    for config in CONFIGS
    for field in dataclasses.fields(config)
    if field.type in (int, float, int | None, float | None)
]


def parts_of(config):
    """A dataclass and those of its fields, at any depth."""
    yield config
    for kind in typing.get_type_hints(config).values():
        if dataclasses.is_dataclass(kind):
            yield from parts_of(kind)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_numeric_option_has_a_range(command):
    for config in parts_of(importlib.import_module(f"speedyfeed.cli.{command}").Arguments):
        for field in dataclasses.fields(config):
            if field.type in (int, float, int | None, float | None):
                assert field.name in config.RANGES, f"{config.__name__}.{field.name}"


def test_every_numeric_field_has_a_range():
    assert len(FIELDS) > 50
    for config, name in FIELDS:
        low, high = config.RANGES[name]
        assert math.isfinite(low)
        assert math.isfinite(high)


@pytest.mark.parametrize(("config", "name"), FIELDS, ids=[f"{config.__name__}.{name}" for config, name in FIELDS])
def test_numbers_outside_the_range_are_refused(config, name):
    low, high = config.RANGES[name]
    wrong = [value for value in (-1, 0, 10**12) if not low <= value <= high]
    for value in (*wrong, math.nan, math.inf, -math.inf):
        with pytest.raises(InputError, match=rf"^{name} {value}: expected a number from"):
            config(**{name: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--lr", "-1"),
        ("--lr", "nan"),
        ("--clip", "-1"),
        ("--minutes", "nan"),
        ("--validations", "-1"),
        ("--seed", "-1"),
        ("--seed", "99999999999"),
        ("--news.dim", "-1"),
        ("--words.heads", "0"),
        ("--news.frozen-gigabytes", "-1"),
    ],
)
def test_a_wrong_option_is_found_before_anything_is_loaded(option, value, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", str(tmp_path / "no store"), str(tmp_path / "run"), option, value])
    assert stop.value.code == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "expected a number from" in line
