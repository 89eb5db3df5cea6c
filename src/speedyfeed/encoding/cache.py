"""The cache: texts that earlier steps encoded, and the step that encoded each.

One row per article in host memory, articles x width x 4 bytes (2 in bf16): 100,000 articles of width 384 take
150 MB, paged in as they are written. The cache plan decides from step numbers alone which rows a step reads; the
cache stores the values and asserts that a row was written before it is read.
Shapes: V all articles, R rows read, E rows encoded, H width of an encoded text.
"""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from speedyfeed.errors import InputError

CACHE_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
NEVER = -1


class NewsCache:
    """Encoded texts and stamps of all articles; row 0 is padding and stays empty."""

    def __init__(
        self, *, num_news: int, width: int, dtype: str = "fp32", zeros: Callable[..., Tensor] = torch.zeros
    ) -> None:
        """Allocate the rows with `zeros`, which may return memory that all processes of a host share."""
        if dtype not in CACHE_TYPES:
            raise InputError(f"no cache dtype {dtype!r}: choose {' or '.join(CACHE_TYPES)}")
        self.rows_VH = zeros(num_news + 1, width, dtype=CACHE_TYPES[dtype])
        self.stamps_V = zeros(num_news + 1, dtype=torch.int32).fill_(NEVER)
        """Step that wrote each row; -1 where none did."""

    def read(self, ids_R: Tensor) -> Tensor:
        """Rows of these articles as float32 in host memory, without gradient."""
        unwritten = ids_R[self.stamps_V[ids_R] == NEVER]
        assert not len(unwritten), f"news {unwritten[:5].tolist()} read before they were written"
        return self.rows_VH[ids_R].float()

    def write(self, ids_E: Tensor, rows_EH: Tensor, step: int) -> None:
        """Store the rows that `step` encoded, together with their stamps."""
        assert rows_EH.shape == (len(ids_E), self.rows_VH.size(1)), (rows_EH.shape, len(ids_E))
        assert step >= 0
        assert (ids_E > 0).all(), "padding has no row"
        self.rows_VH[ids_E] = rows_EH.detach().to("cpu", self.rows_VH.dtype)
        self.stamps_V[ids_E] = step

    def export(self, since: int = 0) -> dict[str, Tensor]:
        """Rows written at step `since` or later as named tensors, for a checkpoint."""
        ids = (self.stamps_V >= max(since, 0)).nonzero().squeeze(1)
        return {"ids": ids, "stamps": self.stamps_V[ids], "rows": self.rows_VH[ids]}

    def load(self, exported: dict[str, Tensor]) -> None:
        """Replace the whole cache by exported rows."""
        ids, stamps, rows = exported["ids"], exported["stamps"], exported["rows"]
        if rows.dtype != self.rows_VH.dtype or rows.shape[1:] != self.rows_VH.shape[1:]:
            raise InputError(
                f"the saved cache has rows of {rows.size(1)} x {rows.dtype}, expected {self.rows_VH.size(1)} x "
                f"{self.rows_VH.dtype}; resume with the settings it was saved with"
            )
        if len(ids) and int(ids.max()) >= len(self.stamps_V):
            raise InputError(
                f"the saved cache has article {int(ids.max())}, expected at most {len(self.stamps_V) - 1}; "
                "resume with the store it was trained on"
            )
        self.stamps_V.fill_(NEVER)
        self.stamps_V[ids] = stamps
        self.rows_VH[ids] = rows

    def checksum(self, since: int = 0) -> str:
        """Checksum of the rows and stamps written at step `since` or later; costs a pass over them."""
        digest = hashlib.sha256()
        for _, tensor in sorted(self.export(since).items()):
            digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()
