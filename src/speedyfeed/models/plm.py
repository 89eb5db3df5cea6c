"""Pretrained encoders by name, run on packed tokens; `tokenizers.py` lists the names.

Any encoder whose attention goes through the attention interface of transformers can be used. Each is verified when
it is loaded: two short segments packed together must be encoded as the unchanged model encodes them separately. An
encoder that fails is refused, with the reason.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from speedyfeed.errors import InputError
from speedyfeed.models.bus import build_layout
from speedyfeed.models.half import half_config, inherit
from speedyfeed.models.unilm import load_unilm
from speedyfeed.tokenizers import find_source, is_local_only, not_loadable, parse_encoder

FAMILIES = (
    "albert",
    "bert (MiniLM too)",
    "camembert",
    "distilbert",
    "electra",
    "modernbert",
    "nomic_bert",
    "roberta",
    "unilm",
    "xlm-roberta",
)
"""Families whose packed encoding is tested against the stock model, forward and gradient."""


ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")
"""Names of the attention dropout in configurations of transformers."""
HIDDEN_DROPOUTS = ("hidden_dropout_prob", "dropout", "embedding_dropout", "mlp_dropout")
"""Names of the dropout of hidden states in configurations of transformers."""


def load_encoder(
    name: str, *, hidden_dropout: float | None = None, attention_dropout: float | None = None
) -> PreTrainedModel:
    """Load a pretrained encoder by name and verify it on packed tokens.

    A dropout of None is the encoder's own. The prefix `last:` loads the whole encoder: which layers are
    trained is decided by the news encoder.
    """
    parsed = parse_encoder(name)
    source = find_source(parsed)
    if parsed.is_unilm:
        model: PreTrainedModel = load_unilm(
            source, hidden_dropout=hidden_dropout, attention_dropout=attention_dropout
        )
    else:
        model = _load_stock(name, source, hidden_dropout, attention_dropout)
    return inherit(build_encoder(half_config(model.config)), model) if parsed.is_half else model


def build_encoder(config: PreTrainedConfig) -> PreTrainedModel:
    """Build an encoder of this configuration with random weights, to load saved ones into."""
    model: PreTrainedModel = AutoModel.from_config(config, attn_implementation="bus")
    return _without_pooler(model)


def stay_in_bf16(model: PreTrainedModel) -> None:
    """Have hidden states stay in bf16 from layer to layer where a CPU computes in it; nothing changes elsewhere.

    Autocast alone adds residuals and normalizes in fp32, and casts to bf16 before every matrix product.
    """
    embeddings = getattr(model, "embeddings", None)
    if isinstance(embeddings, nn.Module):
        embeddings.register_forward_hook(_to_bf16)


def load_config(source: str) -> PreTrainedConfig:
    """Load the configuration of an encoder from a folder or Hub id."""
    return cast(PreTrainedConfig, AutoConfig.from_pretrained(source, local_files_only=is_local_only(source)))


def first_position(model: PreTrainedModel) -> int:
    """Position id of the first token of a segment: RoBERTa-like models count from their padding id + 1."""
    table = next((m for n, m in model.named_modules() if n.endswith("position_embeddings")), None)
    padding = getattr(table, "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


def max_length(model: PreTrainedModel) -> int:
    """Maximum number of tokens in a segment."""
    return int(model.config.max_position_embeddings) - first_position(model)


@torch.no_grad()
def verify(model: PreTrainedModel, name: str) -> None:
    """Raise unless packed segments are encoded as the unchanged model encodes each of them alone."""
    lengths = [7, 5]
    tokens = torch.randint(model.config.vocab_size, (sum(lengths),), generator=torch.Generator().manual_seed(0))
    layout = build_layout(torch.tensor(lengths), torch.tensor([1, 1]))
    was_training = model.training
    model.eval()
    with _quiet():
        model.set_attn_implementation("bus")
    if model.config._attn_implementation != "bus":
        reason = "its attention does not go through transformers' attention interface"
        raise _refusal(name, model.config, reason)
    try:
        model.set_attn_implementation("eager")
        alone = [model(input_ids=part[None]).last_hidden_state[0] for part in tokens.split(lengths)]
        model.set_attn_implementation("bus")
        packed = model(
            input_ids=tokens[layout.order_T][None],
            position_ids=layout.position_T[None] + first_position(model),
            layout=layout,
        ).last_hidden_state[0]
    except (TypeError, ValueError, AttributeError, RuntimeError, AssertionError) as error:
        raise _refusal(name, model.config, str(error).partition("\n")[0]) from error
    model.train(was_training)
    stock = torch.cat(alone)[layout.order_T]
    if not torch.allclose(packed, stock, rtol=1e-4, atol=1e-4):
        reason = f"packed segments differ from the stock model by up to {float((packed - stock).abs().max()):.2g}"
        raise _refusal(name, model.config, reason)


def _load_stock(
    name: str, source: str, hidden_dropout: float | None, attention_dropout: float | None
) -> PreTrainedModel:
    try:
        config = load_config(source)
        for rate, fields in ((hidden_dropout, HIDDEN_DROPOUTS), (attention_dropout, ATTENTION_DROPOUTS)):
            for field in fields:
                if rate is not None and hasattr(config, field):
                    setattr(config, field, rate)
        with _quiet():
            model, report = AutoModel.from_pretrained(
                source,
                config=config,
                output_loading_info=True,
                dtype=torch.float32,
                local_files_only=is_local_only(source),
            )
    except (OSError, ValueError) as error:
        raise not_loadable("weights", name, source) from error
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise InputError(f"the weights of {name!r} lack {len(missing)} entries, such as {missing[0]!r}")
    model = _without_pooler(model)
    verify(model, name)
    return model


def _to_bf16(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    is_bf16 = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return output.bfloat16() if is_bf16 and output.device.type == "cpu" else output


def _without_pooler(model: PreTrainedModel) -> PreTrainedModel:
    """Remove the pooler, which is not used: its parameters would never get a gradient."""
    for name in ("pooler", "pooler_activation"):
        if isinstance(getattr(model, name, None), nn.Module):
            setattr(model, name, None)
    return model


def _refusal(name: str, config: PreTrainedConfig, reason: str) -> InputError:
    return InputError(
        f"encoder {name!r} (family {config.model_type!r}) cannot be run on packed tokens: {reason}. "
        f"Families that can: {', '.join(FAMILIES)}"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence progress bars and load reports of transformers; what was loaded is checked here."""
    level = transformers_logging.get_verbosity()
    had_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if had_bar:
            transformers_logging.enable_progress_bar()
