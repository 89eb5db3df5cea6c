"""Writes survive a restart; another run is swapped in as a whole; one process serves a folder."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from speedyfeed.errors import InputError
from speedyfeed.retrieval.rerank import PLAIN
from speedyfeed.serving import micro_batcher
from speedyfeed.serving import service as service_module
from speedyfeed.serving.journal import News
from speedyfeed.serving.micro_batcher import ServiceStopped
from speedyfeed.serving.query import Query
from speedyfeed.serving.service import ReloadInProgress, Service
from tests.serving.small_run import save_run

CUP = News(news_id="new", title="Cup winner parades through town", category="sport", published=1e9)


def ids(service, **query):
    return [one.news.news_id for one in service.feed.recommend(Query(k=100, rerank=PLAIN, **query)).ranked]


def test_added_articles_are_found_by_the_next_request(service):
    service.add([CUP])
    assert "new" in ids(service, history=["N1"])
    assert service.feed.recommend(Query(history=["new"])).unknown == []
    row = service.feed.catalogue.row("new")
    expected = service.feed.encode([(CUP.title, "", "", "")]).result()[0]
    assert service.feed.catalogue.embeddings([row])[0] == pytest.approx(expected, abs=1e-5)


def test_more_articles_than_a_batch_and_an_id_twice(service):
    news = [News(news_id=f"M{number % 70}", title=f"number {number}") for number in range(100)]
    service.add(news)
    assert len(service.feed.catalogue) == 12 + 70
    assert service.feed.catalogue.news(service.feed.catalogue.row("M5")).title == "number 75"
    assert service.feed.catalogue.news(service.feed.catalogue.row("M50")).title == "number 50"


def test_what_was_written_is_there_after_a_restart(run, tmp_path, graphs):
    first = Service(run, tmp_path, graphs)
    first.open()
    first.add([CUP, News(news_id="gone", title="Soon gone"), News(news_id="N2", title="N2 was changed")])
    assert first.remove("gone")
    assert first.remove("N7")
    assert not first.remove("N7")
    before = ids(first, history=["N1", "new"])
    first.close()
    second = Service(run, tmp_path, graphs)
    second.open()
    assert ids(second, history=["N1", "new"]) == before
    assert {"N7", "gone"}.isdisjoint(before)
    assert second.feed.catalogue.news(second.feed.catalogue.row("new")) == CUP
    assert second.feed.catalogue.news(second.feed.catalogue.row("N2")).title == "N2 was changed"
    second.close()


def test_a_restart_encodes_nothing_again(run, tmp_path, monkeypatch):
    first = Service(run, tmp_path)
    first.open()
    first.add([CUP])
    first.close()
    encoded = []
    monkeypatch.setattr(Service, "_encode_again", lambda self, entries, feed: encoded.extend(entries))
    second = Service(run, tmp_path)
    second.open()
    assert "new" in ids(second)
    assert encoded == []
    second.close()


def test_two_services_cannot_have_one_folder(service, run, tmp_path):
    with pytest.raises(InputError, match="another process serves from it"):
        Service(run, tmp_path / "data")


def test_another_run_is_swapped_in_with_all_that_was_written(run, another_run, tmp_path, graphs):
    link = tmp_path / "current"
    link.symlink_to(run)
    service = Service(link, tmp_path / "data", graphs)
    service.open()
    service.add([CUP])
    service.remove("N3")
    old = service.feed
    link.unlink()
    link.symlink_to(another_run)
    reloaded = service.reload()
    assert service.feed.fingerprint == reloaded.model != old.fingerprint
    assert "new" in ids(service)
    assert "N3" not in ids(service)
    expected = service.feed.encode([(CUP.title, "", "", "")]).result()[0]
    row = service.feed.catalogue.row("new")
    assert service.feed.catalogue.embeddings([row])[0] == pytest.approx(expected, abs=1e-5)
    assert (
        old.recommend(Query(history=["N1", ("a text", "", "", "")])).model == old.fingerprint
    )  # requests that hold it can finish
    assert len(list((tmp_path / "data").glob("graphs-*"))) == (1 if graphs.graphs_from == 0 else 0)
    service.close()


def test_requests_and_writes_during_a_swap_see_one_model_or_the_other(run, another_run, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(run)
    service = Service(link, tmp_path / "data")
    service.open()
    fingerprints = {service.feed.fingerprint}
    query = Query(history=["N1", ("Late goal", "", "", ""), "N9"], k=3)
    answers, written, stop, failures = [], [], threading.Event(), []

    def guarded(work):
        def loop():
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:
                failures.append(error)

        return loop

    def write():
        time.sleep(0.01)  # each reload encodes all of them
        news_id = f"W{len(written)}"
        service.add([News(news_id=news_id, title=f"title {news_id}")])
        written.append(news_id)

    def ask():
        time.sleep(0.01)  # each answer is checked in the end
        answers.append(service.feed.recommend(query))

    threads = [threading.Thread(target=guarded(work)) for work in (ask, write)]

    def an_answer_since(start):
        """Waits until the running model has answered: a swap may be quicker than a request."""
        model = service.feed.fingerprint
        while not failures and model not in {answer.model for answer in answers[start:]}:
            time.sleep(0.01)

    for thread in threads:
        thread.start()
    expected = {service.feed.fingerprint: service.feed}
    an_answer_since(0)
    for turn in range(4):
        link.unlink()
        link.symlink_to(another_run if turn % 2 == 0 else run)
        asked = len(answers)
        fingerprints.add(service.reload().model)
        expected[service.feed.fingerprint] = service.feed
        an_answer_since(asked)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(fingerprints) == 2
    assert {answer.model for answer in answers} == fingerprints
    base = {f"N{number}" for number in range(1, 13)}
    for answer in answers:
        feed = expected[answer.model]
        first, last = (feed.catalogue.embeddings([feed.catalogue.row(news_id)]) for news_id in ("N1", "N9"))
        between = feed.encode([("Late goal", "", "", "")]).result()
        users = feed._model.encode_clicks(np.concatenate([first, between, last]))
        for one in answer.ranked:
            if one.news.news_id in base:
                row = feed.catalogue.row(one.news.news_id)
                score = users.score_all(torch.from_numpy(feed.catalogue.embeddings([row])))
                assert one.score == pytest.approx(float(score), rel=1e-3, abs=1e-4)
    assert written
    assert all(service.feed.catalogue.row(news_id) is not None for news_id in written)
    rows = service.feed.catalogue.embeddings([service.feed.catalogue.row(news_id) for news_id in written])
    again = service.feed.encode([(f"title {news_id}", "", "", "") for news_id in written]).result()
    np.testing.assert_allclose(rows, again, atol=1e-4)
    service.close()


def test_only_one_reload_at_a_time(service, monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    real = service_module.open_feed

    def slow(*arguments, **options):
        entered.set()
        leave.wait(60)
        return real(*arguments, **options)

    monkeypatch.setattr(service_module, "open_feed", slow)
    thread = threading.Thread(target=service.reload)
    thread.start()
    entered.wait(60)
    with pytest.raises(ReloadInProgress):
        service.reload()
    assert "N1" in ids(service)  # answered meanwhile
    leave.set()
    thread.join()
    service.reload()


def test_a_run_that_cannot_be_loaded_leaves_the_old_one_answering(run, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(run)
    service = Service(link, tmp_path / "data")
    service.open()
    link.unlink()
    (tmp_path / "empty").mkdir()
    link.symlink_to(tmp_path / "empty")
    with pytest.raises(InputError):
        service.reload()
    assert "N1" in ids(service)
    link.unlink()
    link.symlink_to(save_run(tmp_path / "third", seed=2))
    service.reload()
    service.close()


def test_what_waits_for_encoding_is_given_up_when_the_service_stops(run, tmp_path, monkeypatch):
    started, go_on = threading.Event(), threading.Event()
    encode = micro_batcher._encode

    def slowly(jobs):
        started.set()
        go_on.wait()
        encode(jobs)

    service = Service(run, tmp_path)
    service.open()
    monkeypatch.setattr(micro_batcher, "_encode", slowly)
    with ThreadPoolExecutor() as threads:
        news = [News(news_id=f"S{number}", title=f"title {number}") for number in range(200)]
        adding = threads.submit(service.add, news)
        started.wait()
        stopping = threads.submit(service.stop)
        go_on.set()
        stopping.result()
        with pytest.raises(ServiceStopped):
            adding.result()
        with pytest.raises(ServiceStopped):
            service.add(news)
    service.close()
