"""Embeddings and encoders for other programs."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from speedyfeed.cli.main import main
from speedyfeed.models.news import NewsEncoderConfig
from speedyfeed.models.packed import pack_texts
from speedyfeed.models.recommender import RecommenderConfig
from speedyfeed.models.users import UserConfig
from speedyfeed.pretrained import Recommender
from tests.cli.test_main import fails


def test_ids_and_vectors_are_written_as_parquet_and_as_an_array(newsroom, tmp_path, capsys):
    capsys.readouterr()
    main(["export", str(newsroom.zero), str(tmp_path / "out"), "--embeddings", "--json"])
    told = json.loads(capsys.readouterr().out)
    catalogue = Recommender.from_pretrained(newsroom.zero).catalogue
    matrix = np.load(tmp_path / "out" / "embeddings.npy")
    assert (told["news"], told["width"]) == matrix.shape == tuple(catalogue.embeddings_VD.shape)
    table = pq.read_table(tmp_path / "out" / "embeddings.parquet")
    assert table["news_id"].to_pylist() == list(catalogue.news_ids)
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), np.float32), matrix)
    np.testing.assert_array_equal(matrix, catalogue.embeddings_VD.numpy())

    assert "already exists" in fails(capsys, "export", newsroom.zero, tmp_path / "out", "--embeddings")
    assert "expected --embeddings or --onnx" in fails(capsys, "export", newsroom.zero, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.fixture(scope="module")
def exported(tiny_encoder, tmp_path_factory):
    """A recommender whose weights are all random, and the sessions of its exported encoders."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    import onnxruntime

    from speedyfeed import onnx_export

    folder = tmp_path_factory.mktemp("onnx")
    torch.manual_seed(0)
    news = NewsEncoderConfig(encoder=str(tiny_encoder), dim=16)
    model = Recommender(RecommenderConfig(news=news, user=UserConfig())).eval()
    model.draw_queries()
    torch.nn.init.normal_(model.news.frequency.weight, std=0.1)
    torch.nn.init.normal_(model.user.recency)
    packed = pack_texts([("Late goal wins", "A goal at last", "Snow " * 40), "Snow"], model.news.tokenizer, 32)
    onnx_export._export_news(model.news, packed, folder)
    onnx_export._export_user(model, torch.randn(24, 16), folder)
    return model, {name: onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("news", "user")}


@pytest.mark.parametrize(
    "texts",
    [
        ["One"],
        [("a b", "c", "d e f"), ("x y", "", "z"), "q", ""] * 3,
        [("title", "abstract " * 9, "body " * 50)],
    ],
)
def test_articles_of_any_number_and_length_have_the_embeddings_of_pytorch(exported, texts):
    from speedyfeed.onnx_export import PARITY, pad_news

    model, sessions = exported
    packed = pack_texts(texts, model.news.tokenizer, 32)
    found = sessions["news"].run(None, pad_news(packed))[0]
    wanted = model.news.encode_all(packed).numpy()
    assert np.abs(found - wanted).max() <= PARITY
    assert len({row.tobytes() for row in np.round(wanted, 3)}) == len(set(texts)), "or nothing was compared"


@pytest.mark.parametrize("num_clicks", [1, 7, 60])
def test_users_with_any_number_of_clicks_have_the_embeddings_of_pytorch(exported, num_clicks):
    model, sessions = exported
    clicks = torch.randn(3, num_clicks, 16)
    clicked = torch.arange(num_clicks) < torch.tensor([[0], [1], [num_clicks]])
    found = sessions["user"].run(None, {"clicks": clicks.numpy(), "clicked": clicked.numpy()})[0]
    np.testing.assert_allclose(
        found, model.encode_users(clicks, clicked).means_BPD[:, 0].numpy(), rtol=0, atol=1e-4
    )


def test_encoders_of_a_run_are_exported_with_their_tokenizer(newsroom, tmp_path, capsys):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    capsys.readouterr()
    main(["export", str(newsroom.trained), str(tmp_path / "out"), "--onnx", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["files"] == ["news.onnx", "onnx.json", "tokenizer.json", "user.onnx"]
    assert all(one["difference"] <= 1e-4 and one["megabytes"] > 0 for one in told["onnx"])
    facts = json.loads((tmp_path / "out" / "onnx.json").read_text())
    model = Recommender.from_pretrained(newsroom.trained)
    assert (facts["width"], facts["categories"]) == (model.news.dim, list(model.id_maps.categories))
