"""Instances that have arrived and wait for their batch.

Shapes: U instances that wait.
"""

import numpy as np
from numpy.typing import NDArray

from speedyfeed.batching.sample import Instances

Rows = NDArray[np.int64]


class Queue:
    """Instances in order of arrival; `rows` are those that are not in a batch yet."""

    def __init__(self, *, positions_U: Rows, bucket_U: Rows, instances: Instances) -> None:
        self.positions_U = positions_U
        self.bucket_U = bucket_U
        self.instances = instances
        self.rows: Rows = np.arange(len(instances))

    def remove(self, rows: Rows) -> None:
        """Remove instances that are in a batch now."""
        is_left = np.ones(len(self.instances), np.bool)
        is_left[rows] = False
        self.rows = self.rows[is_left[self.rows]]

    def extended(self, others: "Queue") -> "Queue":
        """Queue of the instances that still wait, followed by the others."""
        return Queue(
            positions_U=np.concatenate([self.positions_U[self.rows], others.positions_U]),
            bucket_U=np.concatenate([self.bucket_U[self.rows], others.bucket_U]),
            instances=self.instances.take(self.rows).extended(others.instances),
        )
