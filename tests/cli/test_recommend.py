"""Histories as users type them."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from speedyfeed.cli.main import main
from speedyfeed.errors import InputError
from speedyfeed.pretrained import Recommendation, Recommender
from tests.serving.small_run import save_run


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
    monkeypatch.setattr("speedyfeed.pretrained.Recommender.from_pretrained", lambda path, **_: Echo())
    main(["recommend", "run", "--json", *(word for value in typed for word in (option, value))])
    found = json.loads(capsys.readouterr().out)["recommendations"]
    assert [one["news_id"] for one in found] == expected


@pytest.mark.parametrize("user", ["attentive", "gru"])
def test_without_the_news_encoder_the_same_is_recommended(user, tmp_path):
    run = save_run(tmp_path / "run", user=user)
    whole, light = (Recommender.from_pretrained(run, with_encoder=wanted) for wanted in (True, False))
    for history in ([], ["N1"], ["N3", "N9", "N1"]):
        assert light.recommend(history, k=12) == whole.recommend(history, k=12)
    with pytest.raises(InputError, match="loaded without its news encoder"):
        light.encode_news(["Late goal wins the cup"])


def test_recommending_does_not_load_the_library_of_language_models(tmp_path):
    run = save_run(tmp_path / "run")
    code = f"""
import sys
from speedyfeed.cli.main import main
main(["recommend", {str(run)!r}, "--json"])
print([name for name in ("transformers", "pandas", "sympy") if name in sys.modules])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.endswith("[]\n")
