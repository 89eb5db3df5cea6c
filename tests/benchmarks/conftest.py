"""A small prepared newsroom with bodies, made once for all benchmarks."""

import multiprocessing

import pytest

from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.synthetic import SynthConfig, synthesize


@pytest.fixture
def forked_pools(monkeypatch):
    """Pools whose processes are forked where the benchmark spawns them, which imports everything again."""
    get_context = multiprocessing.get_context
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: get_context("fork"))


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("newsroom")
    synthesize(folder / "logs", SynthConfig(shape="paper", users=220, news=600, days=10))
    return prepare(folder / "logs", folder / "store", PrepareConfig(fields=("title", "abstract"))).store
