"""Histories as users type them."""

import json
from types import SimpleNamespace

import pytest

from speedyfeed.cli.main import main
from speedyfeed.pretrained import Recommendation


class Echo:
    """A recommender that answers with the history it was given, then with what was seen."""

    catalogue = SimpleNamespace(row={"N1": 0, "N2": 1, "a,b": 2, "a": 3, "b": 4})

    def recommend(self, history, *, k, user, seen, rerank):
        return [Recommendation(news_id=one, title="", category="", score=0.0) for one in [*history, *seen]]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ([], []),
        ([""], []),
        (["N1,N2"], ["N1", "N2"]),
        (["N1, N2 "], ["N1", "N2"]),
        (["N1", "N2"], ["N1", "N2"]),
        (["a,b", "N1"], ["a,b", "N1"]),
        (["b,a"], ["b", "a"]),
        (["N1,,N2"], ["N1", "N2"]),
    ],
)
@pytest.mark.parametrize("option", ["--history", "--seen"])
def test_ids_are_separated_by_commas_or_repeated(option, typed, expected, monkeypatch, capsys):
    monkeypatch.setattr("speedyfeed.pretrained.Recommender.from_pretrained", lambda path: Echo())
    main(["recommend", "run", "--json", *(word for value in typed for word in (option, value))])
    found = json.loads(capsys.readouterr().out)["recommendations"]
    assert [one["news_id"] for one in found] == expected
