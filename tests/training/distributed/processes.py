"""Real processes for tests of ranks: forked, so that none has to import anything, and joined by gloo."""

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

from speedyfeed.errors import LostRanksError
from speedyfeed.training.distributed.process_group import ProcessGroup, open_process_group

PATIENCE = 120
"""Seconds after which a test has hung."""


def run_ranks(
    world: int,
    work: Callable[[ProcessGroup], Any],
    *,
    hosts: Sequence[int] = (),
    timeout: float = 60,
    lost: Collection[int] = (),
) -> list[Any]:
    """What `work` returns on each rank not `lost`; raises what any of them raised.

    `hosts` says how many of them share memory, each time; all do, if not said.
    """
    context = multiprocessing.get_context("fork")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    local_ranks = [(local_rank, size) for size in hosts or [world] for local_rank in range(size)]
    assert len(local_ranks) == world
    for rank, (local_rank, local_world) in enumerate(local_ranks):
        environment = {
            "RANK": rank,
            "WORLD_SIZE": world,
            "LOCAL_RANK": local_rank,
            "LOCAL_WORLD_SIZE": local_world,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        end, there = context.Pipe(duplex=False)
        child = context.Process(target=_work, args=(work, environment, timeout, there), daemon=True)
        child.start()
        there.close()
        children.append((child, end))
    ends = [end for rank, (_, end) in enumerate(children) if rank not in lost]
    results = [end.recv() if end.poll(PATIENCE) else TimeoutError("a rank hangs") for end in ends]
    for child, _ in children:
        child.join(0 if lost else 5)
        child.kill()
        child.join()
    errors = [result for result in results if isinstance(result, Exception)]
    for error in sorted(
        errors, key=lambda error: isinstance(error, LostRanksError)
    ):  # what broke them comes first
        raise error
    return results


def _work(work: Callable[[ProcessGroup], Any], environment: dict[str, object], timeout: float, there: Any) -> None:
    os.environ.update({name: str(value) for name, value in environment.items()})
    try:
        with open_process_group(timedelta(seconds=timeout)) as ranks:
            there.send(work(ranks))
    except Exception as error:
        error.add_note(traceback.format_exc())
        there.send(error)
