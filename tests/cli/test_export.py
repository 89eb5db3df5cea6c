"""Embeddings for other programs."""

import json

import numpy as np
import pyarrow.parquet as pq

from speedyfeed.cli.main import main
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

    assert "found files in it" in fails(capsys, "export", newsroom.zero, tmp_path / "out", "--embeddings")
    assert "expected --embeddings" in fails(capsys, "export", newsroom.zero, tmp_path / "other")
    assert not (tmp_path / "other").exists()
