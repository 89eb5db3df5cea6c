"""Shared by all tests: a log small enough to check by eye, and the engines it can be prepared on."""

import gc
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import settings

gc.disable()  # until all is collected: nothing that is imported is garbage
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may download anything
os.environ["PYSPARK_SUBMIT_ARGS"] = (  # a few rows do not earn what it costs to compile queries well
    "--driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' "
    "--conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN pyspark-shell"
)
torch.set_num_threads(1)  # tiny models: more threads only wait for each other, under pytest -n all the more
pytest.register_assert_rewrite(
    "speedyfeed.testing", "tests.models.families", "tests.training.distributed.processes"
)
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


SLOW = (
    "benchmarks/",
    "encoding/test_inputs",
    "cli/test_demo",
    "cli/test_export",
    "cli/test_rank",
    "models/test_bus.py::test_a_compiled",
    "preparation/test_text.py::test_a_text_that_fits",
    "preparation/test_parts.py::test_a_store",
    "preparation/test_contradictions",
    "preparation/test_frames",
    "preparation/test_interactions",
    "preparation/test_lost_negatives",
    "preparation/test_prepare",
    "preparation/test_validation",
    "serving/test_command",
    "serving/test_journal",
    "serving/test_page",
    "serving/test_workers",
    "synthetic/test_newsroom",
    "cli/test_recommend.py::test_recommending_does_not_load",
    "test_api",
    "test_damage",
    "test_docs.py::test_the_code_of_extending",
    "test_examples",
    "test_paper_recipes.py::test_a_recipe_of_the_paper_trains",
    "test_recipes",
    "test_run_evaluation",
    "test_sentence_transformer",
    "training/distributed/",
    "training/test_deferred_gradients",
    "training/test_trackers.py::test_what_a_tracker_wrote_is_read_back[wandb",
    "training/test_trainer",
    "training/test_trouble",
    "training/test_trackers",
    "training/test_validation_sample",
    "[spark",
    "spark]",
)
"""Parts of the names of tests that take seconds: whole runs, other processes, browsers, Spark."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, which `make quick` leaves out."""
    for item in items:
        if any(part in item.nodeid for part in SLOW):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Leave what is imported out of garbage collections, which otherwise pass over all of it again and again."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let the end of the process free what is imported: some libraries report what they find left."""
    gc.unfreeze()


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


@dataclass(frozen=True, kw_only=True)
class Newsroom:
    """A small log, prepared twice, with a run on each store; nothing in it may be changed."""

    logs: Path
    titles: Path
    """Store of plain titles."""
    refined: Path
    zero: Path
    """Run on `titles`: the encoder untouched."""
    trained: Path
    """Run on `refined`: a few steps."""


@pytest.fixture(scope="session")
def newsroom(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path) -> Newsroom:
    """Logs of a synthetic newsroom, two stores of them and a finished run on each."""
    from speedyfeed.cli.main import main
    from speedyfeed.synthetic import SynthConfig, synthesize

    folder = tmp_path_factory.mktemp("newsroom")
    room = Newsroom(
        logs=folder / "logs",
        titles=folder / "titles",
        refined=folder / "refined",
        zero=folder / "zero",
        trained=folder / "trained",
    )
    synthesize(room.logs, SynthConfig(users=200, news=800, days=10))
    shutil.rmtree(room.logs / "test")  # what public logs have: train and dev
    behaviors = room.logs / "dev" / "behaviors.tsv"
    lines = behaviors.read_text("utf-8").splitlines()[:120]
    lines[0] = lines[0] + " NOTEXT-0"
    impression, _, when, _, shown = lines[1].split("\t")
    lines[1] = "\t".join([impression, "NEWUSER", when, "", shown])
    behaviors.write_text("\n".join(lines) + "\n", encoding="utf-8")
    encoder = f"--encoder={tiny_encoder}"
    for command in (
        ["prepare", room.logs, room.titles, "--refine", "none", "--fields", "title", "--validation", "0"],
        ["prepare", room.logs, room.refined, "--validation", "0"],
        ["train", room.titles, room.zero, "--recipe", "zero-shot", encoder],
        ["train", room.refined, room.trained, "--recipe", "tiny", encoder, "--steps", "3", "--validations", "0"],
    ):
        main([str(word) for word in command])
    return room
