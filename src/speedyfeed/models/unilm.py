"""UniLMv2 and TuringNLRv3: BERT with a relative position bias shared by all layers, which transformers lacks.

The model is BERT of transformers; the bias is passed to the bus attention as a keyword argument. Checkpoints load
as they were published: a folder with weights, a configuration and a vocabulary, or the weights file itself.
"""

import math
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, BertConfig, BertModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions as Output

from speedyfeed.errors import InputError
from speedyfeed.files import read_json
from speedyfeed.tokenizers import CHECKPOINT_SUFFIXES


class UniLMConfig(BertConfig):
    """Configuration of BERT with the two sizes of the relative position bias."""

    model_type = "unilm"
    rel_pos_bins: int = 32
    max_rel_pos: int = 128
    type_vocab_size: int = 1


class UniLMModel(BertModel):
    """BERT with a bias of attention scores for the distance of the two tokens, and one for the bus."""

    config_class = UniLMConfig

    def __init__(self, config: UniLMConfig) -> None:
        super().__init__(config, add_pooling_layer=False)  # type: ignore[no-untyped-call]
        self.rel_pos_bias = nn.Linear(config.rel_pos_bins, config.num_attention_heads, bias=False)
        self.bus_bias = nn.Parameter(torch.zeros(config.num_attention_heads))
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, **kwargs: Any) -> Output:
        """Run BERT on packed tokens; the bias needs their layout."""

        @cache  # one bias per segment shape, shared by all layers of this pass
        def bias(length: int, others: int) -> Tensor:
            position = torch.arange(length, device=self.bus_bias.device)
            buckets = distance_buckets(
                position - position[:, None], self.config.rel_pos_bins, self.config.max_rel_pos
            )
            own = self.rel_pos_bias.weight[:, buckets]
            return torch.cat([own, self.bus_bias[:, None, None].expand(-1, length, others)], 2)

        output: Output = super().forward(*args, bias=bias, **kwargs)
        return output


def distance_buckets(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """Map distances (key minus query) to buckets: half for each direction, exact when short, then logarithmic.

    With 32 buckets and a maximum of 128: 0 to 7 have a bucket each, 8 to 127 share eight, the rest the last.
    """
    half = num_buckets // 2
    exact = half // 2
    steps = distance.abs()
    scale = (half - exact) / math.log(max_distance / exact)
    far = exact + (torch.log(steps.clamp(min=1) / exact) * scale).long()
    near_or_far = torch.where(steps < exact, steps, far.clamp(max=half - 1))
    return near_or_far + half * (distance > 0)


def load_unilm(
    source: str, *, hidden_dropout: float | None = None, attention_dropout: float | None = None
) -> UniLMModel:
    """Load the checkpoint at `source`: a folder, or a .bin or .safetensors file next to its configuration.

    A dropout of None is that of the configuration.
    """
    path = Path(source)
    folder = path if path.is_dir() else path.parent
    weights = path if path.is_file() else _only(folder, [f"*{suffix}" for suffix in CHECKPOINT_SUFFIXES])
    state = convert_keys(_read_state(weights))
    settings = read_json(_only(folder, ["config.json", "*config.json"]))
    settings.pop("model_type", None)
    settings.pop("type_vocab_size", None)
    if "rel_pos_bias.weight" not in state:
        raise InputError(f"{weights}: no relative position bias, so not a UniLMv2 checkpoint; load it as BERT")
    if hidden_dropout is not None:
        settings["hidden_dropout_prob"] = hidden_dropout
    if attention_dropout is not None:
        settings["attention_probs_dropout_prob"] = attention_dropout
    settings["rel_pos_bins"] = state["rel_pos_bias.weight"].size(1)
    settings["max_position_embeddings"] = state["embeddings.position_embeddings.weight"].size(0)
    config = UniLMConfig(**settings)
    config._attn_implementation = "bus"
    model = UniLMModel(config)
    expected = model.state_dict()
    missing = sorted(expected.keys() - state.keys())
    misshapen = [key for key in expected.keys() & state.keys() if expected[key].shape != state[key].shape]
    if missing or misshapen:
        raise InputError(
            f"{weights} does not fit its configuration: {len(missing)} entries are missing "
            f"{missing[:1]} and {len(misshapen)} have another shape {misshapen[:1]}"
        )
    model.load_state_dict({key: state[key] for key in expected})
    return model


def convert_keys(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert the key layouts of published checkpoints to those of `UniLMModel`.

    The prefix `bert.` is removed; a fused `qkv_linear` with `q_bias` and `v_bias` becomes three projections, the
    key's with a bias of zero; the first token type, if any, is added to the positions; the bias towards the bus
    starts as that of the farthest distance.
    """
    converted: dict[str, Tensor] = {}
    for key, value in state.items():
        name = key.removeprefix("bert.")
        if name.endswith(".qkv_linear.weight"):
            stem = name.removesuffix("qkv_linear.weight")
            for part, rows in zip(("query", "key", "value"), value.chunk(3), strict=True):
                converted[f"{stem}{part}.weight"] = rows
        elif name.endswith(".q_bias"):
            converted[name.removesuffix("q_bias") + "query.bias"] = value.flatten()
        elif name.endswith(".v_bias"):
            converted[name.removesuffix("v_bias") + "value.bias"] = value.flatten()
            converted[name.removesuffix("v_bias") + "key.bias"] = torch.zeros_like(value.flatten())
        elif name.endswith("rel_pos_bias.weight"):
            converted["rel_pos_bias.weight"] = value
            converted.setdefault("bus_bias", value[:, -1].clone())
        else:
            converted[name] = value
    types = converted.pop("embeddings.token_type_embeddings.weight", None)
    positions = "embeddings.position_embeddings.weight"
    if positions in converted:
        converted["embeddings.token_type_embeddings.weight"] = torch.zeros(1, converted[positions].size(1))
        if types is not None and len(types):
            converted[positions] = converted[positions] + types[0]
    return converted


def _read_state(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return load_file(path)
    try:
        state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(f"{path} holds more than weights; only tensors are loaded from a .bin file") from error
    return state


def _only(folder: Path, patterns: list[str]) -> Path:
    """The only file that matches the first pattern with any match."""
    for pattern in patterns:
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(f"{folder} has {len(found)} files like {pattern}: name the checkpoint file itself")
    raise InputError(f"{folder} has no file like {' or '.join(patterns)}")


AutoConfig.register("unilm", UniLMConfig)
AutoModel.register(UniLMConfig, UniLMModel)
