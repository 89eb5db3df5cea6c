"""Tiny random encoders of every family, and how far packed encoding is from the stock model.

Run as a script, it prints the parity table.
"""

from dataclasses import dataclass

import torch
import transformers
from torch import Tensor
from transformers import AutoModel, PreTrainedModel

from speedyfeed.models.bus import build_layout
from speedyfeed.models.plm import first_position

SHAPE = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
CONFIGS = {
    "bert": ("BertConfig", SHAPE),
    "roberta": ("RobertaConfig", SHAPE),
    "xlm-roberta": ("XLMRobertaConfig", SHAPE),
    "camembert": ("CamembertConfig", SHAPE),
    "electra": ("ElectraConfig", {**SHAPE, "embedding_size": 8}),
    "distilbert": (
        "DistilBertConfig",
        {
            "vocab_size": 60,
            "dim": 16,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 24,
            "max_position_embeddings": 40,
        },
    ),
    "albert": ("AlbertConfig", {**SHAPE, "embedding_size": 8}),
    "nomic_bert": ("NomicBertConfig", SHAPE),
    # two of its layers see 2 tokens either way, less than most segments have
    "modernbert": ("ModernBertConfig", {**SHAPE, **SPECIAL, "num_hidden_layers": 4, "local_attention": 4}),
}
LENGTHS = [7, 3, 12, 7, 1, 9]


def build(family: str) -> PreTrainedModel:
    """A random model of that family; weights large enough for attention to matter."""
    name, settings = CONFIGS[family]
    torch.manual_seed(0)
    model = AutoModel.from_config(getattr(transformers, name)(**settings)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.3)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model


def random_tokens(lengths: list[int], vocab: int = 60) -> Tensor:
    """Token ids for segments of these lengths; none is a padding id."""
    return torch.randint(5, vocab, (sum(lengths),), generator=torch.Generator().manual_seed(1))


@dataclass
class Pass:
    hidden: Tensor
    gradients: dict[str, Tensor]


def packed_pass(
    model: PreTrainedModel, tokens: Tensor, lengths: list[int], segments: list[int], **settings: object
) -> Pass:
    """Hidden states in the caller's order, and gradients, of the packed encoder."""
    layout = build_layout(torch.tensor(lengths), torch.tensor(segments), **settings)
    model.set_attn_implementation("bus")
    packed = model(
        input_ids=tokens[layout.order_T][None],
        position_ids=layout.position_T[None] + first_position(model),
        layout=layout,
    ).last_hidden_state[0]
    return _differentiate(model, torch.empty_like(packed).index_copy(0, layout.order_T, packed))


def stock_pass(model: PreTrainedModel, tokens: Tensor, lengths: list[int]) -> Pass:
    """Output and gradients of the stock model, every segment a row padded to the longest."""
    model.set_attn_implementation("sdpa")
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    padded = torch.full(mask.shape, model.config.pad_token_id or 0)
    padded[mask] = tokens
    return _differentiate(model, model(input_ids=padded, attention_mask=mask.long()).last_hidden_state[mask])


def error(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest value if that is above one."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


def gradient_error(ours: Pass, theirs: Pass) -> float:
    """The worst parameter's error."""
    assert ours.gradients.keys() == theirs.gradients.keys()
    assert ours.gradients
    return max(error(ours.gradients[name], theirs.gradients[name]) for name in ours.gradients)


def _differentiate(model: PreTrainedModel, hidden: Tensor) -> Pass:
    model.zero_grad()
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2))
    (hidden * weights).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return Pass(hidden.detach(), gradients)


def main() -> None:
    print(f"{'family':12} {'forward':>9} {'gradient':>9}")
    for family in CONFIGS:
        model, tokens = build(family), random_tokens(LENGTHS)
        ours = packed_pass(model, tokens, LENGTHS, [1] * len(LENGTHS))
        theirs = stock_pass(model, tokens, LENGTHS)
        print(f"{family:12} {error(ours.hidden, theirs.hidden):9.1e} {gradient_error(ours, theirs):9.1e}")


if __name__ == "__main__":
    main()
