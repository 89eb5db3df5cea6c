"""Half an encoder: the first half of its layers, heads and width, weights inherited by slicing.

A weight keeps its leading rows and columns; parts fused into one matrix are sliced part by part. The head width
stays, so half the width is half the heads.
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
"""ModernBERT's matrices that hold several: the module's name and how many."""


def half_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration with every size halved."""
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
    """Fill `half` with the leading part of every weight of `full`."""
    weights = dict(full.named_parameters())
    for name, weight in half.named_parameters():
        parts = next((count for module, count in FUSED.items() if f".{module}." in name), 1)
        weight.copy_(_leading(weights[name], weight.shape, parts))
    return half


def _leading(weight: Tensor, shape: torch.Size, parts: int) -> Tensor:
    rows = [part[: shape[0] // parts] for part in weight.chunk(parts)]
    return torch.cat(rows)[tuple(slice(size) for size in shape)]
