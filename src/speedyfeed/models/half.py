"""Half an encoder: the first half of its layers, heads and width, with weights sliced from the full one.

Each weight is cut to its leading rows and columns; matrices fused into one are cut one by one. The width of a head
is unchanged, so half the width is half the heads.
"""

import copy

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from speedyfeed.errors import InputError

HALVED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_dim",  # DistilBERT's name for the one above
    "embedding_size",
)
FUSED = {"Wqkv": 3, "Wi": 2}
"""Modules of ModernBERT that fuse several matrices into one, and how many."""


def half_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Halve every size of a configuration."""
    half = copy.deepcopy(config)
    for name in HALVED:
        size = getattr(config, name, None)
        if size is None:
            continue
        if size % 2:
            raise InputError(
                f"cannot halve family {config.model_type!r} here: its {name} is {size}, an odd number"
            )
        setattr(half, name, size // 2)
    if getattr(config, "layer_types", None):
        half.layer_types = config.layer_types[: half.num_hidden_layers]
    return half


@torch.no_grad()
def inherit(half: PreTrainedModel, full: PreTrainedModel) -> PreTrainedModel:
    """Copy the leading part of every weight of `full` into `half`."""
    weights = dict(full.named_parameters())
    for name, weight in half.named_parameters():
        parts = next((count for module, count in FUSED.items() if f".{module}." in name), 1)
        weight.copy_(_leading(weights[name], weight.shape, parts))
    return half


def _leading(weight: Tensor, shape: torch.Size, parts: int) -> Tensor:
    rows = [part[: shape[0] // parts] for part in weight.chunk(parts)]
    return torch.cat(rows)[tuple(slice(size) for size in shape)]
