"""The card that is saved with a recommender."""

import pytest
import torch

from speedyfeed.model_card import CARD, CardFacts, encoder_licence, render
from speedyfeed.models.news import NewsEncoderConfig
from speedyfeed.models.recommender import RecommenderConfig
from speedyfeed.models.users import UserConfig
from speedyfeed.pretrained import Recommender

FACTS = CardFacts(version="1.2.3", settings={"user": {"name": "gru"}}, encoder=None, data={}, metrics=None)


class Evaluated:
    """What `evaluate` returns, as far as the card needs it."""

    def to_json(self):
        return {
            "auc": 0.6259,
            "auc_ci95": [0.6144, 0.6385],
            "mrr": None,
            "mrr_ci95": [None, None],
            "impressions": 2498,
        }


@pytest.fixture
def model(tiny_encoder):
    torch.manual_seed(0)
    news = NewsEncoderConfig(encoder=str(tiny_encoder), dim=16)
    return Recommender(RecommenderConfig(news=news, user=UserConfig()))


def test_a_saved_recommender_has_a_card_with_metrics_and_intervals(model, tmp_path):
    model.save_pretrained(tmp_path, report=Evaluated())
    card = (tmp_path / CARD).read_text()
    assert card.startswith("---\nlibrary_name: speedyfeed\n")
    assert "2,498 impressions" in card
    (row,) = [line for line in card.splitlines() if line.startswith("| auc ")]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == ["auc", "0.6259", "0.6144 to 0.6385"]
    assert "| mrr" not in card, "a metric without a value is left out"
    assert "| user.name" in card
    assert "`attentive`" in card
    assert "words." not in card, "settings that it does not use"


def test_an_edited_card_is_no_damage(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert "Not evaluated" in (tmp_path / CARD).read_text()
    (tmp_path / CARD).write_text("# My model\n")
    Recommender.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("head", "licence"),
    [
        ("---\nlanguage: da\nlicense: mit\n---\nlicense: gpl\n", "mit"),
        ('---\nlicense: "apache-2.0"\n---\n', "apache-2.0"),
        ("---\nlanguage: da\n---\nlicense: gpl\n", None),
        ("license: mit\n", None),
    ],
)
def test_the_licence_is_that_of_the_encoders_own_card(tmp_path, head, licence):
    (tmp_path / CARD).write_text(head)
    assert encoder_licence(str(tmp_path)) == encoder_licence(f"half:{tmp_path}") == licence


def test_what_is_not_known_is_said(tmp_path):
    assert encoder_licence(str(tmp_path)) is None
    assert encoder_licence("somebody/some-model") is None
    text = render(FACTS)
    assert "an encoder over words" in text
    assert "saved without training data" in text
    assert "\nlicense:" not in text
