"""A recommender as ONNX files, for programs without PyTorch: its news encoder and its user encoder.

    news.onnx  input_ids, attention_mask, frequencies (articles, segments, tokens), category (articles)
               -> news_embedding (articles, width)
    user.onnx  clicks (users, clicks, width), clicked (users, clicks)  -> user_embedding (users, width)
               with user_ids (users) in models that use them

The packed row of tokens becomes padded segments, and the bus a mask: a token sees its own segment and the first
tokens of the others. Costs are quadratic in the tokens of an article, not of the batch.

Shapes: M articles, S segments of an article, K segments of all articles, L tokens of a segment, N tokens of an
article (S x L), H encoder width, B users, P prefixes, D embedding width.
"""

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from speedyfeed.encoding.inputs import Articles
from speedyfeed.errors import InputError
from speedyfeed.files import write_json
from speedyfeed.models.layers import AdditiveAttention
from speedyfeed.models.news import NewsEncoder
from speedyfeed.models.packed import PackedNews
from speedyfeed.models.plm import first_position
from speedyfeed.pretrained import Recommender

NEWS, USER, TOKENIZER, FACTS = "news.onnx", "user.onnx", "tokenizer.json", "onnx.json"
PARITY = 1e-4
"""Largest difference from PyTorch that an exported embedding may have."""
OPSET = 20

Feeds = dict[str, NDArray[Any]]
"""Inputs of an exported model by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedModel:
    """An exported model: its size, its difference from PyTorch, and the speed of both."""

    file: str
    megabytes: float
    difference: float
    """Largest absolute difference of any number of an embedding."""
    onnx_per_second: float
    """Articles or users a second in ONNX Runtime, on the CPU."""
    torch_per_second: float
    """Articles or users a second in PyTorch, on the same inputs."""


def export_onnx(model: Recommender, folder: Path, *, num_news: int = 64) -> tuple[ExportedModel, ExportedModel]:
    """Write news and user encoder into an existing folder, compare both with PyTorch, and time them.

    The comparison encodes titles of the catalogue, and users with random clicks on them. A model that differs by
    more than `PARITY` is refused.
    """
    _require_packages()
    news = model.news
    if not isinstance(news, NewsEncoder):
        raise InputError(
            f"--onnx: found the word encoder {model.config.news.encoder!r}, expected a language model; export "
            "--embeddings instead"
        )
    model.eval()
    texts = list(model.catalogue.titles[:num_news]) if model.catalogue is not None else ["A title", "Another one"]
    packed = news.packer(texts) if news.packer is not None else None
    if packed is None:
        raise InputError("--onnx: found a recommender without text.json, expected a finished run; train one")
    exported_news = _export_news(news, packed, folder)
    exported_user = _export_user(model, news.encode_all(packed), folder)
    with TemporaryDirectory(prefix="speedyfeed-") as scratch:
        news.tokenizer.save_pretrained(scratch)
        shutil.copyfile(Path(scratch) / TOKENIZER, folder / TOKENIZER)
    write_json(folder / FACTS, _facts(model))
    return exported_news, exported_user


def pad_news(news: PackedNews, *, joins: bool = False) -> Feeds:
    """Inputs of `news.onnx` for packed articles; `joins` makes one segment of each article."""
    news = news.joined() if joins else news
    segments_M, lengths_K = news.segments_M.numpy(), news.lengths_K.numpy()
    shape = (len(news), max(1, int(segments_M.max(initial=0))), max(1, int(lengths_K.max(initial=0))))
    feeds: Feeds = {name: np.zeros(shape, np.int64) for name in ("input_ids", "attention_mask", "frequencies")}
    starts = news.segment_starts.numpy()
    for article in range(len(news)):
        first = int(news.news_starts[article])
        for position in range(segments_M[article]):
            tokens = slice(starts[first + position], starts[first + position + 1])
            row = (article, position, slice(0, lengths_K[first + position]))
            feeds["input_ids"][row] = news.tokens_T[tokens].numpy()
            feeds["frequencies"][row] = news.frequencies_T[tokens].numpy()
            feeds["attention_mask"][row] = 1
    categories_M = np.zeros(len(news), np.int64) if news.categories_M is None else news.categories_M.numpy()
    return feeds | {"category": categories_M.astype(np.int64)}


class PaddedNewsEncoder(nn.Module):
    """A trained news encoder over padded segments; gives the embeddings that it gives packed ones."""

    def __init__(self, news: NewsEncoder) -> None:
        super().__init__()
        self.news = news
        self._first_position = first_position(news.encoder)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, frequencies: Tensor, category: Tensor) -> Tensor:
        """Encode articles to news_MD."""
        num_news, num_segments, length = input_ids.shape
        is_token_MN = attention_mask.bool().flatten(1)
        segment_N = torch.arange(num_segments, device=input_ids.device)[:, None].expand(-1, length).flatten()
        position_N = torch.arange(length, device=input_ids.device).expand(num_segments, -1).flatten()
        sees_NN = segment_N[:, None] == segment_N
        if self.news.config.bus:
            sees_NN = sees_NN | (position_N == 0)
        embed = self.news.encoder.get_input_embeddings()
        embedded_MNH = embed(input_ids.flatten(1)) + self.news.frequency(frequencies.flatten(1))
        hidden_MNH = self.news.encoder(
            inputs_embeds=embedded_MNH,
            position_ids=(position_N + self._first_position).expand(num_news, -1),
            visible=sees_NN & is_token_MN[:, None, :],
        ).last_hidden_state
        hidden_MSLH = hidden_MNH.unflatten(1, (num_segments, length))
        is_token_MSL = attention_mask.bool()
        segments_MSH = _pool(self.news.over_tokens, hidden_MSLH, is_token_MSL)
        news_MH = _pool(self.news.over_segments, segments_MSH, is_token_MSL.any(-1))
        return self.news.project(news_MH, category)


class LastUserEncoder(nn.Module):
    """A trained user encoder that gives the embedding after the last click only."""

    def __init__(self, user: nn.Module, *, uses_user_ids: bool) -> None:
        super().__init__()
        self.user = user
        self._uses_user_ids = uses_user_ids

    def forward(self, clicks: Tensor, clicked: Tensor, user_ids: Tensor | None = None) -> Tensor:
        """Encode users to users_BD; a user without clicks has one that is not `clicked`."""
        users_BPD: Tensor = self.user(clicks, clicked, user_ids if self._uses_user_ids else None)
        return users_BPD[:, -1]


def padded_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    visible: Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    bias: Any = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention to visible tokens, (M, N, N), for transformers; windows and relative positions are refused."""
    if sliding_window is not None or bias is not None:
        raise InputError(
            "--onnx: found an encoder with sliding windows or relative positions, expected absolute positions; "
            "export --embeddings instead"
        )
    hidden = torch.finfo(query.dtype).min / 2  # no NaN in rows of padding, which see nothing
    mask = torch.where(visible[:, None], 0.0, hidden).to(query.dtype)
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register("padded", padded_attention)
AttentionMaskInterface.register("padded", lambda *_, **__: None)


def _pool(attention: AdditiveAttention, items: Tensor, is_item: Tensor) -> Tensor:
    """Pool items (..., N, H), of which some are none, to (..., H); zeros where all are none."""
    scores = attention.query(attention.project(items).tanh()).squeeze(-1).float()
    weights = scores.masked_fill(~is_item, torch.finfo(scores.dtype).min / 2).softmax(-1) * is_item
    pooled: Tensor = (items.float() * weights[..., None]).sum(-2)
    return pooled


def _export_news(news: NewsEncoder, packed: PackedNews, folder: Path) -> ExportedModel:
    feeds = pad_news(packed, joins=news.joins)
    before = news.encoder.config._attn_implementation
    news.encoder.set_attn_implementation("padded")
    try:
        _write(PaddedNewsEncoder(news), feeds, folder / NEWS)
    finally:
        news.encoder.set_attn_implementation(before)
    return _compare(folder / NEWS, feeds, lambda: news.encode_all(packed).numpy())


def _export_user(model: Recommender, news_MD: Tensor, folder: Path) -> ExportedModel:
    generator = torch.Generator().manual_seed(0)
    num_users, num_clicks = len(news_MD), min(20, model.config.max_clicks or 20)
    clicks = news_MD[torch.randint(len(news_MD), (num_users, num_clicks), generator=generator)]
    clicked = torch.arange(num_clicks) < torch.arange(num_users)[:, None] % (num_clicks + 1)
    feeds: Feeds = {"clicks": clicks.numpy(), "clicked": clicked.numpy()}
    user_ids_B = torch.arange(num_users) % (1 + len(model.id_maps.users))
    if model.config.uses_user_ids:
        feeds["user_ids"] = user_ids_B.numpy()
    encoder = LastUserEncoder(model.user, uses_user_ids=model.config.uses_user_ids)
    _write(encoder, feeds, folder / USER)
    return _compare(folder / USER, feeds, lambda: _means(model, clicks, clicked, user_ids_B))


def _means(model: Recommender, clicks: Tensor, clicked: Tensor, user_ids_B: Tensor) -> NDArray[np.float32]:
    means_BD: NDArray[np.float32] = model.encode_users(clicks, clicked, user_ids_B).means_BPD[:, 0].numpy()
    return means_BD


def _write(module: nn.Module, feeds: Feeds, path: Path) -> None:
    """Write a module as ONNX; all axes of its inputs may have any size, but for the width of clicks."""
    with _quiet():
        torch.onnx.export(
            module.eval(),
            tuple(torch.from_numpy(value) for value in feeds.values()),
            str(path),
            input_names=list(feeds),
            output_names=[f"{path.stem}_embedding"],
            dynamic_shapes=tuple(
                dict.fromkeys(range(value.ndim - (name == "clicks")), torch.export.Dim.DYNAMIC)
                for name, value in feeds.items()
            ),
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what the exporter says about other packages and its own future."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _compare(path: Path, feeds: Feeds, encode: Callable[[], NDArray[np.float32]]) -> ExportedModel:
    """Compare an exported model with PyTorch, and time both."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    size = len(next(iter(feeds.values())))
    (found, onnx_seconds), (wanted, torch_seconds) = (
        _timed(lambda: session.run(None, feeds)[0]),
        _timed(encode),
    )
    difference = float(np.abs(found - wanted).max())
    if not difference <= PARITY:
        raise InputError(f"{path}: differs from PyTorch by {difference:.2g}, expected at most {PARITY}; report it")
    return ExportedModel(
        file=path.name,
        megabytes=path.stat().st_size / 1e6,
        difference=difference,
        onnx_per_second=size / onnx_seconds,
        torch_per_second=size / torch_seconds,
    )


def _timed(call: Callable[[], NDArray[np.float32]]) -> tuple[NDArray[np.float32], float]:
    """Result of a call, and the seconds of a second one."""
    result = call()
    started = perf_counter()
    call()
    return result, perf_counter() - started


def _facts(model: Recommender) -> dict[str, Any]:
    """Facts that a caller needs to make inputs."""
    text = model.news.packer.text.to_json() if isinstance(model.news.packer, Articles) else None
    return {
        "width": model.news.dim,
        "max_clicks": model.config.max_clicks,
        "sharpness": model.config.user.sharpness,
        "joins_segments": model.news.joins,
        "categories": list(model.id_maps.categories),
        "users": list(model.id_maps.users) if model.config.uses_user_ids else [],
        "text": text,
    }


def _require_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"--onnx: found no package {', '.join(missing)}, expected it installed; pip install 'speedyfeed[onnx]'"
        )
