"""Deferred gradients: those of cached rows, stored until the encoder encodes the article again and receives them.

    step s     encode n            h = f(x; w_s)                   write h
    step t>s   read h as a leaf    g += dLoss_t / dh               no encoding
    step s'    encode n again      Loss_s' + < g, f(x; w_s') >     the encoder gets everything since s; g = 0

Gradients are those of the text alone: `project` learns from cached rows at once. An update divides its gradient by
the summed weight of its batches, which is known with the last of them. So gradients are collected as they come and
divided when the update is made, and delivered in the last batch of a later update, multiplied by its weight.

How often each article was read is known to all ranks from the batches, so they agree on which are pending.
The gradients are of a rank's own users: each rank adds its own to what it differentiates, and the sum over ranks
is what the encoder receives. Rows are in host memory, for pending articles alone.
Shapes: V all articles, R rows read, E rows encoded, O pending articles, S slots, H width of an encoded text.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class _Collected:
    """Gradients of the cached rows of one batch, before its update."""

    step: int
    batch_R: Tensor
    own_R: Tensor
    gradients_RH: Tensor


class DeferredGradients:
    """Gradients of cached rows by article, and how many reads of the cache each stands for."""

    def __init__(self, *, num_news: int, width: int) -> None:
        self._reads_V = torch.zeros(num_news + 1, dtype=torch.int32)  # number of reads that are not delivered
        self._since_V = torch.zeros(num_news + 1, dtype=torch.int32)  # step of the oldest of them
        self._rows = _SparseRows(num_news=num_news, width=width)
        self._waiting: list[_Collected] = []
        self._delivering: list[Tensor] = []
        self.num_collected = 0
        """Number of reads of the cache so far: an article counts once in each batch that reads it."""
        self.num_delivered = 0
        """Number of those whose gradient has reached the encoder."""

    @property
    def share_delivered(self) -> float:
        """Fraction of the reads so far whose gradient has reached the encoder; 1 before the first read."""
        return self.num_delivered / self.num_collected if self.num_collected else 1.0

    def pending(self) -> Tensor:
        """Articles whose gradients have not been delivered, pending_O: oldest first, then by id."""
        pending_O = self._reads_V.nonzero().squeeze(1)
        return pending_O[self._since_V[pending_O].argsort(stable=True)]

    def collect(self, step: int, batch_R: Tensor, own_R: Tensor, gradients_RH: Tensor) -> None:
        """Note the gradients of the rows `own_R`, which may repeat; the whole batch reads `batch_R`."""
        self._waiting.append(
            _Collected(step=step, batch_R=batch_R, own_R=own_R, gradients_RH=gradients_RH.detach().float().cpu())
        )

    def deliver(self, ids_E: Tensor, encoded_EH: Tensor) -> Tensor:
        """Term to add to what is differentiated: its gradient in an encoded row is the row's deferred gradient.

        `settle` removes what was delivered, when the update is made.
        """
        pending_E = (self._reads_V[ids_E] > 0).nonzero().squeeze(1)
        self._delivering.append(ids_E[pending_E])
        deferred_OH = self._rows.read(ids_E[pending_E]).to(encoded_EH.device)
        return (deferred_OH * encoded_EH[pending_E.to(encoded_EH.device)].float()).sum()

    def settle(self, weight: float) -> None:
        """Remove what was delivered, and defer what was collected, divided by the `weight` of the update."""
        for ids_O in self._delivering:
            self.num_delivered += int(self._reads_V[ids_O].sum())
            self._reads_V[ids_O] = 0
            self._rows.remove(ids_O)
        for one in self._waiting:
            new_R = one.batch_R[self._reads_V[one.batch_R] == 0]
            self._since_V[new_R] = one.step
            self._reads_V[one.batch_R] += 1
            self.num_collected += len(one.batch_R)
            # A gradient that overflowed in half precision would spoil all later updates.
            is_finite_R = one.gradients_RH.isfinite().all(1)
            self._rows.add(one.own_R[is_finite_R], one.gradients_RH[is_finite_R] / weight)
        self.discard()

    def discard(self) -> None:
        """Forget what was collected since the last update, which was skipped; what was deferred before remains."""
        self._waiting, self._delivering = [], []

    def export(self) -> dict[str, Tensor]:
        """Deferred gradients as named tensors for a checkpoint, between two updates; `rows` are this rank's."""
        assert not self._waiting, "gradients are waiting for their update"
        ids = self._reads_V.nonzero().squeeze(1)
        return {
            "ids": ids,
            "reads": self._reads_V[ids],
            "since": self._since_V[ids],
            "rows": self._rows.read(ids),
            "totals": torch.tensor([self.num_collected, self.num_delivered]),
        }

    def load(self, exported: dict[str, Tensor]) -> None:
        """Replace all deferred gradients by exported ones."""
        self.discard()
        self._rows.remove(self._reads_V.nonzero().squeeze(1))
        ids = exported["ids"]
        self._reads_V.zero_()
        self._reads_V[ids] = exported["reads"]
        self._since_V[ids] = exported["since"]
        self._rows.add(ids, exported["rows"])
        self.num_collected, self.num_delivered = exported["totals"].tolist()


class _SparseRows:
    """Rows of some articles, in a tensor that grows to the largest number of them."""

    def __init__(self, *, num_news: int, width: int) -> None:
        self._slots_V = torch.zeros(num_news + 1, dtype=torch.int32)  # 0 where there is no row
        self._rows_SH = torch.zeros(1, width)  # slot 0 stays zero
        self._free: list[int] = []

    def read(self, ids: Tensor) -> Tensor:
        """Rows of these articles; zero where there is none."""
        return self._rows_SH[self._slots_V[ids].long()]

    def add(self, ids: Tensor, rows: Tensor) -> None:
        """Add to the rows of these articles, which may repeat."""
        new = torch.unique(ids[self._slots_V[ids] == 0])
        self._grow(len(new))
        slots = torch.tensor([self._free.pop() for _ in new], dtype=torch.int32)
        self._slots_V[new] = slots
        self._rows_SH[slots.long()] = 0
        self._rows_SH.index_add_(0, self._slots_V[ids].long(), rows)

    def remove(self, ids: Tensor) -> None:
        """Forget the rows of these articles."""
        slots = self._slots_V[ids]
        self._free.extend(slots[slots > 0].tolist())
        self._slots_V[ids] = 0

    def _grow(self, num_needed: int) -> None:
        num_slots = len(self._rows_SH)
        num_more = num_needed - len(self._free)
        if num_more > 0:
            num_more = max(num_more, num_slots)
            self._rows_SH = torch.cat([self._rows_SH, self._rows_SH.new_zeros(num_more, self._rows_SH.size(1))])
            self._free.extend(range(num_slots, num_slots + num_more))
