"""Several processes behind one port: each shows what any of them wrote, and the death of one costs nothing."""

import http.client
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from speedyfeed.cli.main import main
from speedyfeed.serving.worker import FOLLOW_SECONDS, WRITER_LOCK
from tests import forked
from tests.serving.test_command import free_port

PATIENCE = 120  # loading torch on a busy machine is no failure

TOKEN = "a token nobody guesses"
WORKERS = {"0", "1"}


class Site:
    """A running service with two workers."""

    def __init__(self, process: forked.Popen, port: int, data: Path, headers: dict[str, str]) -> None:
        self.process = process
        self.port = port
        self.data = data
        self.headers = headers

    def call(self, path, body=None, *, method=None, headers=None):
        """Status, worker and JSON of an answer, on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            content = None if body is None else json.dumps(body)
            given = {"content-type": "application/json", **(self.headers if headers is None else headers)}
            connection.request(method or ("GET" if body is None else "POST"), path, content, given)
            answer = connection.getresponse()
            return answer.status, answer.headers["x-worker"], json.load(answer)
        finally:
            connection.close()

    def wait(self):
        """Wait until all workers answer; connections wait for the first of them."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            assert self.process.poll() is None
            try:
                return self.at_each("/readyz")
            except OSError:  # it does not listen yet
                time.sleep(0.02)
        raise AssertionError("never ready")

    def at_each(self, path, body=None, **options):
        """One answer of each worker."""
        found = {}
        deadline = time.monotonic() + PATIENCE
        while found.keys() != WORKERS and time.monotonic() < deadline:
            status, worker, answer = self.call(path, body, **options)
            found[worker] = (status, answer)
        return found

    def all_at_once(self, check, path, body=None):
        """Every worker answers so at once."""
        assert all(check(answer) for _, answer in self.at_each(path, body).values())

    def until_all(self, check, path, body=None):
        """Wait until every worker answers so."""
        deadline = time.monotonic() + PATIENCE
        while not all(check(answer) for _, answer in self.at_each(path, body).values()):
            assert time.monotonic() < deadline, "never shown by all"

    def writer(self) -> int:
        return int((self.data / WRITER_LOCK).read_text())

    def workers(self) -> set[int]:
        pid = self.process.pid
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@contextmanager
def serving(run, data, token=None) -> Iterator[Site]:
    port = free_port()
    command = [sys.executable, "-m", "speedyfeed", "serve", run, "--data", data, "--port", port, "--workers", 2]
    environment = {name: value for name, value in os.environ.items() if name != "SPEEDYFEED_TOKEN"}
    process = forked.Popen(
        command, stderr=forked.DEVNULL, env=environment | ({"SPEEDYFEED_TOKEN": token} if token else {})
    )
    site = Site(process, port, data, {"authorization": f"Bearer {token}"} if token else {})
    try:
        site.wait()
        yield site
    finally:
        process.terminate()
        process.wait(PATIENCE)


def ids(answer):
    return [one["news_id"] for one in answer["news"]]


def test_what_is_written_at_any_worker_is_shown_by_all(run, another_run, tmp_path):
    assert FOLLOW_SECONDS < 0.2, "shown within a second"
    link = tmp_path / "current"
    link.symlink_to(run)
    with serving(link, tmp_path / "data") as site:
        everything = ("/v1/recommend", {"k": 100})
        for number, (status, answer) in site.at_each(
            "/v1/news", {"news": [{"title": "From here", "category": "sport"}]}
        ).items():
            (added,) = answer["news_ids"]
            assert status == 201, number
            site.all_at_once(lambda answer: "title" in answer, f"/v1/news/{added}")
        site.call("/v1/news", {"news": [{"news_id": added, "title": "Changed since"}]})
        site.all_at_once(lambda answer: answer["title"] == "Changed since", f"/v1/news/{added}")
        site.call(f"/v1/news/{added}", method="DELETE")
        site.all_at_once(lambda answer: "title" not in answer, f"/v1/news/{added}")
        _, _, rule = site.call("/v1/rules", {"kind": "ban", "category": "sport", "hours": 1})
        site.all_at_once(lambda answer: "N1" not in ids(answer), *everything)
        site.call(f"/v1/rules/{rule['rule_id']}", method="DELETE")
        site.all_at_once(lambda answer: "N1" in ids(answer), *everything)
        site.call("/v1/feedback", {"user": "U1", "actions": {"N1": "click"}})
        site.all_at_once(lambda answer: answer["num_clicks"] == 1, "/v1/why?news=N1")
        link.unlink()
        link.symlink_to(another_run)
        _, _, loaded = site.call("/v1/reload", {})
        about = site.at_each("/v1/about")
        assert {answer["model"] for _, answer in about.values()} == {loaded["model"]}  # at once, all of them
        for headers in ({"origin": "http://evil.example"}, {"host": "evil.example"}):
            refused = site.at_each("/v1/news", {"news": [{"title": "Evil"}]}, headers=headers)
            assert {status for status, _ in refused.values()} == {403}
        before = counted(site)
        site.call("/v1/news", {"news": [{"title": "One more"}]})
        deadline = time.monotonic() + PATIENCE
        while {counted(site) for _ in range(8)} != {before + 1}:  # whichever worker is asked
            assert time.monotonic() < deadline


def counted(site):
    """Number of articles that all workers have added."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    (line,) = [line for line in lines if line.startswith("speedyfeed_news_added_total ")]
    return float(line.split()[1])


def test_kill_9_of_writer_and_reader_loses_nothing_and_breaks_only_their_open_requests(run, tmp_path):
    with serving(run, tmp_path / "data", token=TOKEN) as site:
        refused = site.at_each("/v1/news", {"news": [{"title": "No token"}]}, headers={})
        assert {status for status, _ in refused.values()} == {401}
        stop, written, failures = threading.Event(), [], []

        def work(client):
            number = 0
            while not stop.is_set():
                news_id = f"{client}-{number}"
                number += 1
                try:
                    status, _, _ = site.call("/v1/news", {"news": [{"news_id": news_id, "title": "A title"}]})
                    if status == 201:
                        written.append(news_id)
                    else:
                        failures.append(status)
                    status, _, _ = site.call("/v1/recommend", {"k": 3})
                    assert status == 200
                except (OSError, http.client.HTTPException) as error:
                    failures.append(error)

        clients = [threading.Thread(target=work, args=(client,)) for client in range(3)]
        for client in clients:
            client.start()
        for choose in (lambda: site.writer(), lambda: (site.workers() - {site.writer()}).pop()):
            seen = len(written)
            while len(written) < seen + 10:
                time.sleep(0.01)
            assert len(site.workers()) == 2
            before, killed = len(failures), choose()
            os.kill(killed, signal.SIGKILL)
            while killed in site.workers():
                time.sleep(0.01)
            site.at_each("/readyz")  # it has been started again
            assert len(failures) - before <= len(clients), failures
            assert site.writer() in site.workers() - {killed}
        stop.set()
        for client in clients:
            client.join()
        for news_id in written:
            site.until_all(lambda answer: "title" in answer, f"/v1/news/{news_id}")
        second = forked.run(
            [sys.executable, "-m", "speedyfeed", "serve", run, "--data", site.data, "--port", 0, "--workers", 2]
        )
        assert second.returncode == 2
        assert "another process serves from it" in second.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_all_processes_stop_with_the_first(run, tmp_path, number):
    with serving(run, tmp_path) as site:
        site.process.send_signal(number)
        expected = {signal.SIGINT: 128 + number}.get(number, -number)
        assert site.process.wait(PATIENCE) == expected
        deadline = time.monotonic() + PATIENCE
        while not is_free(site.port):
            assert time.monotonic() < deadline, "a worker still listens"
            time.sleep(0.01)


def is_free(port):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def test_a_mistake_that_a_worker_finds_is_one_line(run, tmp_path, capsys, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "recommender.json").write_text("{}")
    wrong = forked.run(
        [sys.executable, "-m", "speedyfeed", "serve", tmp_path / "empty", "--port", "0", "--workers", "3"]
    )
    assert wrong.returncode == 2
    assert "was saved by speedyfeed of an unknown version" in wrong.stderr
    assert wrong.stderr.count("\n") == 1
    assert not (tmp_path / "empty.feed").exists()
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    crowded = forked.run(
        [
            sys.executable,
            "-m",
            "speedyfeed",
            "serve",
            run,
            "--data",
            tmp_path / "data",
            "--port",
            0,
            "--workers",
            2,
        ]
    )
    assert crowded.returncode == 2
    assert "AF_UNIX path too long); set TMPDIR" in crowded.stderr
    assert not (tmp_path / "data").exists()
    assert not list(folder.iterdir())
    with pytest.raises(SystemExit):
        main(["serve", str(run), "--workers", "0"])
    assert "--workers 0: expected a number from 1 to 256" in capsys.readouterr().err
