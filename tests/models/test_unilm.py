import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from speedyfeed.errors import InputError
from speedyfeed.models.config import NewsEncoderConfig
from speedyfeed.models.news import NewsEncoder
from speedyfeed.models.plm import load_encoder
from speedyfeed.models.unilm import UniLMModel, distance_buckets
from speedyfeed.tokenizers import load_tokenizer
from tests.models.families import LENGTHS, error, gradient_error, packed_pass, random_tokens

HIDDEN, HEADS, LAYERS, BINS, VOCAB = 16, 2, 2, 8, 60
SEGMENTS = [2, 3, 1]
SETTINGS = {
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 24,
    "vocab_size": VOCAB,
    "max_position_embeddings": 40,
    "hidden_act": "gelu",
    "type_vocab_size": 0,
    "rel_pos_bins": BINS,
    "max_rel_pos": 20,
}


def published(*, fused: bool, types: int = 0) -> dict[str, Tensor]:
    """A random checkpoint with the keys of the published ones."""
    torch.manual_seed(0)
    state = {
        "bert.embeddings.word_embeddings.weight": torch.randn(VOCAB, HIDDEN),
        "bert.embeddings.position_embeddings.weight": torch.randn(40, HIDDEN),
        "bert.embeddings.LayerNorm.weight": torch.ones(HIDDEN),
        "bert.embeddings.LayerNorm.bias": torch.zeros(HIDDEN),
        "cls.predictions.bias": torch.zeros(VOCAB),
        ("bert.encoder.rel_pos_bias.weight" if fused else "bert.rel_pos_bias.weight"): torch.randn(HEADS, BINS),
    }
    if types:
        state["bert.embeddings.token_type_embeddings.weight"] = torch.randn(types, HIDDEN)
    for number in range(LAYERS):
        stem = f"bert.encoder.layer.{number}"
        qkv, query_bias, value_bias = (
            torch.randn(3 * HIDDEN, HIDDEN) * 0.3,
            torch.randn(HIDDEN),
            torch.randn(HIDDEN),
        )
        if fused:
            state[f"{stem}.attention.self.qkv_linear.weight"] = qkv
            state[f"{stem}.attention.self.q_bias"] = query_bias.view(1, 1, -1)
            state[f"{stem}.attention.self.v_bias"] = value_bias.view(1, 1, -1)
        else:
            for name, rows in zip(("query", "key", "value"), qkv.chunk(3), strict=True):
                state[f"{stem}.attention.self.{name}.weight"] = rows.clone()
            state[f"{stem}.attention.self.query.bias"] = query_bias
            state[f"{stem}.attention.self.key.bias"] = torch.zeros(HIDDEN)
            state[f"{stem}.attention.self.value.bias"] = value_bias
        for name, rows, columns in (
            ("attention.output.dense", HIDDEN, HIDDEN),
            ("intermediate.dense", 24, HIDDEN),
            ("output.dense", HIDDEN, 24),
        ):
            state[f"{stem}.{name}.weight"] = torch.randn(rows, columns) * 0.3
            state[f"{stem}.{name}.bias"] = torch.randn(rows) * 0.1
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            state[f"{stem}.{name}.weight"] = torch.ones(HIDDEN)
            state[f"{stem}.{name}.bias"] = torch.zeros(HIDDEN)
    return state


def write(folder: Path, state: dict[str, Tensor], *, name: str = "unilm2-base-uncased.bin") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    (folder / "uncased-config.json").write_text(json.dumps(SETTINGS))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "storm", "coast", "##s"]
    (folder / "uncased-vocab.txt").write_text(
        "\n".join([*words, *(f"word{i}" for i in range(VOCAB - len(words)))])
    )
    return path


@pytest.fixture
def model(tmp_path: Path) -> UniLMModel:
    loaded = load_encoder(f"unilm:{write(tmp_path, published(fused=True))}")
    assert isinstance(loaded, UniLMModel)
    return loaded.eval()


def naive(model: UniLMModel, tokens: Tensor, lengths: list[int], segments: list[int]) -> Tensor:
    """Segment by segment, token by token, straight from the published definition of the bias."""
    bounds = torch.tensor([0, *lengths]).cumsum(0).tolist()
    news = [number for number, count in enumerate(segments) for _ in range(count)]
    hidden = torch.cat(
        [
            model.embeddings(input_ids=tokens[a:b][None], position_ids=torch.arange(b - a)[None])[0]
            for a, b in itertools.pairwise(bounds)
        ]
    )
    for layer in model.encoder.layer:
        own = layer.attention.self
        query, key, value = (m(hidden).unflatten(-1, (HEADS, -1)) for m in (own.query, own.key, own.value))
        attended = torch.zeros_like(hidden).unflatten(-1, (HEADS, -1))
        for segment, (a, b) in enumerate(itertools.pairwise(bounds)):
            others = [bounds[s] for s in range(len(lengths)) if news[s] == news[segment] and s != segment]
            for i in range(a, b):
                positions = [*range(a, b), *others]
                biases = [
                    model.rel_pos_bias.weight[:, naive_bucket(j - i)] if a <= j < b else model.bus_bias
                    for j in positions
                ]
                scores = torch.stack(
                    [
                        (query[i] * key[j]).sum(-1) / math.sqrt(HIDDEN / HEADS) + bias
                        for j, bias in zip(positions, biases, strict=True)
                    ],
                    1,
                )
                attended[i] = torch.einsum("aj,jah->ah", scores.softmax(-1), value[positions])
        hidden = layer.feed_forward_chunk(layer.attention.output(attended.flatten(1), hidden))
    return hidden


def naive_bucket(distance: int) -> int:
    half, exact = BINS // 2, BINS // 4
    side, steps = (half if distance > 0 else 0), abs(distance)
    if steps < exact:
        return side + steps
    far = exact + int(math.log(steps / exact) / math.log(20 / exact) * (half - exact))
    return side + min(far, half - 1)


@torch.no_grad()
def test_packed_is_the_naive_definition(model: UniLMModel) -> None:
    model.bus_bias.normal_()  # towards the bus its own bias, not that of a distance
    tokens = random_tokens(LENGTHS, VOCAB)
    with torch.enable_grad():
        ours = packed_pass(model, tokens, LENGTHS, SEGMENTS)
    assert error(ours.hidden, naive(model, tokens, LENGTHS, SEGMENTS)) <= 1e-5


def test_grouped_is_dense_with_gradients_of_both_biases(model: UniLMModel) -> None:
    tokens = random_tokens(LENGTHS, VOCAB)
    grouped = packed_pass(model, tokens, LENGTHS, SEGMENTS)
    dense = packed_pass(model, tokens, LENGTHS, SEGMENTS, backend="dense")
    assert error(grouped.hidden, dense.hidden) <= 1e-5
    assert gradient_error(grouped, dense) <= 1e-5
    assert {"bus_bias", "rel_pos_bias.weight"} <= grouped.gradients.keys()
    assert grouped.gradients["bus_bias"].abs().sum() > 0


def test_fused_and_separate_projections_are_one_model(tmp_path: Path) -> None:
    fused = load_encoder(f"unilm:{write(tmp_path / 'fused', published(fused=True))}")
    apart = load_encoder(f"unilm:{write(tmp_path / 'apart', published(fused=False), name='model.safetensors')}")
    folder = load_encoder(f"unilm:{tmp_path / 'apart'}")
    for name, weight in fused.named_parameters():
        assert torch.equal(weight, apart.get_parameter(name)), name
        assert torch.equal(weight, folder.get_parameter(name)), name
    assert torch.equal(fused.get_parameter("bus_bias"), fused.get_parameter("rel_pos_bias.weight")[:, -1])


def test_both_dropouts_can_be_set(tmp_path: Path) -> None:
    path = write(tmp_path, published(fused=True))
    config = load_encoder(f"unilm:{path}", hidden_dropout=0.25, attention_dropout=0.5).config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.25, 0.5)
    own = load_encoder(f"unilm:{path}").config
    assert (own.hidden_dropout_prob, own.attention_probs_dropout_prob) == (0.1, 0.1)


def test_the_first_token_type_moves_into_the_positions(tmp_path: Path) -> None:
    state = published(fused=True, types=2)
    loaded = load_encoder(f"unilm:{write(tmp_path, state)}")
    expected = (
        state["bert.embeddings.position_embeddings.weight"]
        + state["bert.embeddings.token_type_embeddings.weight"][0]
    )
    torch.testing.assert_close(loaded.get_parameter("embeddings.position_embeddings.weight").data, expected)


def test_known_buckets() -> None:
    distances = torch.tensor([0, -1, -7, -8, -127, -500, 1, 7, 8, 500])
    assert distance_buckets(distances, 32, 128).tolist() == [0, 1, 7, 8, 15, 15, 17, 23, 24, 31]


def test_a_pickle_that_runs_code_is_not_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return print, ("code ran",)

    path = write(tmp_path, published(fused=True))
    torch.save({"bert.rel_pos_bias.weight": Evil()}, path)
    with pytest.raises(InputError, match="only tensors"):
        load_encoder(f"unilm:{path}")


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    state = published(fused=True)
    del state["bert.encoder.layer.1.output.dense.bias"]
    with pytest.raises(InputError, match=r"1 entries are missing \['encoder\.layer\.1\.output\.dense\.bias'\]"):
        load_encoder(f"unilm:{write(tmp_path, state)}")
    state = {key: value for key, value in published(fused=True).items() if "rel_pos" not in key}
    with pytest.raises(InputError, match="load it as BERT"):
        load_encoder(f"unilm:{write(tmp_path, state)}")


def test_half_and_last_of_unilm_encode(tmp_path: Path) -> None:
    path = write(tmp_path, published(fused=True))
    for name in (f"half:unilm:{path}", f"last:unilm:{path}"):
        encoder = NewsEncoder(NewsEncoderConfig(encoder=name, dim=4, frozen_gigabytes=1e-3))
        assert encoder.encode(["storm coast", ("storms", "coast")]).shape == (2, 4)


def test_its_vocabulary_is_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(f"unilm:{write(tmp_path, published(fused=True))}")
    assert tokenizer.convert_ids_to_tokens(tokenizer("Storms")["input_ids"]) == ["[CLS]", "storm", "##s", "[SEP]"]
