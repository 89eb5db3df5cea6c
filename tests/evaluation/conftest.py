"""Random impressions and embeddings of the news in them; and a small newsroom with two finished runs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from speedyfeed.cli.main import main
from speedyfeed.data.store import Impressions
from speedyfeed.ragged import Ragged, offsets_of
from speedyfeed.synthetic import SynthConfig, synthesize

NUM_NEWS = 60


def ragged(rows: list[list[int]]) -> Ragged:
    values = np.array([value for row in rows for value in row], np.int32)
    return Ragged(values=values, offsets=offsets_of(np.array([len(row) for row in rows], np.int64)))


@pytest.fixture
def news_VD() -> np.ndarray:
    embeddings = np.random.default_rng(7).standard_normal((NUM_NEWS + 1, 8)).astype(np.float32)
    embeddings[0] = 0
    return embeddings


@pytest.fixture
def impressions() -> Impressions:
    """Forty impressions of fifteen users, in no order; some news lack text, some impressions labels."""
    rng = np.random.default_rng(8)
    candidates = [rng.integers(0, NUM_NEWS + 1, rng.integers(1, 9)).tolist() for _ in range(40)]
    labels = [rng.integers(0, 2, len(row)).tolist() for row in candidates]
    for row in (3, 11):
        labels[row] = [-1] * len(labels[row])
    users = rng.integers(0, 15, 40)
    users = np.array([np.flatnonzero(users == user)[0] for user in users])  # each user's first row
    histories: list[list[int]] = [[] for _ in users]
    for number, user in enumerate(np.unique(users)):  # with 0, 1, 2, ... clicks
        histories[user] = rng.integers(1, NUM_NEWS + 1, number).tolist()
    return Impressions(
        candidates=ragged(candidates),
        labels=np.array([label for row in labels for label in row], np.int8),
        users=users,
        histories=ragged(histories),
    )


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
    folder = tmp_path_factory.mktemp("newsroom")
    room = Newsroom(
        logs=folder / "logs",
        titles=folder / "titles",
        refined=folder / "refined",
        zero=folder / "zero",
        trained=folder / "trained",
    )
    synthesize(room.logs, SynthConfig(users=150, news=250, days=6))
    behaviors = room.logs / "dev" / "behaviors.tsv"
    lines = behaviors.read_text("utf-8").splitlines()[:120]
    lines[0] = lines[0] + " NOTEXT-0"
    impression, _, when, _, shown = lines[1].split("\t")
    lines[1] = "\t".join([impression, "NEWREADER", when, "", shown])
    behaviors.write_text("\n".join(lines) + "\n", encoding="utf-8")
    encoder = f"--encoder={tiny_encoder}"
    for command in (
        ["prepare", room.logs, room.titles, "--refine", "none", "--fields", "title"],
        ["prepare", room.logs, room.refined],
        ["train", room.titles, room.zero, "--recipe", "zero-shot", encoder],
        ["train", room.refined, room.trained, "--recipe", "tiny", encoder, "--steps", "3", "--validations", "0"],
    ):
        main([str(word) for word in command])
    return room
