"""A batch is partitioned whole: nothing twice, nothing left out, no rank with much more than the others."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speedyfeed.batching.batches import Batch, Position
from speedyfeed.models.packed import PackedNews
from speedyfeed.training.distributed.partition import (
    PER_USER,
    PartitionedEncoder,
    balanced_partition,
    encode_all,
    local_users,
)
from speedyfeed.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from speedyfeed.training.run_folder import open_run, start_run
from speedyfeed.training.trainer import Trainer
from speedyfeed.training.workflow import share_of
from tests.training.distributed.processes import run_ranks


def test_rows_are_partitioned_and_put_together_again():
    assert [share.tolist() for share in balanced_partition(np.array([9, 8, 7, 5, 4, 1]), 3)] == [
        [0, 5],
        [1, 4],
        [2, 3],
    ]
    assert [share.tolist() for share in balanced_partition(np.array([2, 3]), 3)] == [[1], [0], []]


@given(st.lists(st.integers(0, 200), max_size=60), st.integers(1, 7))
def test_shares_are_even_and_hold_every_row_once(sizes, num_parts):
    sizes = np.array(sizes, np.int64)
    shares = balanced_partition(sizes, num_parts)
    assert len(shares) == num_parts
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(sizes)))
    counts = [len(share) for share in shares]
    assert max(counts) - min(counts) <= 1
    loads = [sizes[share].sum() for share in shares]
    assert max(loads) - min(loads) <= sizes.max(initial=0)


def batch_of(histories, has_own_negatives):
    history = np.zeros((len(histories), max(map(len, histories))), np.int32)
    pools = np.zeros(history.shape, np.bool)
    for row, (clicks, known) in enumerate(zip(histories, has_own_negatives, strict=True)):
        history[row, : len(clicks)] = clicks
        pools[row, : len(clicks)] = known
    return Batch(
        step=0,
        epoch=0,
        users_B=10 + np.arange(len(histories)),
        history_BL=history,
        targets_BL=history,
        negatives_BLN=history[..., None],
        has_own_negatives_BL=pools,
        encode_E=np.unique(history)[1:],
        cached_R=np.zeros(0, np.int32),
        deliver_E=np.zeros(0, np.int32),
        num_tokens=9,
        num_padded_tokens=9,
        is_full=False,
        after=Position(),
    )


@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_user_is_one_ranks_and_their_shares_add_up(world):
    batch = batch_of([[1, 2, 3], [4], [5, 6]], [[True, False, False], [False], [True, True]])
    parts = [local_users(batch, ProcessGroup(rank=rank, world=world)) for rank in range(world)]
    users = [user for part in parts for user in part.users_B.tolist() if user]
    assert sorted(users) == [10, 11, 12]
    assert all(np.array_equal(part.encode_E, batch.encode_E) for part in parts)
    assert sorted(part.num_clicks for part in parts) == {1: [6], 2: [3, 3], 4: [0, 1, 2, 3]}[world]
    shares = [share_of(part, batch, 0.5) for part in parts]
    assert sum(share.clicks for share in shares) == pytest.approx(1)
    assert sum(share.weight for share in shares) == pytest.approx(1)
    if world == 4:
        assert {share.weight for share in shares} == {2 / 4.5, 0.5 / 4.5, 2 / 4.5, 0}


def test_every_array_of_users_is_partitioned():
    assert set(PER_USER) == {one.name for one in fields(Batch) if one.name.rpartition("_")[2].startswith("B")}


def test_ranks_encode_all_news_together(store, config, tmp_path):
    def encode(ranks):
        path = tmp_path / str(ranks.world)
        ranks.on_rank_0(lambda: start_run(path, config, store))
        trainer = Trainer(open_run(path), store, ranks)
        counts, own_share = [], trainer.model.news.encode_all
        trainer.model.news.encode_all = lambda news, **options: (
            counts.append(len(news)) or own_share(news, **options)
        )
        return encode_all(trainer.model.news, trainer.news, ranks).numpy(), counts, trainer.validate()

    alone, _, auc = encode(SINGLE_PROCESS)
    ranks = run_ranks(3, encode)
    for rows, _, seen in ranks:
        np.testing.assert_allclose(rows, alone, rtol=0, atol=1e-5)
        assert seen == ranks[0][2] == pytest.approx(auc, abs=1e-3)
    assert sum(counts[0] for _, counts, _ in ranks) == len(alone)
    assert max(counts[0] for _, counts, _ in ranks) <= len(alone) / 3 + 1


class OneText:
    """Encoder whose result without any text has no gradient."""

    def __init__(self):
        self.row = torch.nn.Parameter(torch.ones(1, 3))
        self.project = None

    def encode_text(self, news):
        return 2 * self.row if len(news) else torch.zeros(0, 3)


def test_a_rank_with_nothing_to_encode_takes_part_in_the_backward_pass():
    news = PackedNews(
        tokens_T=torch.zeros(4, dtype=torch.int32),
        frequencies_T=torch.zeros(4, dtype=torch.uint8),
        segment_starts=torch.tensor([0, 4]),
        news_starts=torch.tensor([0, 1]),
    )

    def learn(ranks):
        encoder, weight = OneText(), torch.nn.Parameter(torch.ones(3))
        (PartitionedEncoder(encoder, ranks).encode_text(news) * weight).sum().backward()
        return None if encoder.row.grad is None else encoder.row.grad.tolist()

    assert run_ranks(2, learn, timeout=10) == [[[4, 4, 4]], None]
