"""Shared by all tests: a log small enough to check by eye, and the engines it can be prepared on."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may download anything
torch.set_num_threads(1)  # tiny models: more threads only wait for each other, under pytest -n all the more
pytest.register_assert_rewrite("speedyfeed.testing")
settings.register_profile("suite", deadline=None)  # a busy machine is no failure
settings.load_profile("suite")

NEWS = {
    "N1": ("sport", "The cat saw the other cat run", "A cat ran."),
    "N2": ("world", "Ministers agree: budget cut by 3.5%", ""),
    "N3": ("world", 'He said "no" to the budget', "Ærlig talt, über alt"),
    "N4": ("sport", "Late goal wins the cup", "The cup goes north after a late, late goal."),
    "N5": ("sport", "Cup final moved to Sunday", ""),
}

TRAIN = [
    # impression, user, time, history, candidates; X1 has no text
    ("1", "U1", "11/11/2019 9:05:58 AM", "N1 X1", "N2-1 N3-0 X1-0"),
    ("2", "U1", "11/11/2019 9:01:00 AM", "N1 X1", "N4-1 N5-0"),
    ("3", "U2", "11/12/2019 12:30:00 PM", "", "X1-1 N5-0"),
    ("4", "U3", "11/12/2019 1:00:00 PM", "N5", "N1-0 N2-1 N4-1"),
]

DEV = [
    ("5", "U1", "11/15/2019 8:00:00 AM", "N1 N4 N2", "N3-0 N5-1 X2-0"),
    ("6", "U1", "11/15/2019 9:00:00 AM", "N1 N4 N2", "N3-1 N1-0"),
    ("7", "U9", "11/15/2019 9:30:00 AM", "", "N1-0 N3-1"),
]


def write_mind_split(folder: Path, news: Mapping[str, tuple[str, str, str]], rows: list[tuple[str, ...]]) -> None:
    folder.mkdir(parents=True)
    lines = [
        f"{key}\t{section}\t\t{title}\t{abstract}\t\t[]\t[]" for key, (section, title, abstract) in news.items()
    ]
    (folder / "news.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "behaviors.tsv").write_text("\n".join("\t".join(row) for row in rows) + "\n", encoding="utf-8")


@pytest.fixture
def mind_logs(tmp_path: Path) -> Path:
    """Train and dev in MIND's format, dirty as real logs are."""
    logs = tmp_path / "logs"
    write_mind_split(logs / "train", NEWS, TRAIN)
    write_mind_split(logs / "dev", {key: NEWS[key] for key in ("N1", "N3", "N5")}, DEV)
    return logs


@pytest.fixture(params=["duckdb", "spark"])
def engine_name(request: pytest.FixtureRequest) -> str:
    """Each engine; Spark only where there is a Java to run it."""
    if request.param == "spark":
        pytest.importorskip("pyspark")
        if shutil.which("java") is None:
            pytest.skip("Spark needs java")
    return str(request.param)


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder of two narrow layers with the tokenizer of MiniLM, untrained."""
    from transformers import BertConfig, BertModel

    from speedyfeed.tokenizers import load_tokenizer

    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = load_tokenizer("minilm")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
