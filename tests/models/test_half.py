import pytest
import torch
from transformers import BertConfig

from speedyfeed.errors import InputError
from speedyfeed.models.half import half_config, inherit
from speedyfeed.models.plm import build_encoder, load_encoder
from tests.models.families import CONFIGS, LENGTHS, build, packed_pass, random_tokens


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_can_be_halved(family: str) -> None:
    full = build(family)
    half = inherit(build_encoder(half_config(full.config)), full)
    assert half.config.hidden_size * 2 == full.config.hidden_size
    assert half.config.num_hidden_layers * 2 == full.config.num_hidden_layers
    out = packed_pass(half, random_tokens(LENGTHS), LENGTHS, [2, 3, 1])
    assert out.hidden.shape == (sum(LENGTHS), half.config.hidden_size)
    assert torch.isfinite(out.hidden).all()


def test_minilm_halved_keeps_the_leading_weights() -> None:
    full, half = load_encoder("minilm"), load_encoder("half:minilm")
    assert (half.config.num_hidden_layers, half.config.hidden_size, half.config.num_attention_heads) == (3, 192, 6)
    weights = dict(full.named_parameters())
    for name, weight in half.named_parameters():
        assert torch.equal(weight, weights[name][tuple(slice(n) for n in weight.shape)]), name


def test_the_kept_heads_attend_as_before() -> None:
    """With zeros beyond the kept half, the first layer's kept heads score exactly as in the full model."""
    full = build("bert")
    half = inherit(build_encoder(half_config(full.config)), full)
    hidden = torch.randn(5, half.config.hidden_size)
    wide = torch.nn.functional.pad(hidden, (0, half.config.hidden_size))
    for name in ("query", "key", "value"):
        kept = getattr(half.encoder.layer[0].attention.self, name)(hidden)
        whole = getattr(full.encoder.layer[0].attention.self, name)(wide)
        torch.testing.assert_close(kept, whole[:, : kept.size(1)])


def test_fused_matrices_are_sliced_part_by_part() -> None:
    full = build("modernbert")
    half = inherit(build_encoder(half_config(full.config)), full)
    fused, kept = full.layers[0].attn.Wqkv.weight, half.layers[0].attn.Wqkv.weight
    assert torch.equal(kept, torch.cat([part[:8, :8] for part in fused.split(16)]))


def test_odd_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="num_hidden_layers is 3"):
        half_config(BertConfig(num_hidden_layers=3))
