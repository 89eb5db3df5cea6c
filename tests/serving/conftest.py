"""Small runs, and a service that is searched both exactly and with graphs."""

import pytest

from speedyfeed.serving.live_catalogue import GraphConfig
from speedyfeed.serving.service import Service
from tests.serving.small_run import save_run


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="session")
def another_run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("another"), seed=1)


@pytest.fixture(params=["exact", "graphs"])
def graphs(request):
    """Config of exact search, and of search with graphs."""
    return GraphConfig(graphs_from=0 if request.param == "graphs" else 1_000_000)


@pytest.fixture
def service(run, tmp_path, graphs):
    service = Service(run, tmp_path / "data", graphs)
    service.open()
    yield service
    service.close()
