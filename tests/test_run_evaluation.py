"""Runs evaluated through the command line: on their own store, on raw logs, against each other."""

import json
import re
import shutil
import tempfile
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import roc_auc_score
from transformers import AutoModel, AutoTokenizer

from speedyfeed.cli.main import main
from speedyfeed.data.store import open_store
from speedyfeed.models.base import NewsModule
from speedyfeed.pretrained import Recommender

METRICS = ["auc", "mrr", "ndcg@5", "ndcg@10", "ctr@1", "ctr@3", "ctr@5", "ctr@10"]
METRICS += ["recall@20", "recall@50", "recall@100", "recall@200"]


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Where temporary folders go; empty again after every test."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def said(capsys, *words):
    capsys.readouterr()
    main([str(word) for word in words])
    return capsys.readouterr().out


def figures(capsys, *words):
    return json.loads(said(capsys, *words, "--json"))


def mistake(capsys, *words):
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert stop.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def dev_rows(logs):
    with (logs / "dev" / "behaviors.tsv").open(encoding="utf-8") as file:
        return [line.rstrip("\n").split("\t") for line in file]


def test_zero_shot_is_the_untouched_encoder_by_hand(newsroom, tiny_encoder, capsys):
    """Titles cut to 32 tokens, mean over tokens, unit norm; mean of the latest 100 clicks; inner product."""
    tokenizer, encoder = AutoTokenizer.from_pretrained(tiny_encoder), AutoModel.from_pretrained(tiny_encoder)
    embeddings = {}
    for split in ("train", "dev"):
        for line in (newsroom.logs / split / "news.tsv").read_text("utf-8").splitlines():
            news_id, _, _, title, *_ = line.split("\t")
            tokens = tokenizer(title, truncation=True, max_length=32, return_tensors="pt")
            with torch.no_grad():
                mean = encoder(**tokens).last_hidden_state[0].mean(0)
            embeddings[news_id] = (mean / mean.norm()).numpy()
    aucs = []
    for _, _, _, history, shown in dev_rows(newsroom.logs):
        clicks = [embeddings[news_id] for news_id in history.split() if news_id in embeddings][-100:]
        user = np.mean(clicks, axis=0) if clicks else np.zeros(32)
        ids, labels = zip(*(candidate.rsplit("-", 1) for candidate in shown.split()), strict=True)
        scores = [float(embeddings[key] @ user) if key in embeddings else -1e9 for key in ids]
        if len(set(labels)) == 2:
            aucs.append(roc_auc_score([int(label) for label in labels], scores))
    found = figures(capsys, "evaluate", newsroom.zero)
    assert found["impressions"] == len(aucs) > 50
    assert found["auc"] == pytest.approx(np.mean(aucs), abs=1e-5)
    assert json.loads((newsroom.zero / "run.json").read_text())["config"]["train"]["steps"] == 0


def test_raw_logs_give_the_figures_of_their_store(newsroom, capsys, tmp_path):
    """With train beside dev, dev alone, or as a folder that is the split itself."""
    expected = figures(capsys, "evaluate", newsroom.trained)
    assert expected == figures(capsys, "evaluate", newsroom.trained, newsroom.refined, "--split", "dev")
    assert expected["candidates_without_text"] == 1
    assert expected["index"]["kind"] == "exact"
    assert expected["index"]["recall"] >= 0.98
    shutil.copytree(newsroom.logs / "train", tmp_path / "alone" / "bare")
    for name in ("news.tsv", "behaviors.tsv"):
        (tmp_path / "alone" / "bare" / name).write_bytes((newsroom.logs / "dev" / name).read_bytes())
    shutil.copytree(tmp_path / "alone" / "bare", tmp_path / "alone" / "test")
    known = {line.split("\t")[0] for line in (newsroom.logs / "dev" / "news.tsv").open(encoding="utf-8")}
    complete = all(key in known for row in dev_rows(newsroom.logs) for key in row[3].split())
    folders = [newsroom.logs, tmp_path / "alone", tmp_path / "alone" / "bare"]
    for folder in folders if complete else folders[:1]:
        found = figures(capsys, "evaluate", newsroom.trained, folder)
        assert found["impressions"] == expected["impressions"]
        for name in METRICS[:4]:
            assert found[name] == pytest.approx(expected[name], abs=1e-4)
        assert found["groups"]["news_seen"]["impressions"] == expected["groups"]["news_seen"]["impressions"]
    assert complete


def test_a_run_holds_the_embeddings_of_its_own_store(newsroom, capsys, tmp_path, monkeypatch):
    shutil.copytree(newsroom.refined, tmp_path / "copy")
    again = figures(capsys, "evaluate", newsroom.trained, tmp_path / "copy", "--exact")
    monkeypatch.setattr(NewsModule, "encode_all", None)  # nothing is encoded
    own = figures(capsys, "evaluate", newsroom.trained, "--exact")
    assert {name: own[name] for name in METRICS} == pytest.approx(
        {name: again[name] for name in METRICS}, abs=1e-4
    )


def test_popularity_is_the_learned_bias_added_to_each_score(newsroom, capsys):
    model = Recommender.from_pretrained(newsroom.trained)
    known = model.catalogue
    assert max(known.biases) > 0 > min(known.biases)
    aucs = []
    for _, _, _, clicks, shown in dev_rows(newsroom.logs):
        pairs = [candidate.rsplit("-", 1) for candidate in shown.split()]
        clicked = [label == "1" for _, label in pairs]
        if len(set(clicked)) < 2:
            continue
        ids = [news for news, _ in pairs if news in known.row]
        history = [news for news in clicks.split() if news in known.row]
        found = dict(zip(ids, model.score(history, ids), strict=True))
        scores = [
            found[news] + known.biases[known.row[news]] if news in found else -9.0 for news, _ in pairs
        ]  # without text, last
        aucs.append(roc_auc_score(clicked, scores))
    found = figures(capsys, "evaluate", newsroom.trained, "--popularity", "on")
    assert found["impressions"] == len(aucs)
    assert found["auc"] == pytest.approx(np.mean(aucs), abs=1e-4)
    plain = figures(capsys, "evaluate", newsroom.trained, "--exact")
    assert found["auc"] != pytest.approx(plain["auc"], abs=1e-6)
    raw = figures(capsys, "evaluate", newsroom.trained, newsroom.logs, "--popularity", "on")
    assert raw["auc"] == pytest.approx(found["auc"], abs=1e-4)
    untrained = figures(capsys, "evaluate", newsroom.zero, "--exact")
    assert figures(capsys, "evaluate", newsroom.zero, "--popularity", "on")["recall@50"] == untrained["recall@50"]


def test_popularity_that_was_not_learned_is_said(newsroom, tmp_path, capsys):
    folder = tmp_path / "model"
    model = Recommender.from_pretrained(newsroom.trained)
    model.catalogue = replace(model.catalogue, biases=None)
    model.save_pretrained(folder)
    told = mistake(capsys, "evaluate", folder, newsroom.refined, "--popularity", "on")
    assert "has learned no popularity of articles; set --popularity off" in told


def test_every_impression_is_written_with_its_figures(newsroom, capsys, tmp_path):
    out = tmp_path / "new" / "rows.parquet"
    found = figures(capsys, "evaluate", newsroom.zero, "--per-impression", out, "--exact")
    table = pq.read_table(out)
    assert table.column_names == ["impression_id", "user_id", *METRICS, "history_length", "num_candidates"]
    rows = dev_rows(newsroom.logs)
    assert table["impression_id"].to_pylist() == [row[0] for row in rows]
    assert table["user_id"].to_pylist() == [row[1] for row in rows]
    assert table["num_candidates"].to_pylist() == [len(row[4].split()) for row in rows]
    assert table["history_length"].to_pylist()[1] == 0
    for name in METRICS:
        values = [value for value in table[name].to_pylist() if value is not None]
        assert np.mean(values) == pytest.approx(found[name])
    assert len(table) - table["auc"].null_count == found["impressions"]
    assert [path.name for path in out.parent.iterdir()] == ["rows.parquet"]


def test_recall_searches_the_articles_of_the_day_when_asked(newsroom, capsys):
    split, day = (figures(capsys, "evaluate", newsroom.zero, "--pool", pool) for pool in ("split", "day"))
    days = {row[2].split()[0] for row in dev_rows(newsroom.logs)}
    assert (split["index"]["pools"], day["index"]["pools"]) == (1, len(days))
    assert figures(capsys, "evaluate", newsroom.zero) == day
    assert day["index"]["news_per_pool"] <= split["index"]["news_per_pool"]
    assert day["auc"] == split["auc"]


def test_references_stand_beside_a_run_when_asked(newsroom, capsys, tmp_path):
    found = figures(capsys, "evaluate", newsroom.zero, "--references", "--exact")
    assert list(found["references"]) == ["chance", "popularity", "title length", "category counts"]
    assert found["references"]["chance"]["auc"] == 0.5
    assert found["references"]["popularity"].keys() == set(METRICS)
    told = said(capsys, "evaluate", newsroom.zero, "--references", "--exact", "--pool", "split")
    (line,) = [line for line in told.splitlines() if line.startswith("category counts")]
    assert line.split()[2] == f"{found['references']['category counts']['auc']:.4f}"
    assert "less those the user has clicked before" in told
    (tmp_path / "logs").mkdir()
    shutil.copytree(newsroom.logs / "dev", tmp_path / "logs" / "dev")
    told = mistake(capsys, "evaluate", newsroom.zero, tmp_path / "logs", "--references")
    assert "found no train split, expected one for --references" in told


def test_lists_are_measured_beyond_accuracy_when_asked(newsroom, capsys):
    found = figures(capsys, "evaluate", newsroom.zero, "--beyond", "--exact")
    plain, feed = found["beyond"]["scores"], found["beyond"]["feed"]
    assert plain.keys() == feed.keys() > {"auc", "diversity", "calibration_error", "coverage", "novelty"}
    assert 0 < plain["coverage"] <= 1
    told = said(capsys, "evaluate", newsroom.zero, "--beyond", "--exact", "--rerank.diversity", "0.9")
    (line,) = [line for line in told.splitlines() if line.startswith("diversity")]
    assert line.split()[1] == f"{plain['diversity']:.4f}"
    assert float(line.split()[2]) > plain["diversity"]
    assert "from 0 to 1" in mistake(capsys, "evaluate", newsroom.zero, "--beyond", "--rerank.diversity", "2")


def test_recommendations_leave_out_what_was_seen_and_may_be_plain(newsroom, capsys):
    plain = figures(capsys, "recommend", newsroom.zero, "--k", "3", "--plain")["recommendations"]
    assert [one["score"] for one in plain] == sorted((one["score"] for one in plain), reverse=True)
    seen = ",".join(one["news_id"] for one in plain)
    rest = figures(capsys, "recommend", newsroom.zero, "--k", "3", "--plain", "--seen", seen)["recommendations"]
    assert not {one["news_id"] for one in rest} & set(seen.split(","))


def test_the_index_is_kept_in_the_run_folder(newsroom, capsys):
    said(capsys, "evaluate", newsroom.zero, "--pool", "split")
    (kept,) = (newsroom.zero / "index").iterdir()
    before = (kept / "index.json").stat().st_mtime_ns
    said(capsys, "evaluate", newsroom.zero, "--pool", "split")
    assert (kept / "index.json").stat().st_mtime_ns == before


def test_the_table_shows_empty_groups_as_such_and_what_was_left_out(newsroom, tmp_path, capsys):
    told = said(capsys, "evaluate", newsroom.zero)
    assert "candidates without text, ranked last: 1\n" in told
    assert "1 HNSW graph (connectivity 32, expansion 128 and 400)" in told
    groups = {line[:21].strip(): line[21:].split() for line in told.splitlines()[-8:]}
    names = ["history empty", "history 1 to 5", "history over 5", "news seen", "news unseen"]
    assert list(groups) == [*names, "news clicked 0", "news clicked 1 to 4", "news clicked 5 up"]
    for count, *means in (groups[name] for name in names):
        assert int(count) > 0
        assert all(0 <= float(mean) <= 1 for mean in means)
    logs = tmp_path / "logs"
    shutil.copytree(newsroom.logs / "dev", logs)
    rows = [row for row in dev_rows(newsroom.logs) if row[3]]
    (logs / "behaviors.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    told = said(capsys, "evaluate", newsroom.zero, logs)
    assert next(line for line in told.splitlines() if "empty" in line).split() == [
        "history",
        "empty",
        "0",
        *"-----",
    ]


def test_unlabelled_impressions_are_not_scored_but_counted(newsroom, capsys, tmp_path):
    for name in ("news.tsv", "behaviors.tsv"):
        (tmp_path / "logs").mkdir(exist_ok=True)
        shutil.copy(newsroom.logs / "dev" / name, tmp_path / "logs" / name)
    rows = dev_rows(newsroom.logs)
    for row in rows[:30]:
        row[4] = row[4].replace("-0", "").replace("-1", "")
    (tmp_path / "logs" / "behaviors.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    found = figures(capsys, "evaluate", newsroom.zero, tmp_path / "logs")
    assert found["skipped"]["unlabelled"] == 30
    assert 0 < found["impressions"] <= len(rows) - 30
    (tmp_path / "logs" / "behaviors.tsv").write_text("".join("\t".join(row) + "\n" for row in rows[:30]))
    assert figures(capsys, "evaluate", newsroom.zero, tmp_path / "logs")["auc"] is None
    told = said(capsys, "evaluate", newsroom.zero, tmp_path / "logs")
    assert "0 impressions scored" in told
    assert "30 unlabelled" in told
    assert "speedyfeed rank" in told


def test_a_log_of_which_nothing_has_text_is_still_ranked(newsroom, capsys, tmp_path):
    shutil.copytree(newsroom.logs / "dev", tmp_path / "logs")
    behaviors = tmp_path / "logs" / "behaviors.tsv"
    behaviors.write_text(re.sub(r"\bN(?=\d)", "Z", behaviors.read_text("utf-8")), encoding="utf-8")
    found = figures(capsys, "evaluate", newsroom.zero, tmp_path / "logs")
    assert found["auc"] == 0.5
    assert found["recall@50"] == 0
    assert found["groups"]["news_seen"]["auc"] is None


def test_two_runs_are_compared_impression_by_impression(newsroom, capsys):
    """Their stores were prepared differently; the impressions are the same."""
    found = figures(capsys, "compare", newsroom.zero, newsroom.trained)
    for name in METRICS:
        assert found["difference"][name] == pytest.approx(found["b"][name] - found["a"][name])
        low, high = found["difference"][f"{name}_ci95"]
        if found["verdict"][name] == "A and B are the same":
            assert name.startswith(("recall", "ctr"))  # the pool or the impression is that small
            continue
        word = "B is better" if low > 0 else "A is better" if high < 0 else "no difference shown"
        assert found["verdict"][name].startswith(word)
    told = said(capsys, "compare", newsroom.zero, newsroom.zero)
    assert told.count("A and B are the same") == len(METRICS)


def test_runs_with_several_seeds_are_compared_over_seeds_too(newsroom, capsys):
    one = figures(capsys, "compare", newsroom.zero, newsroom.trained, "--exact")
    # A side of the same two runs is their mean; its seeds differ as the two runs do.
    found = figures(capsys, "compare", newsroom.zero, newsroom.trained, "--exact", "--more-a", newsroom.trained)
    assert found["a"]["auc"] == pytest.approx((one["a"]["auc"] + one["b"]["auc"]) / 2)
    assert found["difference"]["auc"] == pytest.approx(one["difference"]["auc"] / 2)
    widths = [high - low for low, high in (found["a"]["auc_ci95"], one["a"]["auc_ci95"])]
    assert widths[0] != widths[1]
    assert list(found["a"]["runs"]) == [str(newsroom.zero), str(newsroom.trained)]
    assert found["a"]["runs"][str(newsroom.zero)] is None  # not validated
    told = said(capsys, "compare", newsroom.zero, newsroom.trained, "--exact")
    assert "intervals over users: one seed each says nothing of other seeds" in told


def test_two_runs_are_compared_on_other_logs(newsroom, capsys):
    found = figures(capsys, "compare", newsroom.zero, newsroom.trained, newsroom.logs, "--exact")
    alone = figures(capsys, "evaluate", newsroom.trained, newsroom.logs, "--exact")
    assert {name: found["b"][name] for name in METRICS} == {name: alone[name] for name in METRICS}


def test_runs_on_different_logs_are_not_compared_by_chance(newsroom, tmp_path, capsys):
    other = tmp_path / "logs"
    shutil.copytree(newsroom.logs, other)
    behaviors = other / "dev" / "behaviors.tsv"
    behaviors.write_text(behaviors.read_text("utf-8").replace("-1\n", "-0\n"), encoding="utf-8")
    encoder = json.loads((newsroom.zero / "run.json").read_text())["config"]["news"]["encoder"]
    said(capsys, "prepare", other, tmp_path / "store", "--refine", "none", "--fields", "title")
    train = ("train", tmp_path / "store", tmp_path / "run", "--recipe", "zero-shot", "--encoder", encoder)
    said(capsys, *train)
    assert "stores of different logs" in mistake(capsys, "compare", newsroom.zero, tmp_path / "run")


def test_a_store_with_other_texts_is_refused(newsroom, mind_logs, tmp_path, capsys):
    line = mistake(capsys, "evaluate", newsroom.trained, newsroom.titles)
    assert "prepared with refine 'none', but the run was trained with 'bm25'; give the logs" in line
    said(capsys, "prepare", mind_logs, tmp_path / "store")
    assert "word statistics of another collection" in mistake(
        capsys, "evaluate", newsroom.trained, tmp_path / "store"
    )
    assert figures(capsys, "evaluate", newsroom.trained, mind_logs)["impressions"] == 3  # its logs are welcome


def test_what_is_not_there_is_said(newsroom, tmp_path, capsys):
    assert "no such folder" in mistake(capsys, "evaluate", newsroom.zero, tmp_path / "nowhere")
    assert "no split 'test'" in mistake(capsys, "evaluate", newsroom.zero, "--split", "test")
    assert "no split 'test'" in mistake(capsys, "evaluate", newsroom.zero, newsroom.logs, "--split", "test")
    assert "no known format" in mistake(capsys, "evaluate", newsroom.zero, tmp_path)
    shutil.copytree(newsroom.zero, tmp_path / "run")
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    facts["store"]["path"] = str(tmp_path / "gone")
    del facts["sha256"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts))
    assert "is missing or has changed; give STORE or LOGS" in mistake(capsys, "evaluate", tmp_path / "run")
    told = said(capsys, "evaluate", tmp_path / "run", newsroom.titles)
    assert "the store of the run is gone" in told
    shutil.rmtree(tmp_path / "run" / "model")
    assert "has not finished" in mistake(capsys, "evaluate", tmp_path / "run")


def test_a_model_folder_without_its_run_is_evaluated_too(newsroom, tmp_path, capsys):
    shutil.copytree(newsroom.trained / "model", tmp_path / "model")
    found = figures(capsys, "evaluate", tmp_path / "model", newsroom.logs)
    assert found["auc"] == pytest.approx(figures(capsys, "evaluate", newsroom.trained)["auc"], abs=1e-4)
    assert open_store(newsroom.refined).splits == ("train", "dev")
