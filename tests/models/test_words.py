"""News encoders over words: each against its formula, one word at a time; and pretrained vectors."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from speedyfeed.errors import InputError
from speedyfeed.models import words as module
from speedyfeed.models.baselines import WORD_ENCODERS
from speedyfeed.models.config import FROM_WORDS, USER_DEPENDENT, WITH_CATEGORIES, WordConfig
from speedyfeed.models.id_maps import IdMaps
from speedyfeed.models.packed import PackedNews
from speedyfeed.models.plm import load_encoder
from speedyfeed.models.word_vectors import load_glove, load_piece_vectors
from speedyfeed.models.words import WordNewsEncoder
from speedyfeed.preparation.vocabulary import build_word_tokenizer
from speedyfeed.testing import NewsEncoderContract
from speedyfeed.testing.news import some_news
from speedyfeed.tokenizers import load_tokenizer

WORDS = [f"word{number}" for number in range(56)]  # with the special tokens, 60
KNOWN = IdMaps(categories=("sport", "world"), subcategories=("cup", "vote"), users=("U1", "U2"))
CONFIG = WordConfig(width=10, heads=3, window=3, query_width=7, category_width=2, segment_length=8)


def build(name: str, config: WordConfig = CONFIG) -> WordNewsEncoder:
    torch.manual_seed(0)
    encoder = WordNewsEncoder(
        name,
        dim=12,
        config=config,
        tokenizer=build_word_tokenizer(WORDS),
        id_maps=KNOWN,
        user_embeddings=nn.Embedding(3, 5),
    )
    return encoder.eval()


@pytest.fixture(params=list(WORD_ENCODERS))
def encoder(request: pytest.FixtureRequest) -> WordNewsEncoder:
    return build(request.param)


class TestEveryWordEncoder(NewsEncoderContract):
    pass


def weighted(items: list[Tensor], scores: list[Tensor]) -> Tensor:
    weights = torch.stack(scores).softmax(0)
    return sum((weight * item for weight, item in zip(weights, items, strict=True)), torch.zeros_like(items[0]))


def attended(pool: nn.Module, items: list[Tensor]) -> Tensor:
    return weighted(items, [pool.query(torch.tanh(pool.project(item)))[0] for item in items])


def convolved(layer: nn.Module, words: list[Tensor]) -> list[Tensor]:
    """Each word with the one before and the one after; zeros beyond the ends."""
    around = [torch.zeros_like(words[0]), *words, torch.zeros_like(words[0])]
    weight, bias = layer.convolve.weight, layer.convolve.bias
    return [
        torch.relu(sum((weight[..., shift] @ around[position + shift] for shift in range(3)), bias))
        for position in range(len(words))
    ]


def one_news(encoder: WordNewsEncoder, name: str, news: PackedNews, row: int) -> Tensor:
    """The embedding of one article by the formulas of its paper."""
    one = news.select(torch.tensor([row]))
    segments = [list(encoder.embedding(tokens.long())) for tokens in one.tokens_T.split(one.lengths_K.tolist())]
    sequence = [word for segment in segments for word in segment]
    body = encoder.word_encoder
    if name == "nrms":
        projected = [body.project(word).view(3, 3, 4) for word in sequence]
        seen = [
            torch.cat(
                [
                    weighted(
                        [other[2, head] for other in projected],
                        [mine[0, head] @ other[1, head] / math.sqrt(4) for other in projected],
                    )
                    for head in range(3)
                ]
            )
            for mine in projected
        ]
        return attended(body.pool, seen)
    if name == "npa":
        user = int(one.user_ids_M[0])
        items = convolved(body.convolution, sequence)
        query = torch.relu(body.user_query.query(body.user_query.user_embeddings.weight[user]))
        return weighted(items, [query @ torch.tanh(body.user_query.project(item)) for item in items])
    topics = [
        embed(number)
        for embed, number in zip(body.categories, (one.categories_M, one.subcategories_M), strict=True)
    ]
    if name == "lstur":
        text = attended(body.text.pool, convolved(body.text.convolution, sequence))
        return torch.cat([text, topics[0][0], topics[1][0]])
    views = [
        attended(body.views[field].pool, convolved(body.views[field].convolution, segment))
        for field, segment in zip(one.fields_K.tolist(), segments, strict=True)
    ]
    return attended(body.over_views, [*views, topics[0][0], topics[1][0]])


@pytest.mark.parametrize("name", list(WORD_ENCODERS))
@pytest.mark.parametrize("at_once", [2, 128])
def test_all_news_at_once_are_each_by_its_formula(
    name: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEGMENTS_AT_ONCE", at_once)
    encoder, news = build(name), replace(some_news(), user_ids_M=torch.tensor([1, 2, 0, 0, 1]))
    rows = [row for row in range(len(news)) if news.segments_M[row]]
    results = []
    for embed in (
        lambda: encoder(news)[rows],
        lambda: torch.stack([one_news(encoder, name, news, r) for r in rows]) + encoder.shift,
    ):
        encoder.zero_grad()
        embeddings = embed()
        embeddings.square().sum().backward()
        results.append((embeddings.detach(), {n: p.grad.clone() for n, p in encoder.named_parameters()}))
    (ours, gradients), (twin, wanted) = results
    torch.testing.assert_close(ours, twin)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-5, msg=name)


def test_one_user_at_a_time_is_the_same_as_with_the_news() -> None:
    encoder, news = build("npa"), replace(some_news(), user_ids_M=None)
    news_for = encoder.for_users(news)
    for user in (0, 2):
        torch.testing.assert_close(news_for(user), encoder.encode_all(news.for_user(user)))
    assert not torch.allclose(news_for(0), news_for(2))


def test_dropout_is_for_training_only() -> None:
    encoder, news = build("nrms"), some_news()
    assert torch.equal(encoder(news), encoder(news))
    encoder.train()
    assert not torch.equal(encoder(news), encoder(news))


def test_plain_texts_are_read_with_the_stores_words() -> None:
    encoder = build("naml")
    rows = encoder.encode(["word1, Word2!", ("word1 word2", "", ""), ("word1", "word2"), "nobody knows these"])
    assert rows.shape == (4, 12)
    torch.testing.assert_close(rows[0], rows[1])
    assert not torch.allclose(torch.tensor(rows[0]), torch.tensor(rows[2]))


@pytest.mark.parametrize("header", ["", "3 10\n"])
def test_pretrained_vectors_are_taken_over_and_counted(header: str, tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    lines = [
        f"{word} {' '.join(str(number + 0.5) for _ in range(10))}"
        for number, word in enumerate(["word3", "word 4", "nobody", "word5"])
    ]
    file.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
    encoder = build("nrms", replace(CONFIG, glove=file))
    before = encoder.embedding.weight.detach().clone()
    assert encoder.load_vectors() == {"words": 56, "words_with_vectors": 2}
    after = encoder.embedding.weight.detach()
    numbers = encoder.tokenizer.get_vocab()
    assert after[numbers["word3"]].tolist() == [0.5] * 10
    assert after[numbers["word5"]].tolist() == [3.5] * 10
    others = [number for word, number in numbers.items() if word not in ("word3", "word5")]
    assert torch.equal(after[others], before[others])
    assert build("nrms").load_vectors() == {}


def test_words_start_from_the_mean_of_their_pieces(tiny_encoder: Path) -> None:
    tokenizer, table = load_tokenizer(str(tiny_encoder)), load_encoder(str(tiny_encoder)).get_input_embeddings()
    words = ["cat", "budgets", "ministers", "cup", "goals", "feedishly", "\U0001f71a"]
    pieces = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
    assert max(map(len, pieces)) > 1
    means = [torch.stack([table.weight[piece] for piece in one]).mean(0).detach() for one in pieces]
    vectors, is_known = load_piece_vectors(str(tiny_encoder), words, table.embedding_dim, std=0.4)
    assert is_known.tolist() == [set(one) != {tokenizer.unk_token_id} for one in pieces]
    assert not is_known.all()
    assert vectors[is_known].std().item() == pytest.approx(0.4)
    # Rotated, centred and scaled, all distances are those of the means.
    wanted, found = (torch.cdist(rows, rows) for rows in (torch.stack(means)[is_known], vectors[is_known]))
    torch.testing.assert_close(found / found.max(), wanted / wanted.max(), rtol=1e-3, atol=1e-4)


def test_narrow_words_take_the_principal_directions(tiny_encoder: Path) -> None:
    words = ["cat", "budget", "minister", "cup", "goal", "late", "sunday", "north"]
    wide, known = load_piece_vectors(str(tiny_encoder), words, 32, std=1.0)
    narrow, _ = load_piece_vectors(str(tiny_encoder), words, 3, std=1.0)
    assert narrow.shape == (8, 3)
    torch.testing.assert_close(narrow / narrow.norm(), wide[:, :3] / wide[:, :3].norm())
    assert (wide[known].var(0).diff() <= 1e-5).all()  # widest first
    with pytest.raises(InputError, match="has 32 numbers per word"):
        load_piece_vectors(str(tiny_encoder), words, 33, std=1.0)


def test_an_encoder_of_words_loads_vectors_of_pieces(tiny_encoder: Path) -> None:
    config = replace(CONFIG, vectors=str(tiny_encoder))
    encoder = build("nrms", config)
    before = encoder.embedding.weight.detach().clone()
    counts = encoder.load_vectors()
    assert counts["words"] == 56
    assert counts["words_with_vectors"] > 0
    is_changed = (encoder.embedding.weight != before).any(1)
    assert int(is_changed.sum()) == counts["words_with_vectors"]
    assert not is_changed[encoder.tokenizer.all_special_ids].any()
    with pytest.raises(InputError, match="leave one out"):
        replace(config, glove=Path("vectors.txt"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 1 2\n", "found 2 numbers after the word, expected 3.*--words.width"),
        ("a 1 2 x\n", "vectors.txt:1.*'x'"),
    ],
)
def test_a_file_of_other_vectors_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_glove(file, {"a": 0}, 3)
    with pytest.raises(InputError, match="no such file"):
        load_glove(tmp_path / "none.txt", {}, 3)


def test_mistakes_in_the_settings_are_told() -> None:
    with pytest.raises(InputError, match="5 heads do not divide news embeddings of width 12"):
        build("nrms", replace(CONFIG, heads=5))
    with pytest.raises(InputError, match="leave no room for text"):
        build("lstur", replace(CONFIG, category_width=6))


def test_names_of_settings_agree_with_the_encoders():
    assert set(WORD_ENCODERS) == FROM_WORDS
    assert {name for name, kind in WORD_ENCODERS.items() if kind.is_user_dependent} == USER_DEPENDENT
    assert {name for name, kind in WORD_ENCODERS.items() if kind.uses_categories} == WITH_CATEGORIES
