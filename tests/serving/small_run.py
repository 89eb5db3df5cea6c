"""A recommender with a tiny random encoder and twelve articles, saved like a finished run."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import torch
from transformers import BertConfig

from speedyfeed.data.bodies import write_bodies
from speedyfeed.models.catalogue import Catalogue
from speedyfeed.models.config import NewsEncoderConfig, RecommenderConfig, UserConfig
from speedyfeed.models.plm import build_encoder
from speedyfeed.pretrained import Recommender
from speedyfeed.tokenizers import load_tokenizer

FIRST_SHOWN = 1_588_291_200.0
"""1 May 2020: the articles are shown for the first time from then on, one an hour."""
TITLES = {
    "sport": [
        "Late goal wins the cup",
        "Cup final moved to Sunday",
        "Keeper saves the season",
        "Runner breaks record",
    ],
    "money": ["Markets fall again", "Bank raises its rates", "Shares of the bank recover", "Budget cut agreed"],
    "science": [
        "Probe lands on the moon",
        "Moon dust surprises science",
        "New telescope sees far",
        "Deep sea mapped",
    ],
}


def build_recommender(seed: int = 0, user: str = "attentive") -> Recommender:
    """Recommender with random weights; its articles are N1 to N12, with 0 to 11 clicks."""
    torch.manual_seed(seed)
    tokenizer = load_tokenizer("minilm")
    bert = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    config = RecommenderConfig(news=NewsEncoderConfig(dim=16), user=UserConfig(name=user))
    model = Recommender(config, encoder=build_encoder(bert), tokenizer=tokenizer).eval()
    with torch.no_grad():
        model.user.start.normal_()
        for weight in model.news.encoder.parameters():
            weight.mul_(3)  # so that texts differ
    pairs = [(category, title) for category, titles in TITLES.items() for title in titles]
    embeddings = model.encode_news([(title, "", "") for _, title in pairs])
    model.catalogue = Catalogue(
        news_ids=[f"N{number}" for number in range(1, len(pairs) + 1)],
        titles=[title for _, title in pairs],
        categories=[category for category, _ in pairs],
        embeddings_VD=torch.from_numpy(embeddings),
        num_clicks=list(range(len(pairs))),
        abstracts=[f"More about: {title}" for _, title in pairs],
        published=[None, *(FIRST_SHOWN + 3600.0 * number for number in range(1, len(pairs)))],
    )
    return model


def body_of(title: str) -> str:
    """Body of the article with this title: six sentences, which make two paragraphs."""
    return " ".join(f"{title}, said witness {number}." for number in range(1, 7))


def save_run(folder: Path, seed: int = 0, user: str = "attentive") -> Path:
    """Save a recommender as a run folder, and return the folder."""
    model = build_recommender(seed, user)
    assert model.catalogue is not None
    folder.mkdir(parents=True, exist_ok=True)
    texts = pa.array([body_of(title) for title in model.catalogue.titles])
    write_bodies([pa.record_batch([texts], ["body"])], folder / "texts.parquet")
    model.catalogue = replace(model.catalogue, bodies=folder / "texts.parquet")
    model.save_pretrained(folder / "model")
    (folder / "texts.parquet").unlink()
    (folder / "run.json").write_text(json.dumps({}))
    return folder
