"""An encoder whose lower layers are frozen: their outputs are computed once per article and cached.

    tokens -> [embeddings, layer 0 ... n-2] -> cached rows -> [layer n-1, final norm] -> hidden states
              once per article, no gradient                   every step, trained

The cache is in host memory or in a memory-mapped file, up to a budget; articles that do not fit are computed each
time. Both halves are the stock model with modules left out, so that its forward pass is otherwise unchanged.

Shapes: M articles   T tokens
"""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from speedyfeed.errors import InputError
from speedyfeed.models.bus import Layout, build_layout
from speedyfeed.models.packed import PackedNews, count_up

BEFORE = ("embeddings", "embeddings_project")
"""Modules that stock models run before their layers."""
AFTER = ("final_norm", "norm", "LayerNorm")
"""Modules that stock models run after their layers."""


class FrozenStates:
    """Cache of hidden states per article, a row per token in the order of its tokens."""

    def __init__(self, *, width: int, budget: int, file: Path | None = None) -> None:
        """A cache of up to `budget` bytes, in memory or mapped to `file`."""
        rows = budget // (width * torch.float32.itemsize)
        if file is None:
            self._rows = torch.empty(rows, width)  # pages are taken only once written
        else:
            self._rows = torch.from_file(str(file), shared=True, size=rows * width).view(rows, width)
        self._used = 0
        self._start: dict[int, int] = {}

    def find(self, ids_M: Tensor) -> Tensor:
        """First row of each article; -1 for articles that are not cached."""
        return torch.tensor([self._start.get(news, -1) for news in ids_M.tolist()])

    def read(self, starts_M: Tensor, lengths_M: Tensor) -> Tensor:
        """Rows of articles that are cached, article after article."""
        return self._rows[torch.repeat_interleave(starts_M, lengths_M) + count_up(lengths_M)]

    def write(self, ids_M: Tensor, lengths_M: Tensor, rows: Tensor) -> None:
        """Cache the rows of these articles, as far as there is room."""
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
    """Runs `model` as two halves, of which only the last `train_layers` layers and what follows are trained."""

    def __init__(
        self, model: PreTrainedModel, *, train_layers: int, bus: bool, backend: str, states: FrozenStates
    ) -> None:
        path, layers = _layers(model)
        if not 0 < train_layers <= len(layers):
            raise InputError(f"cannot train {train_layers} layers: the encoder has {len(layers)}")
        self._model, self._bus, self._backend, self._states = model, bus, backend, states
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
        """Set the mode of the trained part only: what is cached must not depend on dropout."""
        self._model.train(False)
        for module in self._trained:
            module.train(mode)

    def encode(self, news: PackedNews, layout: Layout, first_position: int) -> Tensor:
        """Hidden states in packed order; the frozen layers run only once for an article with an id."""
        rows = self._encode_below(news, first_position)
        hidden = rows.to(layout.order_T.device)[layout.order_T]
        output: Tensor = self._top(
            inputs_embeds=hidden[None], position_ids=layout.position_T[None] + first_position, layout=layout
        ).last_hidden_state[0]
        return output

    @torch.no_grad()
    def _encode_below(self, news: PackedNews, first_position: int) -> Tensor:
        """Outputs of the frozen layers in the caller's order, in host memory."""
        lengths_M = news.lengths_M
        starts_M = torch.full_like(lengths_M, -1) if news.ids_M is None else self._states.find(news.ids_M)
        is_cached = starts_M >= 0
        missing = (~is_cached & (lengths_M > 0)).nonzero().squeeze(1)
        cached_T = torch.repeat_interleave(is_cached, lengths_M)
        rows = torch.empty(len(cached_T), self._model.config.hidden_size)
        rows[cached_T] = self._states.read(starts_M[is_cached], lengths_M[is_cached])
        if len(missing):
            fresh = self._run_bottom(news.select(missing), first_position)
            rows[~cached_T] = fresh
            if news.ids_M is not None:
                self._states.write(news.ids_M[missing], lengths_M[missing], fresh)
        return rows

    def _run_bottom(self, news: PackedNews, first_position: int) -> Tensor:
        """Run the frozen layers, always in fp32: what is cached must not depend on the caller's precision."""
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
    """Stands in for the embeddings: returns the hidden states it is given."""

    def forward(self, *args: Tensor | None, inputs_embeds: Tensor | None = None, **_: object) -> Tensor:
        given = [x for x in (*args, inputs_embeds) if x is not None and x.is_floating_point()]
        return given[0]


def _layers(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """Find the list of layers and its path in the model."""
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == model.config.num_hidden_layers:
            return path, module
    raise InputError(
        f"family {model.config.model_type!r} has no list of layers of which to train the last "
        "(ALBERT shares one layer among all): train the whole encoder"
    )


def _replaced(model: nn.Module, path: str, part: nn.Module) -> nn.Module:
    """Copy `model` with `part` at `path`; everything else is shared, parameters included."""
    name, _, rest = path.partition(".")
    clone = copy.copy(model)
    clone._modules = dict(model._modules)
    clone._modules[name] = _replaced(getattr(model, name), rest, part) if rest else part
    return clone
