"""An encoder whose lower layers are frozen: what they make of a news is computed once and kept.

    tokens -> [embeddings, layer 0 ... n-2] -> kept rows -> [layer n-1, final norm] -> hidden states
              once per news, no gradient                    every step, trained

Kept in host memory, or in a memory-mapped file, up to a budget; news that no longer fit are computed each time.
Both halves are the stock model with modules left out, so whatever its forward does between them stays as it is.
"""

import copy
import logging
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from speedyfeed.errors import InputError
from speedyfeed.models.bus import Layout, build_layout
from speedyfeed.models.packed import PackedNews, count_up

log = logging.getLogger(__name__)

BEFORE = ("embeddings", "embeddings_project")
"""What stock models run before their layers."""
AFTER = ("final_norm", "norm", "LayerNorm")
"""What they run after them."""


class FrozenStates:
    """Rows of hidden states per news, in the order of the news' tokens."""

    def __init__(self, *, width: int, budget: int, file: Path | None = None) -> None:
        """Room for `budget` bytes; `file` maps them to disk instead of memory."""
        rows = budget // (width * torch.float32.itemsize)
        if file is None:
            self._rows = torch.empty(rows, width)  # pages are taken only once written
        else:
            self._rows = torch.from_file(str(file), shared=True, size=rows * width).view(rows, width)
        self._used = 0
        self._start: dict[int, int] = {}

    def find(self, ids_M: Tensor) -> Tensor:
        """Where the rows of each news begin; -1 for news not kept."""
        return torch.tensor([self._start.get(news, -1) for news in ids_M.tolist()])

    def read(self, starts_M: Tensor, lengths_M: Tensor) -> Tensor:
        """The rows that begin there, news after news."""
        return self._rows[torch.repeat_interleave(starts_M, lengths_M) + count_up(lengths_M)]

    def write(self, ids_M: Tensor, lengths_M: Tensor, rows: Tensor) -> None:
        """Keep the rows of these news, as far as there is room."""
        ends = lengths_M.cumsum(0)
        fitting = int((self._used + ends <= len(self._rows)).sum())
        size = int(ends[fitting - 1]) if fitting else 0
        self._rows[self._used : self._used + size] = rows[:size]
        starts = self._used + ends - lengths_M
        self._start.update(zip(ids_M[:fitting].tolist(), starts[:fitting].tolist(), strict=True))
        self._used += size

    def __len__(self) -> int:
        return len(self._start)


class FrozenBelow:
    """Runs `model` as two halves; only its last `train_layers` layers and what follows them are trained."""

    def __init__(
        self, model: PreTrainedModel, *, train_layers: int, bus: bool, backend: str, states: FrozenStates
    ) -> None:
        path, layers = _layers(model)
        if not 0 < train_layers <= len(layers):
            raise InputError(f"cannot train {train_layers} layers: the encoder has {len(layers)}")
        self._model, self._bus, self._backend, self._states = model, bus, backend, states
        self._has_warned = False
        trained = layers[len(layers) - train_layers :]
        self._bottom = _replaced(model, path, nn.ModuleList(layers[: len(layers) - train_layers]))
        self._top = _replaced(model, path, nn.ModuleList(trained))
        for name in AFTER:
            if hasattr(model, name):
                self._bottom._modules[name] = nn.Identity()
        for name in BEFORE:
            if hasattr(model, name):
                self._top._modules[name] = _Given()
        self._trained = [*trained, *(getattr(model, name) for name in AFTER if hasattr(model, name))]
        model.requires_grad_(False)
        for module in self._trained:
            module.requires_grad_(True)

    def train(self, mode: bool) -> None:
        """Training mode for the trained part only: what is kept must not depend on dropout."""
        self._model.train(False)
        for module in self._trained:
            module.train(mode)

    def encode(self, news: PackedNews, layout: Layout, first_position: int) -> Tensor:
        """Hidden states in packed order; news with ids are computed below only once."""
        if news.ids_M is None and torch.is_grad_enabled() and not self._has_warned:
            self._has_warned = True
            log.warning("news without ids: their frozen layers run at every step instead of once")
        rows = self._encode_below(news, first_position)
        hidden = rows.to(layout.order_T.device)[layout.order_T]
        output: Tensor = self._top(
            inputs_embeds=hidden[None], position_ids=layout.position_T[None] + first_position, layout=layout
        ).last_hidden_state[0]
        return output

    @torch.no_grad()
    def _encode_below(self, news: PackedNews, first_position: int) -> Tensor:
        """Rows of every token in the caller's order, in host memory."""
        lengths_M = news.lengths_M
        starts_M = torch.full_like(lengths_M, -1) if news.ids_M is None else self._states.find(news.ids_M)
        is_kept = starts_M >= 0
        missing = (~is_kept & (lengths_M > 0)).nonzero().squeeze(1)
        kept_T = torch.repeat_interleave(is_kept, lengths_M)
        rows = torch.empty(len(kept_T), self._model.config.hidden_size)
        rows[kept_T] = self._states.read(starts_M[is_kept], lengths_M[is_kept])
        if len(missing):
            fresh = self._run_bottom(news.select(missing), first_position)
            rows[~kept_T] = fresh
            if news.ids_M is not None:
                self._states.write(news.ids_M[missing], lengths_M[missing], fresh)
        return rows

    def _run_bottom(self, news: PackedNews, first_position: int) -> Tensor:
        """Always in full precision: what is kept must not depend on who asked first."""
        device = self._model.device
        layout = build_layout(
            news.lengths_K,
            news.segments_M,
            bus=self._bus,
            backend=self._backend,
            device=device,
            is_padding_T=news.is_padding_T,
        )
        with torch.autocast(device.type, enabled=False):
            hidden = self._bottom(
                input_ids=news.tokens_T.to(device).long()[layout.order_T][None],
                position_ids=layout.position_T[None] + first_position,
                layout=layout,
            ).last_hidden_state[0]
        rows = torch.empty(hidden.shape)
        rows[layout.order_T.cpu()] = hidden.float().cpu()
        return rows


class _Given(nn.Module):
    """Stands for what came before: hands on the hidden states it is given."""

    def forward(self, *args: Tensor | None, inputs_embeds: Tensor | None = None, **_: object) -> Tensor:
        given = [x for x in (*args, inputs_embeds) if x is not None and x.is_floating_point()]
        return given[0]


def _layers(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The list of layers and where it is."""
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == model.config.num_hidden_layers:
            return path, module
    raise InputError(
        f"family {model.config.model_type!r} has no list of layers of its own to train the last of "
        "(ALBERT shares one layer among all): train the whole encoder"
    )


def _replaced(model: nn.Module, path: str, part: nn.Module) -> nn.Module:
    """`model` with `part` at `path`; everything else is shared, parameters included."""
    name, _, rest = path.partition(".")
    clone = copy.copy(model)
    clone._modules = dict(model._modules)
    clone._modules[name] = _replaced(getattr(model, name), rest, part) if rest else part
    return clone
