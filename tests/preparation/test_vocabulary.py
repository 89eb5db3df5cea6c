"""The words of a store: which are in its vocabulary, and how news become them."""

import json

from speedyfeed.preparation.config import PrepareConfig
from speedyfeed.preparation.prepare import prepare
from speedyfeed.preparation.vocabulary import SPECIAL, build_word_tokenizer
from speedyfeed.tokenizers import load_tokenizer

NEWS = {
    "N1": ("sport", "Late GOAL wins the cup", "The Zürich cup"),
    "N2": ("sport", "Goal after goal: Zürich", ""),
    "N3": ("world", "Budget of the cup", "goal"),
}
LATER = {**NEWS, "N4": ("world", "Budget, budget and later news", "later")}


def write(folder, news):
    folder.mkdir(parents=True)
    lines = [f"{key}\t{section}\t\t{title}\t{text}\t\t[]\t[]\n" for key, (section, title, text) in news.items()]
    (folder / "news.tsv").write_text("".join(lines), encoding="utf-8")
    (folder / "behaviors.tsv").write_text("1\tU1\t11/11/2019 9:05:58 AM\tN1\tN2-1 N3-0\n", encoding="utf-8")


def make(tmp_path, **settings):
    write(tmp_path / "logs" / "train", NEWS)
    write(tmp_path / "logs" / "dev", LATER)
    return prepare(tmp_path / "logs", tmp_path / "store", PrepareConfig(**settings)).store


def texts(store):
    tokenizer = load_tokenizer(str(store.path / "word_tokens"))
    return [tokenizer.convert_ids_to_tokens(segment.tolist()) for segment in store.word_tokens.tokens]


def test_the_vocabulary_is_what_several_train_news_have(tmp_path):
    store = make(tmp_path)
    words = json.loads((store.path / "word_tokens" / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    # budget and later are in several news, but not of the train split; goal is in three of it, the others in two
    assert sorted(words, key=words.get) == [*SPECIAL, "goal", "cup", "the", "zürich"]
    assert store.manifest.counts.vocabulary_size == 4


def test_news_are_the_same_segments_in_words_and_in_tokens(tmp_path):
    store = make(tmp_path)
    assert texts(store)[:3] == [
        ["[CLS]", "[UNK]", "goal", "[UNK]", "cup", "[SEP]"],
        ["[CLS]", "zürich", "cup", "[SEP]"],
        ["[CLS]", "goal", "zürich", "[SEP]"],
    ]
    assert store.word_tokens.frequencies[:6].tolist() == [0, 1, 1, 1, 1, 0]
    assert store.word_tokens.fields.tolist() == store.news.fields.tolist()
    assert store.word_tokens.segments.tolist() == store.news.segments.tolist()


def test_without_refinement_words_come_in_the_order_of_the_text(tmp_path):
    store = make(tmp_path, refine="none", segment_tokens=5)
    assert texts(store)[2] == ["[CLS]", "goal", "[UNK]", "goal", "[SEP]"]


def test_words_are_split_at_whatever_is_no_letter_and_no_number():
    tokenizer = build_word_tokenizer(["3", "5", "ærlig", "u", "s"])
    ids = tokenizer("3.5% Ærlig—U.S. _ talt")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "3", "5", "ærlig", "u", "s", "[UNK]", "[SEP]"]
    assert tokenizer("")["input_ids"] == [2, 3]
