"""The process group: processes that train one model together, as torchrun starts them, and their collectives.

Every rank runs the same program over the same batches. Decisions that must not differ are taken by rank 0 and
broadcast; ranks differ in the articles and users of a batch they compute (`partition.py`). Tensors in host memory
are sent by gloo, those on a GPU by NCCL. A process that torchrun did not start is the only rank.
Shapes: W ranks, N rows, D width.
"""

import math
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic, perf_counter, sleep
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# Imported before a group exists: its functions have the group of the time of this import as a default. That keeps
# the group and its threads, which abort the process if they release a tensor while the interpreter ends.
import torch.distributed.nn.functional
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, but not declared

from speedyfeed.errors import InputError, LostRanksError

T = TypeVar("T")

TIMEOUT = timedelta(minutes=10)
"""Time that a rank waits for the others before it fails. A peer that dies is noticed at once."""
CONNECT_SECONDS = 5.0
RETRY_SECONDS = 0.1
PORT = "speedyfeed.port"


@dataclass(kw_only=True, slots=True)
class Traffic:
    """Cost of the communication of this rank with the others."""

    num_bytes: float = 0.0
    """Bytes sent in ring collectives: (W - 1) / W of what is gathered or scattered, twice that for all-reduce."""
    seconds: float = 0.0
    """Seconds of sending, receiving and waiting for the others, by the clock of the host: asynchronous work of a
    GPU is not included."""


class ProcessGroup:
    """This process among those that train together. All must call collectives in the same order."""

    def __init__(self, *, rank: int = 0, world: int = 1, local_rank: int = 0, local_world: int = 1) -> None:
        self.rank = rank
        self.world = world
        self.local_rank = local_rank
        """Number of this rank among those of its host, which are consecutive."""
        self.local_world = local_world
        self.shares_memory = world > 1 and hasattr(os, "memfd_create")
        self.traffic = Traffic()

    @property
    def is_rank_0(self) -> bool:
        """Whether this is the rank that takes decisions, writes files and logs."""
        return self.rank == 0

    @property
    def is_writer(self) -> bool:
        """Whether this rank writes to the shared memory of its host."""
        return self.local_rank == 0 or not self.shares_memory

    def take_traffic(self) -> Traffic:
        """Traffic since the last call."""
        taken, self.traffic = self.traffic, Traffic()
        return taken

    def local_device(self, device: torch.device) -> torch.device:
        """Device of this rank: a GPU of its own where the device is cuda."""
        if self.world == 1 or device.type != "cuda":
            return device
        if device != torch.device("cuda"):
            raise InputError(f"device {device}: with several ranks each has a GPU of its own; say cuda or auto")
        if self.local_world > torch.cuda.device_count():
            raise InputError(
                f"{self.local_world} ranks on this host, but torch finds {torch.cuda.device_count()} GPUs: start "
                "no more ranks than that (--nproc-per-node), or add --device cpu"
            )
        own = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(own)
        return own

    def all_reduce(self, value: float) -> float:
        """Sum of the values of all ranks."""
        return float(self._all_reduce(torch.tensor(value, dtype=torch.float64)))

    def any(self, fact: bool) -> bool:
        """Whether a fact holds on at least one rank."""
        return self.all_reduce(fact) > 0

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        self._all_reduce(torch.zeros(1))

    def all_gather(self, value: int) -> list[int]:
        """Values of all ranks, in order of rank."""
        return [int(one) for one in self._all_gather(torch.tensor([value]))]

    def on_rank_0(self, do: Callable[[], T]) -> T | None:
        """Call `do` on rank 0 while the others wait and get None. Where it fails, all ranks fail."""
        if self.world == 1:
            return do()
        result: T | None = None
        error: Exception | None = None
        if self.is_rank_0:
            try:
                result = do()
            except Exception as raised:
                error = raised
        has_failed = self.any(error is not None)
        if error is not None:
            raise error
        if has_failed:
            raise InputError("rank 0 failed; see its error message")
        return result

    def broadcast(self, value: float) -> float:
        """Value of rank 0."""
        tensor = torch.tensor(value, dtype=torch.float64)
        self._broadcast(tensor)
        return float(tensor)

    def broadcast_module(self, module: nn.Module) -> None:
        """Copy all parameters and buffers of rank 0 to the other ranks."""
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                self._broadcast(tensor)

    def all_gather_rows(self, rows_ND: Tensor, sizes: Sequence[int]) -> Tensor:
        """Rows of all ranks in order of rank, which has `sizes[rank]`; gradients flow back to their rank.

        The loss of every rank must depend on the result, because the backward pass is a collective as well.
        """
        assert len(rows_ND) == sizes[self.rank], (len(rows_ND), sizes, self.rank)
        most = max(sizes)
        padded_ND = nn.functional.pad(rows_ND, (0, 0, 0, most - len(rows_ND)))
        gathered_WND: Tensor = _AllGatherRows.apply(padded_ND, self)  # type: ignore[no-untyped-call]
        return torch.cat([rows[:size] for rows, size in zip(gathered_WND, sizes, strict=True)])

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients of all ranks in one all-reduce; a parameter without gradient on all ranks has none."""
        if self.world == 1:
            return
        device = parameters[0].device
        has_gradient = torch.tensor(
            [one.grad is not None for one in parameters], dtype=torch.float32, device=device
        )
        parts = [
            torch.zeros(one.numel(), device=device) if one.grad is None else one.grad.flatten()
            for one in parameters
        ]
        summed = self._all_reduce(torch.cat([has_gradient, *parts]))
        counts, *parts = summed.split([len(parameters), *(one.numel() for one in parameters)])
        for parameter, count, part in zip(parameters, counts.tolist(), parts, strict=True):
            parameter.grad = part.view_as(parameter) if count else None

    def shared_zeros(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Tensor of zeros in memory that the ranks of a host share.

        The memory is anonymous: a killed run leaves nothing behind, and the size of /dev/shm does not matter.
        Where the system has no such memory, every rank gets its own and `is_writer`.
        """
        if not self.shares_memory:
            return torch.zeros(shape, dtype=dtype)
        own = os.memfd_create("speedyfeed") if self.is_writer else -1
        if self.is_writer:
            os.ftruncate(own, math.prod(shape) * dtype.itemsize)
        addresses = self._all_gather(torch.tensor([os.getpid(), own]))
        pid, file = addresses[self.rank - self.local_rank].tolist()
        tensor = torch.from_file(f"/proc/{pid}/fd/{file}", shared=True, size=math.prod(shape), dtype=dtype)
        self.barrier()  # all have mapped it; it lives as long as they do
        if self.is_writer:
            os.close(own)
        return tensor.view(shape)

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        if self.world > 1:
            with self._communicate(2 * tensor.nbytes):
                dist.all_reduce(tensor)
        return tensor

    def _broadcast(self, tensor: Tensor) -> None:
        if self.world > 1:
            with self._communicate(tensor.nbytes):
                dist.broadcast(tensor, src=0)

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        if self.world == 1:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        with self._communicate(self.world * tensor.nbytes):
            dist.all_gather(parts, tensor)
        return parts

    def _reduce_scatter(self, parts_WND: Tensor) -> Tensor:
        """Sum over ranks of their part for this rank (reduce-scatter)."""
        own = torch.empty_like(parts_WND[0])
        with self._communicate(parts_WND.nbytes):
            dist.reduce_scatter(own, list(parts_WND.contiguous()))
        return own

    @contextmanager
    def _communicate(self, num_bytes: int) -> Iterator[None]:
        started = perf_counter()
        try:
            yield
        except RuntimeError as error:
            reason = str(error).removeprefix("[").partition("] ")[2] or str(
                error
            )  # without the line in gloo's source
            raise LostRanksError(f"rank {self.rank} lost the others: {reason.partition('. ')[0]}") from error
        self.traffic.seconds += perf_counter() - started
        self.traffic.num_bytes += num_bytes * (self.world - 1) / self.world


class _AllGatherRows(torch.autograd.Function):
    """All-gather of rows forward, reduce-scatter of their gradients backward."""

    @staticmethod
    def forward(ctx: Any, rows_ND: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return torch.stack(group._all_gather(rows_ND.contiguous()))

    @staticmethod
    def backward(ctx: Any, *gradients_WND: Tensor) -> tuple[Tensor, None]:
        return ctx.group._reduce_scatter(gradients_WND[0]), None


SINGLE_PROCESS = ProcessGroup()


@contextmanager
def open_process_group(timeout: timedelta = TIMEOUT) -> Iterator[ProcessGroup]:
    """Process group that torchrun started this process in; a single process elsewhere."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or "RANK" not in os.environ:
        yield SINGLE_PROCESS
        return
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=_open_store(rank, timeout) if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else None,
        rank=rank,
        world_size=world,
        timeout=timeout,
    )
    yield ProcessGroup(
        rank=rank,
        world=world,
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        local_world=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    )
    dist.destroy_process_group()  # not after an error: it could wait for a lost peer


def _open_store(rank: int, timeout: timedelta) -> TCPStore:
    """Key-value store in which the ranks find each other, opened by rank 0.

    The store of torchrun survives restarts with the addresses of dead ranks, which new ones would try to reach. It
    is used to publish the port of the new store only. A rank that reads an old port finds nobody there and reads
    again: torchrun ends all ranks before it starts any.
    """
    host = os.environ["MASTER_ADDR"]
    agent = TCPStore(host, int(os.environ["MASTER_PORT"]), is_master=False, timeout=timeout)
    if rank == 0:
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        agent.set(PORT, str(store.port))
        return store
    end = monotonic() + timeout.total_seconds()
    while not _answers(host, port := int(agent.get(PORT))):
        if monotonic() > end:
            raise LostRanksError(f"rank {rank} cannot reach rank 0 at {host}")
        sleep(RETRY_SECONDS)
    return TCPStore(host, port, is_master=False, timeout=timeout)


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS):
            return True
    except OSError:
        return False


def is_under_torchrun() -> bool:
    """Whether torchrun restarts this process, with the same arguments, when it fails."""
    return dist.is_torchelastic_launched()
