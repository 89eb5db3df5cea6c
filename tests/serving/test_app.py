"""The service as its clients see it, through HTTP."""

import asyncio
import threading
import time
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from speedyfeed.serving import service as service_module
from speedyfeed.serving.app import MAX_PENDING_WRITES, build_app
from speedyfeed.serving.journal import News
from speedyfeed.serving.middleware import Limits, WriteAccess, is_loopback
from speedyfeed.serving.service import Service
from tests.serving.small_run import body_of

TOKEN = "a token nobody guesses"
JSON = "application/json"
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}


@contextmanager
def client_of(service, *, token=TOKEN, host="127.0.0.1", base_url="http://127.0.0.1", **options):
    """A client whose end does not stop the service, which all tests share."""
    app = build_app(service, WriteAccess(token, host), **options)
    yield TestClient(app, base_url=base_url, raise_server_exceptions=False)
    app.state.context.writes.close()
    app.state.context.reads.close()


@pytest.fixture(scope="module")
def service(run, tmp_path_factory):
    service = Service(run, tmp_path_factory.mktemp("data"))
    service.open()
    yield service
    service.close()


@pytest.fixture
def client(service):
    with client_of(service) as client:
        yield client


def ids(response):
    assert response.status_code == 200, response.text
    return [one["news_id"] for one in response.json()["news"]]


def test_recommend_reranks_with_every_click_and_says_why(client):
    fresh = client.post("/v1/recommend", json={"k": 12})
    assert len(ids(fresh)) == 12
    after = client.post("/v1/recommend", json={"history": ["N5", "X9"], "k": 12, "explain": True})
    assert "N5" not in ids(after)
    assert [one for one in ids(fresh) if one != "N5"] != ids(after)
    assert after.json()["unknown"] == ["X9"]
    reasons = [reason for one in after.json()["news"] for reason in one["reasons"]]
    assert reasons
    assert {reason["click"] for reason in reasons} == {0}
    assert all(0 <= reason["attention"] <= 1 and -1 <= reason["similarity"] <= 1.001 for reason in reasons)


def test_a_text_in_the_history_counts(client):
    others = {"k": 12, "candidates": [f"N{n}" for n in range(1, 13) if n != 5], "diversity": 0}
    by_text = client.post("/v1/recommend", json={"history": [{"title": "Markets fall again"}], **others})
    by_id = client.post("/v1/recommend", json={"history": ["N5"], **others})
    assert ids(by_text) == ids(by_id)


def test_an_article_is_added_found_and_removed(client):
    added = client.post(
        "/v1/news",
        json={"news": [{"news_id": "cup", "title": "Cup comes home", "category": "sport"}, {"title": "No id"}]},
        headers=ALLOWED,
    )
    assert added.status_code == 201
    first, second = added.json()["news_ids"]
    assert first == "cup"
    assert {first, second} <= set(ids(client.post("/v1/recommend", json={"k": 200})))
    recent = client.post("/v1/recommend", json={"max_age_hours": 1})
    assert set(ids(recent)) == {first, second}
    assert client.get("/v1/news/cup").json()["title"] == "Cup comes home"
    assert "cup" not in ids(client.get("/v1/news/cup/similar?k=5"))
    assert len(ids(client.get("/v1/news/cup/similar?k=5"))) == 5
    assert "speedyfeed_news 14.0" in client.get("/metrics").text
    for news_id in (first, second):
        assert client.delete(f"/v1/news/{news_id}", headers=ALLOWED).json() == {"news_id": news_id}
    assert client.get("/v1/news/cup").status_code == 404
    assert client.delete("/v1/news/cup", headers=ALLOWED).status_code == 404
    assert client.post("/v1/recommend", json={"history": ["cup"]}).json()["unknown"] == ["cup"]


def test_texts_and_ages_of_the_run_are_served(client):
    story = client.get("/v1/news/N5").json()
    assert story["abstract"] == "More about: Markets fall again"
    assert story["body"] == body_of("Markets fall again")
    assert story["published"] == "2020-05-01T04:00:00Z"
    assert len(story["sketch"]) == 8
    assert all(-1 <= number <= 1 for number in story["sketch"])
    assert client.get("/v1/news/N1").json()["published"] is None


def test_another_run_is_served_beside_the_first(service, another_run, tmp_path):
    other = Service(another_run, tmp_path)
    other.open()
    strange = "a/b%2Fc"
    other.add([News(news_id=strange, title="Found beside")])
    with client_of(service, others={"second": other}) as client:
        abouts = [client.get(f"{path}/v1/about").json() for path in ("", "/runs/second")]
        assert [about["model"] for about in abouts] == [service.feed.fingerprint, other.feed.fingerprint]
        assert [about["others"] for about in abouts] == [["second"], []]
        found = client.get(f"/runs/second/v1/news/{quote(strange, safe='')}")
        assert found.json()["title"] == "Found beside"
        assert client.get(f"/v1/news/{quote(strange, safe='')}").status_code == 404
        headers = client.get("/runs/second/").headers
        assert headers.get_list("content-security-policy") == headers.get_list("content-security-policy")[:1]
        assert client.get("/runs/third/v1/about").status_code == 404
    other.close()


def test_about_map_and_state(client):
    about = client.get("/v1/about").json()
    assert about["news"] == 12
    assert about["categories"] == {"sport": 4, "money": 4, "science": 4}
    assert about["knows_popularity"] is True
    assert len(ids(client.get("/v1/map"))) == 12
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}
    assert 'speedyfeed_requests_total{route="/v1/map",status="200"} 1.0' in client.get("/metrics").text


IDS = (
    "https://x.org/a/1?page=2#end",
    "Ärger/新闻",
    "../x",
    "a//b",
    "x/similar",
    "similar",
    "/",
    "100% sure",
    "a%2Fb",
    "semi;colon, comma",
    " ",
    "x" * 2000,
)


@pytest.mark.parametrize("news_id", IDS, ids=range(len(IDS)))
def test_an_article_of_any_id_is_added_read_changed_and_removed(client, news_id):
    path = f"/v1/news/{quote(news_id, safe='')}"
    for title in ("Added", "Changed"):
        body = {"news": [{"news_id": news_id, "title": title}]}
        assert client.post("/v1/news", json=body, headers=ALLOWED).json() == {"news_ids": [news_id]}
        assert client.get(path).json()["news_id"] == news_id
        assert client.get(path).json()["title"] == title
    assert len(ids(client.get(f"{path}/similar?k=3"))) == 3
    assert client.post("/v1/recommend", json={"history": [news_id]}).json()["unknown"] == []
    assert client.delete(path, headers=ALLOWED).json() == {"news_id": news_id}
    assert client.get(path).status_code == 404


def test_an_address_as_id_may_be_written_as_it_is(client):
    body = {"news": [{"news_id": "https://x.org/a/1", "title": "x"}]}
    assert client.post("/v1/news", json=body, headers=ALLOWED).status_code == 201
    assert client.get("/v1/news/https://x.org/a/1").json()["title"] == "x"
    assert len(ids(client.get("/v1/news/https://x.org/a/1/similar?k=2"))) == 2
    assert client.delete("/v1/news/https://x.org/a/1", headers=ALLOWED).status_code == 200


BAD = {
    "broken JSON": ("POST", "/v1/recommend", {"content": b'{"k": '}, 400),
    "bytes that are no text": ("POST", "/v1/recommend", {"content": b'{"history": ["\xff"]}'}, 400),
    "nesting without end": ("POST", "/v1/recommend", {"content": b"[" * 200_000}, 400),
    "number without end": ("POST", "/v1/recommend", {"content": b'{"k": ' + b"9" * 10_000 + b"}"}, 400),
    "no JSON type": ("POST", "/v1/recommend", {"content": b"{}", "headers": {"content-type": "text/plain"}}, 415),
    "no body": ("POST", "/v1/recommend", {}, 422),
    "list for an object": ("POST", "/v1/recommend", {"json": []}, 422),
    "wrong type": ("POST", "/v1/recommend", {"json": {"k": "ten"}}, 422),
    "number as text": ("POST", "/v1/recommend", {"json": {"k": "10"}}, 422),
    "k too large": ("POST", "/v1/recommend", {"json": {"k": 201}}, 422),
    "k zero": ("POST", "/v1/recommend", {"json": {"k": 0}}, 422),
    "not a number": ("POST", "/v1/recommend", {"content": b'{"popularity": NaN}'}, 422),
    "unknown field": ("POST", "/v1/recommend", {"json": {"kk": 1}}, 422),
    "history too long": ("POST", "/v1/recommend", {"json": {"history": ["N1"] * 201}}, 422),
    "half a character": ("POST", "/v1/recommend", {"content": b'{"history": ["\\ud800"]}'}, 422),
    "title too long": ("POST", "/v1/recommend", {"json": {"history": [{"title": "x" * 501}]}}, 422),
    "title of spaces": ("POST", "/v1/news", {"json": {"news": [{"title": "  "}]}, "headers": ALLOWED}, 422),
    "batch too long": ("POST", "/v1/news", {"json": {"news": [{"title": "x"}] * 101}, "headers": ALLOWED}, 422),
    "no news": ("POST", "/v1/news", {"json": {"news": []}, "headers": ALLOWED}, 422),
    "empty id": ("POST", "/v1/news", {"json": {"news": [{"news_id": "", "title": "x"}]}, "headers": ALLOWED}, 422),
    "time without a zone": (
        "POST",
        "/v1/news",
        {"json": {"news": [{"title": "x", "published": "2026-01-01T00:00:00"}]}, "headers": ALLOWED},
        422,
    ),
    "time as a number": (
        "POST",
        "/v1/news",
        {"json": {"news": [{"title": "x", "published": 0}]}, "headers": ALLOWED},
        422,
    ),
    "time before all times": (
        "POST",
        "/v1/news",
        {"json": {"news": [{"title": "x", "published": "0001-01-01T00:00:00+12:00"}]}, "headers": ALLOWED},
        422,
    ),
    "oversize body": ("POST", "/v1/recommend", {"content": b" " * (5 << 20)}, 413),
    "oversize body in pieces": ("POST", "/v1/recommend", {"content": (b" " * (1 << 20) for _ in range(6))}, 413),
    "no token": ("POST", "/v1/news", {"json": {"news": [{"title": "x"}]}}, 401),
    "wrong token": (
        "POST",
        "/v1/news",
        {"json": {"news": [{"title": "x"}]}, "headers": {"Authorization": "Bearer no"}},
        401,
    ),
    "token of another kind": ("POST", "/v1/reload", {"headers": {"Authorization": f"Basic {TOKEN}"}}, 401),
    "delete without a token": ("DELETE", "/v1/news/N1", {}, 401),
    "reload without a token": ("POST", "/v1/reload", {}, 401),
    "unknown id": ("GET", "/v1/news/X1", {}, 404),
    "unknown id, similar": ("GET", "/v1/news/X1/similar", {}, 404),
    "unknown id, delete": ("DELETE", "/v1/news/X1", {"headers": ALLOWED}, 404),
    "similar, k too large": ("GET", "/v1/news/N1/similar?k=100000", {}, 422),
    "path trick": ("GET", "/../app.py", {}, 404),
    "path trick, encoded": ("GET", "/%2e%2e/app.py", {}, 404),
    "path trick, backslash": ("GET", "/..%5capp.py", {}, 404),
    "path trick, absolute": ("GET", "//etc/passwd", {}, 404),
    "path trick, zero byte": ("GET", "/index.html%00.js", {}, 404),
    "path trick in an id": ("GET", "/v1/news/..%2f..%2fetc%2fpasswd", {}, 404),
    "no such method": ("PUT", "/v1/news/N1", {}, 405),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_gets_one_line_without_internals(client, name):
    method, path, options, status = BAD[name]
    if "content" in options:
        options = {"headers": {"content-type": "application/json"}} | options
    response = client.request(method, path, **options)
    assert response.status_code == status, response.text
    (detail,) = response.json().values()
    assert isinstance(detail, str)
    assert len(detail) < 300
    assert not any(word in detail for word in ("Traceback", "/home", "/tmp", "site-packages", ".py", TOKEN))
    assert client.get("/v1/about").json()["news"] == 12


MEANT = {
    b'{"history": [{"headline": "x"}]}': "history.0.title: is missing; history.0.headline: there is no such field",
    b'{"history": ["N1", 3]}': "history.1: should be the id of an article, or an object with its title",
    b'{"history": [{"title": " "}]}': "history.0.title: must not be blank",
    b'{"history": [""]}': "history.0: String should have at least 1 character",
    b'{"history": [{"title": 3}]}': "history.0.title: Input should be a valid string",
    b"[]": "The request body: should be a JSON object",
    b"": "The request body: is missing",
}


@pytest.mark.parametrize("body", MEANT)
def test_an_error_names_the_form_that_was_meant(client, body):
    response = client.post("/v1/recommend", content=body, headers={"content-type": JSON})
    assert (response.status_code, response.json()["detail"]) == (422, MEANT[body])


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}], ids=["none", "text"])
def test_a_missing_content_type_is_named(client, headers):
    response = client.post("/v1/recommend", content=b'{"k": 3}', headers=headers)
    assert response.status_code == 415
    assert response.json()["detail"] == "The header Content-Type: should be application/json"


def test_head_answers_like_get_without_a_body(client):
    for path in ("/", "/app.js", "/v1/about", "/healthz", "/v1/news/N1"):
        got, headed = client.get(path), client.head(path)
        assert (headed.status_code, headed.content) == (200, b"")
        assert headed.headers["content-length"] == got.headers["content-length"]
    assert client.head("/v1/news/X1").status_code == 404
    assert client.head("/v1/recommend").status_code == 405


def test_an_internal_error_is_not_shown_to_the_client(service, monkeypatch):
    def fail(*_):
        raise RuntimeError("secret /etc/path")

    with client_of(service) as client:
        monkeypatch.setattr(service.feed, "recommend", fail)
        response = client.post("/v1/recommend", json={})
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_full_disk_is_told_and_costs_nothing(service, caplog):
    with client_of(service) as client:
        client.headers.update(ALLOWED)
        client.post("/v1/rules", json={"kind": "ban", "category": "sport"})
        rules = client.get("/v1/rules").json()
        file = service._journal._file
        (pages,) = file.execute("pragma page_count").fetchone()
        file.execute(f"pragma max_page_count = {pages}")
        large = {"news_id": "large", "title": "x", "body": "y " * 9000}
        response = client.post("/v1/news", json={"news": [large]})
        assert response.status_code == 507
        assert response.json()["detail"].startswith("The disk is full")
        assert client.get("/v1/news/large").status_code == 404
        rule = f"/v1/rules/{rules['rules'][0]['rule_id']}"
        file.execute("pragma query_only = 1")
        assert client.delete(rule).status_code == 507
        assert client.get("/v1/rules").json() == rules
        file.execute("pragma query_only = 0")  # room again, for the tests that share the service
        file.execute(f"pragma max_page_count = {2**30}")
        assert client.delete(rule).status_code == 200
    assert "journal.sqlite: cannot be written (database or disk is full)" in caplog.text
    assert "Traceback" not in caplog.text


WRITES = [
    ("POST", "/v1/news", {"json": {"news": [{"title": "x"}]}}),
    ("DELETE", "/v1/news/N1", {}),
    ("POST", "/v1/reload", {}),
]


@pytest.mark.parametrize("write", WRITES, ids=[f"{method} {path}" for method, path, _ in WRITES])
def test_without_a_token_nobody_writes_unless_bound_to_loopback(service, write):
    method, path, options = write
    with client_of(service, token=None, host="0.0.0.0") as client:
        assert client.request(method, path, **options).status_code == 403
        assert client.request(method, path, headers=ALLOWED, **options).status_code == 403
        assert client.get("/v1/about").json()["writes"] == "off"
    with client_of(service, token=None) as client:
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://["},
            {"Origin": ""},
            {"Host": "evil.example"},
            {"Host": "my_site.example:8000", "Origin": "http://my_site.example:8000"},
            {"Host": "my_site.example"},
            {"Host": "evil.example:80:80"},
            {"Host": "[::1].evil.example"},
            {"Host": ""},
        ):
            assert client.request(method, path, headers=headers, **options).status_code == 403
    assert len(service.feed.catalogue) == 12


def test_on_loopback_the_own_page_writes_without_a_token(service):
    with client_of(service, token=None, base_url="http://localhost:8000") as client:
        own = {"Origin": "http://localhost:8000"}
        added = client.post("/v1/news", json={"news": [{"title": "x"}]}, headers=own)
        assert added.status_code == 201
        assert client.delete(f"/v1/news/{added.json()['news_ids'][0]}").status_code == 200


def test_what_is_loopback():
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", ""))


def test_every_answer_carries_the_security_headers(client):
    for path in ("/", "/v1/about", "/nothing", "/openapi.json"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "access-control-allow-origin" not in headers


def test_other_origins_are_allowed_only_when_named(service):
    asked = {"Origin": "https://news.example", "Access-Control-Request-Method": "POST"}
    with client_of(service) as client:
        assert "access-control-allow-origin" not in client.options("/v1/recommend", headers=asked).headers
    with client_of(service, allow_origins=["https://news.example"]) as client:
        answer = client.options("/v1/recommend", headers=asked)
        assert answer.headers["access-control-allow-origin"] == "https://news.example"
        other = client.options("/v1/recommend", headers=asked | {"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_before_the_feed_is_loaded_it_is_alive_but_not_ready(run, tmp_path):
    service = Service(run, tmp_path)
    with client_of(service) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/metrics").status_code == 200
        for answer in (client.get("/readyz"), client.post("/v1/recommend", json={})):
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
        service.open()
        assert client.get("/readyz").status_code == 200
    service.close()


def test_reload_swaps_or_says_why_not(run, another_run, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(run)
    service = Service(link, tmp_path / "data")
    service.open()
    with client_of(service) as client:
        before = client.get("/v1/about").json()["model"]
        link.unlink()
        link.symlink_to(another_run)
        reloaded = client.post("/v1/reload", headers=ALLOWED).json()
        assert reloaded["model"] != before
        assert client.post("/v1/recommend", json={}).json()["model"] == reloaded["model"]
        link.unlink()
        refused = client.post("/v1/reload", headers=ALLOWED)
        assert refused.status_code == 409
        assert str(tmp_path) not in refused.text
        assert client.post("/v1/recommend", json={}).json()["model"] == reloaded["model"]
    service.close()


def test_a_request_that_takes_too_long_is_ended(service, monkeypatch):
    leave = threading.Event()
    monkeypatch.setattr(service.feed, "similar", lambda *_: leave.wait(60))
    with client_of(service, limits=Limits(seconds=0.2)) as client:
        response = client.get("/v1/news/N1/similar")
        leave.set()
    assert response.status_code == 503
    assert response.json() == {"detail": "This took too long."}


def test_a_body_that_does_not_arrive_is_not_waited_for(service):
    async def run():
        sent = []
        pieces = iter([{"type": "http.request", "body": b"{", "more_body": True}])

        async def receive():
            for piece in pieces:
                return piece
            await asyncio.sleep(60)

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/v1/recommend",
            "raw_path": b"/v1/recommend",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        app = build_app(service, WriteAccess(TOKEN, "127.0.0.1"), limits=Limits(body_seconds=0.1))
        await app(scope, receive, send)
        return sent[0]["status"]

    assert asyncio.run(run()) == 408


def test_too_many_waiting_writes_are_refused_and_reads_go_on(service, monkeypatch):
    leave, started = threading.Event(), threading.Semaphore(0)

    def slow(news):
        started.release()
        leave.wait(60)

    monkeypatch.setattr(service, "add", slow)
    body = {"news": [{"title": "x"}]}
    with client_of(service) as client:
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.append(client.post("/v1/news", json=body, headers=ALLOWED)))
            for _ in range(MAX_PENDING_WRITES + 3)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        while sum(answer.status_code == 503 for answer in answers) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ids(client.post("/v1/recommend", json={"k": 3}))
        leave.set()
        for thread in threads:
            thread.join()
    assert sorted({answer.status_code for answer in answers}) == [201, 503]
    assert sum(answer.status_code == 201 for answer in answers) == MAX_PENDING_WRITES


def test_a_method_that_is_not_there_names_those_that_are(client):
    for path, allowed in {
        "/v1/news/N1": "DELETE, GET",
        "/v1/news": "POST",
        "/v1/recommend": "POST",
        "/healthz": "GET",
    }.items():
        response = client.put(path)
        assert response.status_code == 405
        assert response.headers["allow"] == allowed


def test_a_whole_number_may_be_written_with_a_point(client):
    assert len(ids(client.post("/v1/recommend", content=b'{"k": 3.0}', headers={"content-type": JSON}))) == 3
    half = client.post("/v1/recommend", content=b'{"k": 3.5}', headers={"content-type": JSON})
    assert half.status_code == 422


def test_files_of_the_page_are_sent_again_only_when_they_changed(client):
    for path in ("/", "/app.js"):
        first = client.get(path)
        assert first.status_code == 200
        assert client.get(path, headers={"if-none-match": first.headers["etag"]}).status_code == 304


def test_everything_in_the_openapi_document_is_described(client):
    document = client.get("/openapi.json").json()
    routes = [route for methods in document["paths"].values() for route in methods.values()]
    described = {parameter["name"]: parameter for route in routes for parameter in route.get("parameters", [])}
    for name, schema in document["components"]["schemas"].items():
        described |= {name: schema} | {f"{name}.{field}": text for field, text in schema["properties"].items()}
    short = [name for name, text in described.items() if len(text.get("description", "").split()) < 4]
    assert not short
    assert len(described) > 50


def test_the_openapi_document_has_every_route(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {
        "/v1/recommend",
        "/v1/news",
        "/v1/news/{news_id}",
        "/v1/news/{news_id}/similar",
        "/v1/map",
        "/v1/about",
        "/v1/reload",
        "/v1/why",
        "/v1/feedback",
        "/v1/feedback/export",
        "/v1/rules",
        "/v1/rules/{rule_id}",
        "/healthz",
        "/readyz",
        "/metrics",
    }


def test_reload_while_another_is_in_progress(service, monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    real = service_module.open_feed

    def slow(*arguments, **options):
        entered.set()
        leave.wait(60)
        return real(*arguments, **options)

    monkeypatch.setattr(service_module, "open_feed", slow)
    with client_of(service) as client:
        thread = threading.Thread(target=service.reload)
        thread.start()
        entered.wait(60)
        assert client.post("/v1/reload", headers=ALLOWED).status_code == 409
        leave.set()
        thread.join()
