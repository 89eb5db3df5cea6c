"""The demo, on a newsroom and with an encoder small enough for a test."""

from dataclasses import replace

import pytest

from speedyfeed.cli import demo
from speedyfeed.cli.main import main
from speedyfeed.data.bodies import BODIES, Bodies
from speedyfeed.data.store import open_store
from speedyfeed.recipes import recipe
from speedyfeed.synthetic import SynthConfig


def test_it_shows_quality_speed_and_one_user_and_continues(tmp_path, tiny_encoder, monkeypatch, capsys):
    small = SynthConfig(users=120, news=200, days=8)
    mini = recipe("speed-mini")
    tiny = replace(
        mini,
        news=replace(mini.news, encoder=str(tiny_encoder), dim=16),
        batch=replace(mini.batch, token_budget=500),
        train=replace(mini.train, precision="fp32"),
    )
    monkeypatch.setattr(demo, "SynthConfig", lambda: small)
    naml = recipe("naml")
    monkeypatch.setattr(
        demo, "recipe", {"speed-top": tiny, "naml": replace(naml, news=replace(naml.news, dim=16))}.get
    )
    words = ["demo", "--out", str(tmp_path / "demo"), "--steps", "2"]
    main(words)
    said = capsys.readouterr().out
    for part in (
        "popularity",
        "untrained",
        "NAML",
        "this model",
        "of the way",
        "cache hit rate",
        "data efficiency",
        "times as fast",
    ):
        assert part in said
    assert len(said.split("is recommended\n")[1].split("\n\n")[0].splitlines()) == 5
    bodies = Bodies(tmp_path / "demo" / "run" / "model" / BODIES)  # to be read on the page
    assert len(bodies) == open_store(tmp_path / "demo" / "store").num_news
    assert all(len(bodies[row].split()) > 20 for row in range(len(bodies)))
    main(words)  # trained already: shown again
    assert capsys.readouterr().out.splitlines()[-8:] == said.splitlines()[-8:]
    with pytest.raises(SystemExit) as stop:
        main([*words[:-1], "0"])
    assert stop.value.code == 2
    assert "steps 0: expected a number from 1" in capsys.readouterr().err
