"""The news encoder in sentence-transformers: the embeddings of the recommender, saved, loaded and saved again."""

import numpy as np
import pytest

from speedyfeed.pretrained import Recommender
from tests.serving.small_run import build_recommender

TEXTS = ["Late goal wins the cup", "Rain, and more rain, all week", "A" * 300, ""]


def test_texts_have_the_embeddings_of_the_recommender(newsroom, tmp_path):
    package = pytest.importorskip("sentence_transformers")
    for number, recommender in enumerate((Recommender.from_pretrained(newsroom.trained), build_recommender())):
        recommender.save_pretrained(tmp_path / f"saved-{number}")
        model = package.SentenceTransformer(
            str(tmp_path / f"saved-{number}"), trust_remote_code=True, device="cpu"
        )
        found = model.encode(TEXTS)
        np.testing.assert_allclose(found, recommender.encode_news(TEXTS), atol=1e-6)
        assert model.get_embedding_dimension() == found.shape[1] == recommender.news.dim
    model.save(str(tmp_path / "again"))
    again = Recommender.from_pretrained(tmp_path / "again")
    np.testing.assert_allclose(again.encode_news(TEXTS), found, atol=1e-6)
    assert again.catalogue is not None


def test_a_user_dependent_encoder_is_not_offered(newsroom, tmp_path):
    recommender = build_recommender()
    recommender.news.is_user_dependent = True
    recommender.save_pretrained(tmp_path)
    assert not (tmp_path / "modules.json").exists()
