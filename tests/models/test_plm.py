from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, GPT2Config, MobileBertConfig, MPNetConfig, PreTrainedModel

from speedyfeed.errors import InputError
from speedyfeed.models.bus import build_layout
from speedyfeed.models.plm import (
    build_encoder,
    first_position,
    load_config,
    load_encoder,
    max_length,
    stay_in_bf16,
    verify,
)
from tests.models.families import CONFIGS, LENGTHS, Pass, build, error, gradient_error, packed_pass, random_tokens

TINY = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize("family", CONFIGS)
def test_a_local_folder_is_loaded_and_proved(family: str, tmp_path: Path) -> None:
    saved = build(family)
    saved.save_pretrained(tmp_path)
    loaded = load_encoder(str(tmp_path))
    assert loaded.config._attn_implementation == "bus"
    for name, weight in loaded.named_parameters():
        assert torch.equal(weight, saved.get_parameter(name)), name


@pytest.mark.parametrize("family", CONFIGS)
def test_staying_in_bf16_is_about_as_exact_as_autocast(family: str) -> None:
    model, tokens = build(family), random_tokens(LENGTHS)

    def encode(dtype: torch.dtype) -> Pass:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            return packed_pass(model, tokens, LENGTHS, [2, 3, 1])

    exact, plain = encode(torch.float32), encode(torch.bfloat16)
    stay_in_bf16(model)
    ours, unchanged = encode(torch.bfloat16), encode(torch.float32)
    assert ours.hidden.dtype == torch.bfloat16
    assert error(ours.hidden, exact.hidden) <= 2 * error(plain.hidden, exact.hidden)
    assert gradient_error(ours, exact) <= 2 * gradient_error(plain, exact)
    assert torch.equal(unchanged.hidden, exact.hidden)


def test_minilm_is_found_without_the_hub() -> None:
    model = load_encoder("minilm")
    assert (model.config.num_hidden_layers, model.config.hidden_size, max_length(model)) == (6, 384, 512)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (MPNetConfig(**TINY, intermediate_size=16), "does not go through transformers' attention interface"),
        (
            MobileBertConfig(**TINY, embedding_size=16),
            "differ from the stock model",
        ),  # it mixes neighbouring tokens
        (GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2), "differ from the stock model"),  # causal
    ],
)
def test_families_that_cannot_be_packed_are_refused_by_name(config: object, reason: str) -> None:
    torch.manual_seed(0)
    model = AutoModel.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    with pytest.raises(InputError, match=reason) as refusal:
        verify(model, "some/model")
    for part in ("some/model", config.model_type, "Families that can", *CONFIGS):  # type: ignore[attr-defined]
        assert part in str(refusal.value)


def test_an_unknown_name_says_what_to_do() -> None:
    with pytest.raises(InputError, match="'minilm', which needs no network"):
        load_encoder("nobody/nothing")


def test_a_folder_without_a_model_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json"):
        load_encoder(str(tmp_path))


def test_weights_that_lack_a_layer_are_refused(tmp_path: Path) -> None:
    build("bert").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lacking = {key: value for key, value in weights.items() if "layer.1" not in key}
    assert len(lacking) < len(weights)
    save_file(lacking, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lack 16 entries, such as 'encoder\.layer\.1"):
        load_encoder(str(tmp_path))


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert"])
def test_attention_dropout_can_be_set(family: str, tmp_path: Path) -> None:
    build(family).save_pretrained(tmp_path)

    def dropout(value: float | None) -> float:
        config = load_encoder(str(tmp_path), attention_dropout=value).config
        return float(getattr(config, "attention_probs_dropout_prob", getattr(config, "attention_dropout", -1)))

    assert dropout(0.25) == 0.25
    assert dropout(None) == {"bert": 0.1, "distilbert": 0.1, "modernbert": 0.0}[family]


@pytest.mark.parametrize("family", CONFIGS)
def test_without_dropout_training_mode_encodes_like_evaluation_mode(family: str, tmp_path: Path) -> None:
    saved = build(family)
    rates = [name for name, rate in saved.config.to_dict().items() if "dropout" in name and rate is not None]
    saved.config.update(dict.fromkeys(rates, 0.5))
    saved.save_pretrained(tmp_path)
    lengths = [5, 3]
    layout = build_layout(torch.tensor(lengths), torch.tensor([1, 1]))
    tokens = random_tokens(lengths)[layout.order_T][None]

    def encode(model: PreTrainedModel, *, is_training: bool) -> torch.Tensor:
        positions = layout.position_T[None] + first_position(model)
        with torch.no_grad():
            hidden: torch.Tensor = model.train(is_training)(
                input_ids=tokens, position_ids=positions, layout=layout
            ).last_hidden_state
        return hidden

    for rate, is_same in ((0.0, True), (None, False)):
        model = load_encoder(str(tmp_path), hidden_dropout=rate, attention_dropout=0.0)
        ours, clean = (encode(model, is_training=mode) for mode in (True, False))
        assert torch.equal(ours, clean) == is_same


def test_a_saved_shape_builds_without_weights(tmp_path: Path) -> None:
    model = load_encoder("half:minilm")
    model.config.save_pretrained(tmp_path)
    rebuilt = build_encoder(load_config(str(tmp_path)))
    rebuilt.load_state_dict(model.state_dict())
    assert rebuilt.config._attn_implementation == "bus"
