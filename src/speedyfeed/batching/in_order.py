"""Work in parallel, results in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def map_in_order(
    executor: Executor | None, do: Callable[[Task], Result], tasks: Iterable[Task], ahead: int
) -> Iterator[Result]:
    """Results of tasks in their order; up to `ahead` are begun before they are asked for.

    Without an executor, each is done when it is asked for.
    """
    if executor is None:
        yield from map(do, tasks)
        return
    begun: deque[Future[Result]] = deque()
    for task in tasks:
        begun.append(executor.submit(do, task))
        if len(begun) > ahead:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()
