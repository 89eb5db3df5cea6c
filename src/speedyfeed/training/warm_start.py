"""Warm start: the weights of a finished run as the beginning of a run on a later store.

    users of the earlier run   U7 U8          rows of U8 and U9 in the new embedding: U8's row, a new row
    users of the new store     U8 U9

Weights of the same shape are copied. Embeddings of users, categories and words are copied name by name, because
the names of a later store are others and in another order; new names have their initial rows. Biases of articles
are copied, too: until they are learned, embeddings learn popularity in their place, which undoes what was learned.
They follow the logarithm of the clicks, so that new articles have the bias of old ones that were clicked as often.
The optimizer starts anew.

Shapes: V all articles of a store.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from speedyfeed.encoding.inputs import Articles
from speedyfeed.errors import InputError
from speedyfeed.models.catalogue import Catalogue
from speedyfeed.models.words import WordNewsEncoder
from speedyfeed.pretrained import Recommender
from speedyfeed.training.losses import ClickLoss

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenOver:
    """Names whose embeddings were taken over from an earlier run, and names that are new."""

    known: dict[str, int]
    """Number of users, categories, subcategories, words and articles that the earlier run knew; only kinds in
    use."""
    new: dict[str, int]
    """Number of those that it did not know."""

    def describe(self) -> str:
        """Counts of each kind on one line."""
        kinds = [f"{kind} {known:,} known and {self.new[kind]:,} new" for kind, known in self.known.items()]
        return "; ".join(kinds) or "no embeddings of names"


def warm_start(
    model: Recommender,
    path: Path,
    loss: ClickLoss | None = None,
    news_ids: Sequence[str] = (),
    num_clicks: Sequence[int] = (),
) -> TakenOver:
    """Load the weights of the finished run at `path` into a new model; refused where they do not fit.

    With the `loss` of the new run, it gets the biases of the articles, whose ids are `news_ids`.
    """
    earlier = Recommender.from_pretrained(path)
    if earlier.config.news.encoder != model.config.news.encoder:
        raise InputError(
            f"--from {path}: found encoder {earlier.config.news.encoder!r}, asked for "
            f"{model.config.news.encoder!r}; give --encoder {earlier.config.news.encoder}, or leave out --from"
        )
    _require_same_tokens(earlier, model, path)
    taken = TakenOver(known={}, new={})
    before, after = _names(earlier), _names(model)
    source, target = earlier.state_dict(), model.state_dict()
    if source.keys() != target.keys():
        odd = sorted(source.keys() ^ target.keys())[0]
        raise _other_settings(path, f"weights {odd} in one of them only")
    with torch.no_grad():
        for name, weights in target.items():
            kind = _kind(model, name)
            if kind is None:
                if source[name].shape != weights.shape:
                    raise _other_settings(path, f"{name} of shape {tuple(source[name].shape)}")
                weights.copy_(source[name])
            elif source[name].shape[1:] != weights.shape[1:]:
                raise _other_settings(path, f"{name} of width {source[name].shape[-1]}")
            else:
                taken.known[kind] = _copy_rows(weights, source[name], after[kind], before[kind])
                taken.new[kind] = len(after[kind]) - taken.known[kind]
    if loss is not None and loss.bias_V is not None and earlier.catalogue is not None:
        taken.known["articles"] = take_biases(loss, news_ids, num_clicks, earlier.catalogue)
        taken.new["articles"] = len(news_ids) - taken.known["articles"]
    log.info("warm start from %s: %s", path, taken.describe())
    return taken


@torch.no_grad()
def take_biases(loss: ClickLoss, news_ids: Sequence[str], num_clicks: Sequence[int], catalogue: Catalogue) -> int:
    """Take the biases of articles from the catalogue of an earlier run, moved by the clicks that came since.

    `news_ids` are the articles of the new store in its order, `num_clicks` their clicks there. Returns how many of
    them were known: an article that the earlier run had but never trained on has a bias of 0, and counts as new.

        article          its bias, in logits
        known            bias before + log(clicks + 1) - log(clicks before + 1)
        new              log(clicks + 1) + mean of bias - log(clicks + 1) over the known ones
        without clicks   mean of the others: nothing is known of its popularity

    Where the loss corrects for a part of the popularity, logarithms count by that part.
    """
    assert loss.bias_V is not None
    if catalogue.biases is None or catalogue.num_clicks is None:
        return 0
    before = {
        name: (bias, clicks)
        for name, bias, clicks in zip(catalogue.news_ids, catalogue.biases, catalogue.num_clicks, strict=True)
        if bias
    }
    is_known_V = torch.tensor([name in before for name in news_ids])
    if is_known_V.any():
        known_V2 = torch.tensor([before.get(name, (0.0, 0)) for name in news_ids])
        clicks_V, part = torch.tensor(num_clicks), loss.config.popularity_correction or 1.0
        learned_V = known_V2[:, 0] * loss.log_scale.exp().cpu() - part * known_V2[:, 1].log1p()
        learned_V = torch.where(is_known_V, learned_V, learned_V[is_known_V].mean())
        biases_V = part * clicks_V.log1p() + learned_V
        has_clicks_V = is_known_V | (clicks_V > 0)
        loss.bias_V[1:] = torch.where(has_clicks_V, biases_V, biases_V[has_clicks_V].mean()).to(loss.bias_V)
    return int(is_known_V.sum())


def _require_same_tokens(earlier: Recommender, model: Recommender, path: Path) -> None:
    """Refuse tokens of another tokenizer; words are taken over one by one."""
    was, now = earlier.news.packer, model.news.packer
    if model.news.uses_words or not isinstance(was, Articles) or not isinstance(now, Articles):
        return
    if was.text.settings.tokenizer != now.text.settings.tokenizer:
        raise InputError(
            f"--from {path}: found a model of another tokenizer than that of the store, expected the same; "
            "prepare the store with --like the store of that run, or leave out --from"
        )


def _names(model: Recommender) -> dict[str, Mapping[str, int]]:
    """Row of each name in the embedding of its kind; row 0 of users and categories is the unknown one."""
    maps = model.id_maps
    rows = {kind: _rows(getattr(maps, kind)) for kind in ("users", "categories", "subcategories")}
    words = model.news.vocabulary if isinstance(model.news, WordNewsEncoder) else {}
    return {**rows, "words": words}


def _rows(names: Sequence[str]) -> dict[str, int]:
    return {name: row for row, name in enumerate(names, start=1)}


def _kind(model: Recommender, name: str) -> str | None:
    """Kind of names that the rows of some weights belong to; None for all other weights."""
    if name.endswith("user_embeddings.weight"):
        return "users"
    if name == "news.category.weight":
        return "categories"
    if name == "news.embedding.weight" and isinstance(model.news, WordNewsEncoder):
        return "words"
    for number, kind in enumerate(("categories", "subcategories")):
        if name in (
            f"news.word_encoder.categories.{number}.weight",
            f"news.word_encoder.categories.{number}.0.weight",
        ):
            return kind
    return None


def _copy_rows(weights: Tensor, source: Tensor, after: Mapping[str, int], before: Mapping[str, int]) -> int:
    """Copy the rows of the names that both have, and row 0; returns the number of names."""
    known = [name for name in after if name in before]
    rows = torch.tensor([0, *(after[name] for name in known)])
    weights[rows.to(weights.device)] = source[torch.tensor([0, *(before[name] for name in known)])].to(weights)
    return len(known)


def _other_settings(path: Path, found: str) -> InputError:
    return InputError(
        f"--from {path}: found {found}, expected a model of the same settings; train with the recipe and the "
        "options of that run, or leave out --from"
    )
