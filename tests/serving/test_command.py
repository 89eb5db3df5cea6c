"""The command as a process: it serves, survives kill -9, and reports mistakes in one line."""

import json
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
import uvicorn

from speedyfeed.cli.main import main
from speedyfeed.pretrained import Recommender
from speedyfeed.serving import micro_batcher
from speedyfeed.serving.journal import Journal
from speedyfeed.serving.listeners import open_listeners
from tests import forked

PATIENCE = 600  # loading torch on a busy machine is no failure


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(run, data, stderr=forked.DEVNULL):
    """Start a service; return its process and address once it is ready."""
    port = free_port()
    command = [sys.executable, "-m", "speedyfeed", "serve", str(run), "--data", str(data), "--port", str(port)]
    process = forked.Popen(command, stderr=stderr)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert process.poll() is None
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).close()
            return process, f"http://127.0.0.1:{port}"
        except OSError:
            time.sleep(0.1)
    process.kill()
    raise AssertionError("never ready")


def call(address, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


def test_articles_acknowledged_before_kill_9_survive(run, tmp_path):
    process, address = start(run, tmp_path)
    call(f"{address}/v1/news", {"news": [{"news_id": f"K{n}", "title": f"title {n}"} for n in range(5)]})
    process.send_signal(signal.SIGKILL)
    process.wait()
    process, address = start(run, tmp_path)
    try:
        assert call(f"{address}/v1/news/K4")["title"] == "title 4"
        assert call(f"{address}/v1/about")["news"] == 17
        second = forked.run([sys.executable, "-m", "speedyfeed", "serve", run, "--data", tmp_path, "--port", "0"])
        assert second.returncode == 2
        assert "another process serves from it" in second.stderr
    finally:
        process.terminate()
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_under_load_after_a_reload_gives_up_what_waits(run, tmp_path, monkeypatch, number):
    encode = micro_batcher._encode
    monkeypatch.setattr(micro_batcher, "_encode", lambda jobs: (time.sleep(0.3), encode(jobs)))
    monkeypatch.setattr("speedyfeed.serving.site.GRACE_SECONDS", 1)
    process, address = start(run, tmp_path, stderr=forked.PIPE)
    call(f"{address}/v1/reload", {})
    answers = []

    def write(writer):
        news = [{"news_id": f"{writer}-{number}", "title": f"title {number}"} for number in range(100)]
        try:
            call(f"{address}/v1/news", {"news": news})
        except urllib.error.HTTPError as error:
            answers.append((error.code, json.load(error)["detail"]))

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(12)]
    for writer in writers:
        writer.start()
    time.sleep(0.5)  # far less than they take
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.wait() in (-signal.SIGTERM, 128 + signal.SIGINT)
    for writer in writers:
        writer.join()
    assert set(answers) == {(503, "The service is stopping.")}
    assert "Traceback" not in errors


def fails(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["serve", *map(str, arguments)])
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_mistakes_are_one_line(run, tmp_path, capsys):
    assert "no such folder" in fails(capsys, tmp_path / "nowhere")
    assert "65535" in fails(capsys, run, "--port", "99999")
    (tmp_path / "empty").mkdir()
    error = fails(capsys, tmp_path / "empty", "--port", free_port())
    assert "holds no recommender" in error
    (tmp_path / "empty" / "recommender.json").write_text("{}")
    assert "was saved by speedyfeed of an unknown version" in fails(capsys, tmp_path / "empty", "--port", 0)
    assert not (tmp_path / "empty.feed").exists()
    assert "is RUN itself, expected another run" in fails(capsys, run, "--other", run, "--port", 0)
    assert "no precision 'fp64'" in fails(capsys, run, "--precision", "fp64", "--port", 0)
    journal = Journal(tmp_path / "taken")
    assert "another process" in fails(capsys, run, "--data", tmp_path / "taken", "--port", 0)
    journal.close()


def test_an_address_that_cannot_be_used_is_found_before_anything_is_loaded(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Recommender, "from_pretrained", lambda path: pytest.fail("loaded"))
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = fails(capsys, run, "--data", data, "--port", port)
        assert error == (
            f"speedyfeed: port {port}: another program listens on it; stop that program, or give another --port\n"
        )
    for host in ("no.such.host.invalid", "x" * 300, "8.8.8.8", "a..b"):
        error = fails(capsys, run, "--data", data, "--port", 0, "--host", host)
        assert error.startswith(f"speedyfeed: host '{host}': ")
        assert error.count("\n") == 1
    assert not data.exists()


def test_all_addresses_of_a_host_get_the_same_port():
    listeners = open_listeners("localhost", 0)
    assert len({listener.getsockname()[1] for listener in listeners}) == 1
    assert listeners[0].getsockname()[1] > 0
    for listener in listeners:
        listener.close()


def test_the_data_folder_is_beside_a_link_not_beside_the_run_it_points_to(run, tmp_path, monkeypatch):
    link = tmp_path / "current"
    link.symlink_to(run)
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: None)
    main(["serve", str(link), "--port", "0"])
    assert (tmp_path / "current.feed" / "journal.sqlite").exists()
    assert not run.with_name(f"{run.name}.feed").exists()
