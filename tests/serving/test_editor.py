"""The editor's part: why an article is there, feedback that becomes a log, boosts and bans; and kill -9."""

import subprocess
import sys
import time

import numpy as np
import pytest
from fastapi.testclient import TestClient

from speedyfeed.data.readers import open_logs
from speedyfeed.serving.app import build_app
from speedyfeed.serving.feedback import Feedback
from speedyfeed.serving.journal import Journal, News
from speedyfeed.serving.middleware import WriteAccess
from speedyfeed.serving.query import Query
from speedyfeed.serving.rules import Rule, Rules
from speedyfeed.serving.service import Service
from tests.serving.small_run import body_of

TOKEN = {"authorization": "Bearer secret"}
CUP_CLICK = {"user": "U1", "history": ["N9"], "actions": {"N1": "click", "N2": "skip", "N5": "dislike"}}


@pytest.fixture
def service(run, tmp_path):
    service = Service(run, tmp_path / "data")
    service.open()
    yield service
    service.close()


@pytest.fixture
def client(service):
    with TestClient(build_app(service, WriteAccess("secret", "127.0.0.1"))) as client:
        yield client


def feed(client, **query):
    answer = client.post("/v1/recommend", json={"k": 12, **query})
    assert answer.status_code == 200, answer.text
    return [one["news_id"] for one in answer.json()["news"]]


def test_why_names_position_reasons_and_rules(client):
    history = ["N9", "N1"]
    listed = feed(client, history=history)
    why = client.get("/v1/why", params={"news": listed[2], "history": history}).json()
    assert why["position"] == 3
    assert why["num_clicks"] == int(listed[2][1:]) - 1
    assert why["popularity_weight"] == pytest.approx(0.5)
    assert {reason["click"] for reason in why["reasons"]} <= {0, 1}
    assert why["rules"] == []
    clicked = client.get("/v1/why", params={"news": "N9", "history": history}).json()
    assert (clicked["position"], clicked["is_clicked"]) == (None, True)
    client.post("/v1/rules", json={"kind": "ban", "news_id": listed[2]}, headers=TOKEN)
    banned = client.get("/v1/why", params={"news": listed[2], "history": history}).json()
    assert banned["position"] is None
    assert [rule["kind"] for rule in banned["rules"]] == ["ban"]
    assert client.get("/v1/why", params={"news": "no such"}).status_code == 404


def test_why_tells_the_position_in_the_very_list_that_was_answered(client, service):
    rng = np.random.default_rng(0)
    news = [News(news_id=f"M{number}", title=f"number {number}") for number in range(150)]
    service.feed.catalogue.add(news, rng.normal(size=(150, 16)).astype(np.float32))
    for asked in ({"k": 5}, {"k": 30}, {"k": 8, "diversity": 0.9}, {"k": 8, "popularity": 1, "freshness": 2}):
        listed = feed(client, history=["N9", "M1"], **asked)
        for place in (0, len(listed) // 2, len(listed) - 1):
            params = {"news": listed[place], "history": ["N9", "M1"], **asked}
            assert client.get("/v1/why", params=params).json()["position"] == place + 1
    below = next(name for name in feed(client, history=["N9", "M1"], k=30) if name not in listed)
    assert client.get("/v1/why", params={**params, "news": below}).json()["position"] is None


def test_the_editors_routes_need_the_token(client):
    for method, path, body in (
        ("POST", "/v1/feedback", CUP_CLICK),
        ("POST", "/v1/feedback/export", None),
        ("GET", "/v1/rules", None),
        ("POST", "/v1/rules", {"kind": "ban", "news_id": "N1"}),
        ("DELETE", "/v1/rules/x", None),
    ):
        assert client.request(method, path, json=body).status_code == 401, path


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "ban"},
        {"kind": "ban", "news_id": "N1", "category": "sport"},
        {"kind": "praise", "news_id": "N1"},
        {"kind": "boost", "category": ""},
        {"kind": "boost", "news_id": "N1", "hours": 0},
    ],
)
def test_a_rule_concerns_one_thing_for_some_time(client, wrong):
    assert client.post("/v1/rules", json=wrong, headers=TOKEN).status_code == 422


def test_openapi_says_that_a_rule_concerns_one_thing(client):
    rule = client.get("/openapi.json").json()["components"]["schemas"]["RuleBody"]
    assert [one["required"] for one in rule["oneOf"]] == [["news_id"], ["category"]]


def test_bans_and_boosts_by_id_and_category_until_they_end(client, service):
    before = feed(client)
    last = before[-1]
    category = service.feed.catalogue.news(service.feed.catalogue.row(last)).category
    made = [
        client.post("/v1/rules", json=rule, headers=TOKEN).json()
        for rule in (
            {"kind": "ban", "news_id": before[0]},
            {"kind": "boost", "news_id": last, "weight": 50},
        )
    ]
    after = feed(client)
    assert before[0] not in after
    assert after[0] == last
    assert [rule["rule_id"] for rule in client.get("/v1/rules", headers=TOKEN).json()["rules"]] == [
        rule["rule_id"] for rule in made
    ]
    for rule in made:
        assert client.delete(f"/v1/rules/{rule['rule_id']}", headers=TOKEN).status_code == 200
    assert client.delete(f"/v1/rules/{made[0]['rule_id']}", headers=TOKEN).status_code == 404
    assert feed(client) == before
    service.set_rule(Rule(rule_id="a", kind="ban", category=category, until=time.time() + 60))
    assert last not in feed(client)
    assert len(feed(client)) == 8
    service.set_rule(Rule(rule_id="a", kind="boost", category=category, weight=50, until=time.time() + 60))
    first = [service.feed.catalogue.row(one) for one in feed(client, diversity=0)[:4]]
    assert {service.feed.catalogue.news(row).category for row in first} == {category}
    service.set_rule(Rule(rule_id="a", kind="ban", category=category, until=time.time() - 1))
    assert feed(client) == before


def test_clicks_count_as_popularity_at_once_and_after_a_reload(client, service):
    query = {"popularity": 1, "diversity": 0}
    assert feed(client, **query)[0] == "N12"
    for _ in range(20):
        assert client.post("/v1/feedback", json=CUP_CLICK, headers=TOKEN).status_code == 201
    assert feed(client, **query)[0] == "N1"
    assert service.feed.catalogue.clicks([1])[0] == 1  # skipped, not clicked
    service.reload()
    assert feed(client, **query)[0] == "N1"


def test_feedback_is_exported_as_a_log_that_prepare_reads(client, service, tmp_path):
    client.post("/v1/feedback", json=CUP_CLICK, headers=TOKEN)
    client.post("/v1/feedback", json={"user": "U1", "actions": {"gone": "click"}}, headers=TOKEN)
    answer = client.post("/v1/feedback/export", headers=TOKEN).json()
    assert answer["impressions"] == 2
    again = client.post("/v1/feedback/export", headers=TOKEN).json()
    assert again == answer
    logs = open_logs(tmp_path / "data" / answer["folder"])
    (split,) = logs.splits
    assert (logs.format, split.name) == ("parquet", "train")
    news = {row["news_id"]: row for batch in split.news() for row in batch.to_pylist()}
    assert len(news) == 12  # all that the next run shall recommend, touched or not
    assert news["N1"]["title"] == "Late goal wins the cup"
    assert news["N1"]["body"] == body_of("Late goal wins the cup")
    assert news["N1"]["category"] == "sport"
    first, second = (row for batch in split.impressions() for row in batch.to_pylist())
    assert (first["clicked"], first["skipped"]) == (["N1"], ["N2", "N5"])
    assert first["candidates"] == ["N1", "N2", "N5"]
    assert first["history"] == second["history"] == ["N9"]
    assert second["clicked"] == ["gone"]
    assert first["user_id"] == "U1"


KILLED = """
import os, signal, sys
from pathlib import Path
from speedyfeed.serving.journal import Journal, News

journal = Journal(Path(sys.argv[1]))
journal.write_feedback({"user_id": "U1", "time": 5.0, "actions": {"N1": "click"}, "history": []})
journal.write_rule("a", {"rule_id": "a", "kind": "ban", "news_id": "N3", "until": 1e12})
journal.write_rule("b", {"rule_id": "b", "kind": "ban", "news_id": "N4", "until": 1e12})
journal.write_rule("b", None)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_feedback_and_rules_survive_kill_9(run, tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=120)
    assert killed.returncode == -9
    journal = Journal(tmp_path)
    assert [Feedback(**one) for _, one in journal.read_feedback()] == [
        Feedback(user_id="U1", time=5.0, actions={"N1": "click"}, history=[])
    ]
    assert not journal.write_rule("b", None)
    journal.close()
    service = Service(run, tmp_path)
    service.open()
    assert [rule.rule_id for rule in service.rules().all] == ["a"]
    assert service.feed.catalogue.clicks([0])[0] == 1
    listed = [one.news.news_id for one in service.feed.recommend(Query(k=12), rules=service.rules()).ranked]
    service.close()
    assert "N3" not in listed
    assert len(listed) == 11


def test_rules_end():
    rules = [Rule(rule_id=name, kind="ban", news_id="N1", until=end) for name, end in (("a", 5.0), ("b", 15.0))]
    assert [rule.rule_id for rule in Rules(rules, now=10.0).all] == ["b"]
