"""The loader: batches prepared by a background thread, resumable between any two updates.

The thread closes one batch after the other, because each decides the next; `planners` others sample the users of
batches to come and make the arrays of those that are closed. All sleep while `prefetch` batches are ready.
Shapes: V all articles.
"""

import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from queue import SimpleQueue
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from speedyfeed.batching.batcher import Batcher
from speedyfeed.batching.batches import Batch, BatchConfig, Position
from speedyfeed.batching.cache_plan import CacheConfig, Reads, Stamps, new_stamps
from speedyfeed.batching.sample import Sampler, WithoutNegatives
from speedyfeed.data.store import Timelines
from speedyfeed.errors import InputError
from speedyfeed.ragged import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderState:
    """State from which a new loader continues with the batch after the last one consumed."""

    position: Position
    stamps_V: Stamps
    """Step that last encoded each article; the cache must hold the rows of the last gamma steps."""
    deferred_V: Stamps
    """Step of the oldest cache hit of each article whose gradient is deferred; -1 for the others."""

    @classmethod
    def initial(cls, num_news: int) -> "LoaderState":
        """State before the first batch."""
        return cls(position=Position(), stamps_V=new_stamps(num_news), deferred_V=new_stamps(num_news))

    def require_log(self, num_news: int, num_instances: int) -> None:
        """Refuse a log of another size than that of the state."""
        if len(self.stamps_V) != num_news + 1 or self.position.cursor > num_instances:
            raise InputError(
                f"the saved state is of a log with {len(self.stamps_V) - 1} articles, this one has {num_news} "
                f"articles and {num_instances} instances; resume with the store that the run began with"
            )

    def arrays(self) -> dict[str, Array]:
        """Arrays by name, for a checkpoint."""
        position = self.position
        numbers = np.array([position.step, position.epoch, position.cursor])
        return {
            "position": numbers,
            "waiting": position.waiting,
            "stamps": self.stamps_V,
            "deferred": self.deferred_V,
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> "LoaderState":
        """State from what `arrays` gave."""
        step, epoch, cursor = arrays["position"].tolist()
        position = Position(step=step, epoch=epoch, cursor=cursor, waiting=arrays["waiting"])
        return cls(position=position, stamps_V=arrays["stamps"], deferred_V=arrays["deferred"])


class Loader:
    """Iterator over batches; close it, or use it in a `with` block, to end its thread."""

    def __init__(
        self,
        timelines: Timelines,
        lengths_V: NDArray[np.int64],
        config: BatchConfig,
        cache: CacheConfig,
        *,
        seed: int,
        epochs: int | None = None,
        accumulate: int = 1,
        state: LoaderState | None = None,
        without_negatives: WithoutNegatives = "fallback",
    ) -> None:
        """Start the thread. `lengths_V` holds the number of tokens of every article.

        The batches end after `epochs`, if given, and continue from `state`. An update of the weights takes
        `accumulate` of them. `without_negatives` is the use of clicks that have no negatives of their own (see
        `sample`).
        """
        num_news = len(lengths_V) - 1
        sampler = Sampler(
            timelines,
            num_news=num_news,
            max_clicks=config.max_clicks,
            negatives=config.negatives,
            seed=seed,
            autoregressive=config.autoregressive,
            without_negatives=without_negatives,
            first_click=config.first_click,
        )
        state = state or LoaderState.initial(num_news)
        state.require_log(num_news, sampler.num_instances)
        self.num_instances = sampler.num_instances
        """Number of instances of an epoch."""
        self._position = state.position
        self._stamps_V, self._deferred_V = state.stamps_V.copy(), state.deferred_V.copy()
        self._reads: Reads = []
        self._plan = cache.plan(seed, accumulate)
        executor = ThreadPoolExecutor(config.planners, "speedyfeed-planner") if config.planners > 1 else None
        batcher = Batcher(
            sampler,
            lengths_V,
            config,
            self._plan,
            state.position,
            state.stamps_V.copy(),
            state.deferred_V.copy(),
            executor,
        )
        batches = takewhile(lambda batch: epochs is None or batch.epoch < epochs, batcher)
        self._channel = _Channel(config.prefetch)
        self._over: Exception | None = None
        self._thread = threading.Thread(
            target=_produce, args=(batches, self._channel, executor), name="speedyfeed-loader", daemon=True
        )
        self._thread.start()
        # The thread ends as well if the loader is dropped instead of closed.
        weakref.finalize(self, self._channel.close)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Next batch; an exception of the thread is raised here."""
        if self._over is None:
            item = self._channel.ready.get()
            if isinstance(item, Batch):
                self._channel.slots.release()
                encoded = np.concatenate([item.encode_E, item.deliver_E])
                self._stamps_V[encoded] = item.step
                self._plan.note_deferred(self._deferred_V, self._reads, item.step, encoded, item.cached_R)
                self._position = item.after
                return item
            self._over = item
        raise self._over

    def state(self) -> LoaderState:
        """State after the last batch consumed, which ends an update; prefetched batches do not count."""
        return LoaderState(
            position=self._position, stamps_V=self._stamps_V.copy(), deferred_V=self._deferred_V.copy()
        )

    def close(self) -> None:
        """End the thread and drop prefetched batches."""
        self._channel.close()
        self._thread.join()
        self._over = self._over or StopIteration()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Channel:
    """Queue between thread and consumer: batches that are ready, and slots for more."""

    def __init__(self, prefetch: int) -> None:
        self.ready: SimpleQueue[Batch | Exception] = SimpleQueue()
        self.slots = threading.Semaphore(prefetch)
        self.is_closed = False

    def close(self) -> None:
        """Wake the thread so that it ends."""
        self.is_closed = True
        self.slots.release()


def _produce(batches: Iterator[Batch], channel: _Channel, executor: Executor | None) -> None:
    """Fill the channel until it is closed; its last item is the exception that ended the batches."""
    try:
        while channel.slots.acquire() and not channel.is_closed:
            channel.ready.put(next(batches))
    except Exception as error:  # StopIteration is the orderly end
        channel.ready.put(error)
    finally:
        if executor is not None:
            executor.shutdown(cancel_futures=True)
