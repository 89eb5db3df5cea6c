"""Batches to time: the loader's plan of an epoch, and pieces of batches that fit into memory."""

from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from speedyfeed.batching.batches import Batch, BatchConfig
from speedyfeed.data.store import PAD_NEWS, Timelines
from speedyfeed.ragged import Array, Ragged, offsets_of
from speedyfeed.training.config import RunConfig
from speedyfeed.training.loop import open_loader

PIECE_TOKENS = 10_240
"""Tokens encoded at once of a batch that encodes every position: 32 instances of 100 articles take 80 GB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Totals of an epoch as the loader plans it, or of the first part of one."""

    batches: int
    full: int
    """Batches that `max_clicks_per_batch` ended, before their tokens reached the budget."""
    clicks: float
    """Clicks learned from, each by its weight in the loss."""
    users: int
    tokens: int
    padded_tokens: int
    encoded: int
    cache_hits: int
    run: RunConfig
    """Settings of the run on this log, with the batches and the gamma that follow its size."""
    samples: list[Batch]
    """Some of the batches, evenly spread over the plan."""


def plan(
    train: Timelines,
    run: RunConfig,
    lengths_V: NDArray[np.int64],
    *,
    most_batches: int | None,
    num_samples: int,
) -> Plan:
    """Run the loader through an epoch, or through the first batches of one, as training would."""
    batches = full = tokens = padded = encoded = cache_hits = 0
    clicks = 0.0
    run = replace(run, train=replace(run.train, epochs=1)).for_log(train, len(lengths_V) - 1)
    fallback_weight = run.loss_on(train).fallback_click_weight
    is_user = np.zeros(len(train.clicks), np.bool)
    samples, stride = [], 1
    with open_loader(run, train, lengths_V) as loader:
        for batch in islice(loader, most_batches):
            if batches % stride == 0:
                samples.append(batch)
                if len(samples) == 4 * num_samples:  # the total is not known in advance: thin them out
                    del samples[1::2]
                    stride *= 2
            batches += 1
            full += batch.is_full
            clicks += batch.weigh_clicks(fallback_weight)
            tokens += batch.num_tokens
            padded += batch.num_padded_tokens
            encoded += len(batch.encode_E)
            cache_hits += len(batch.cached_R)
            is_user[batch.users_B] = True
    middles = ((np.arange(num_samples) + 0.5) * len(samples) / num_samples).astype(int)
    return Plan(
        batches=batches,
        full=full,
        clicks=clicks,
        users=int(is_user.sum()),
        tokens=tokens,
        padded_tokens=padded,
        encoded=encoded,
        cache_hits=cache_hits,
        run=run,
        samples=[samples[position] for position in middles],
    )


def repeat(train: Timelines, lengths_V: NDArray[np.int64], copies: int) -> tuple[Timelines, NDArray[np.int64]]:
    """A log with so many times the users and the articles, and the tokens of its articles.

    Every copy has articles of its own, so that popularity is distributed as in the log itself.
    """
    num_news, num_pools = len(lengths_V) - 1, len(train.pools)
    return Timelines(
        clicks=_repeat_rows(train.clicks, num_news, copies),
        click_pools=_repeat(train.click_pools, num_pools, copies, none=-1),
        user_pools=_repeat(train.user_pools, num_pools, copies, none=-1),
        pools=_repeat_rows(train.pools, num_news, copies),
        click_times=None if train.click_times is None else np.tile(train.click_times, copies),
    ), np.concatenate([lengths_V[:1], np.tile(lengths_V[1:], copies)])


def _repeat_rows(rows: Ragged, shift: int, copies: int) -> Ragged:
    values = _repeat(rows.values, shift, copies, none=PAD_NEWS)
    return Ragged(values=values, offsets=offsets_of(np.tile(rows.lengths, copies)))


def _repeat(values: Array, shift: int, copies: int, *, none: int) -> Array:
    """Copies of the values, each larger by `shift` than the one before, but for `none`."""
    once = np.asarray(values)
    shifts = shift * np.arange(copies, dtype=once.dtype)[:, None]
    return np.where(once == none, none, once + shifts).ravel().astype(once.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A batch, or the part of it that is encoded at once, and its tokens, padding included."""

    batch: Batch
    tokens: int


def cut(batch: Batch, config: BatchConfig, lengths_V: NDArray[np.int64], most_tokens: int = PIECE_TOKENS) -> Piece:
    """Leave a batch of distinct articles whole; of one that encodes every position, take some instances."""
    if config.central:
        return Piece(batch=batch, tokens=batch.num_padded_tokens)
    batch = _clicks(batch, most_tokens, config, lengths_V)
    tokens_B = _tokens_BP(batch, config, lengths_V).sum(1)
    num_fit = max(1, int(np.searchsorted(tokens_B.cumsum(), most_tokens, side="right")))
    rows = slice(0, num_fit)
    piece = replace(
        batch,
        step=0,  # no update is due
        users_B=batch.users_B[rows],
        history_BL=batch.history_BL[rows],
        targets_BL=batch.targets_BL[rows],
        negatives_BLN=batch.negatives_BLN[rows],
        has_own_negatives_BL=batch.has_own_negatives_BL[rows],
    )
    return Piece(batch=piece, tokens=int(tokens_B[rows].sum()))


def _clicks(batch: Batch, most_tokens: int, config: BatchConfig, lengths_V: NDArray[np.int64]) -> Batch:
    """The first clicks of every instance, in case a whole one has too many tokens."""
    if not config.autoregressive:
        return batch
    per_click = (1 + config.negatives) * int(lengths_V.max())
    some = slice(0, max(1, most_tokens // per_click))
    return replace(
        batch,
        history_BL=batch.history_BL[:, some],
        targets_BL=batch.targets_BL[:, some],
        negatives_BLN=batch.negatives_BLN[:, some],
        has_own_negatives_BL=batch.has_own_negatives_BL[:, some],
    )


def _tokens_BP(batch: Batch, config: BatchConfig, lengths_V: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tokens encoded at every position of a batch of fixed shape whose positions are encoded one by one."""
    assert config.size, "a batch of fixed shape is padded to the longest article"
    size = len(batch.users_B)
    targets = [] if config.autoregressive else [batch.targets_BL]
    news_BP = np.concatenate([batch.history_BL, *targets, batch.negatives_BLN.reshape(size, -1)], 1)
    tokens_BP = lengths_V[news_BP] if config.mode == "packed" else np.full(news_BP.shape, lengths_V.max())
    return np.where(np.isin(news_BP, batch.cached_R), 0, tokens_BP)
