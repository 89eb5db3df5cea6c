"""A small prepared newsroom with bodies, made once for all benchmarks."""

import pytest

from speedyfeed.preparation.prepare import PrepareConfig, prepare
from speedyfeed.synthetic import SynthConfig, synthesize


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("newsroom")
    synthesize(folder / "logs", SynthConfig(shape="paper", users=150, news=300, days=8))
    return prepare(folder / "logs", folder / "store", PrepareConfig(fields=("title", "abstract"))).store
