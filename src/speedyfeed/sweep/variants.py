"""The variants of a sweep, by the names given on the command line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from speedyfeed.errors import InputError
from speedyfeed.recipes import RECIPES, WORKFLOWS, recipe
from speedyfeed.training.config import RunConfig

MINILM_WIDTH = 384
"""Width of the word pieces of MiniLM."""


def named_variants(names: Sequence[str]) -> dict[str, RunConfig]:
    """The runs with these names, in the given order."""
    return {name: named_variant(name) for name in names}


def named_variant(name: str) -> RunConfig:
    """A recipe (`nrms`), a changed recipe (`nrms-minilm-conventional`), or speed-mini with another encoder.

    `CHANGES` follow the name of the recipe. An encoder is a folder, a Hub name (`ORG/NAME`) or a prefixed name
    (`half:minilm`).
    """
    if name in RECIPES:
        return recipe(name)
    if is_encoder_name(name):
        return with_encoder(name)
    for change, apply in CHANGES.items():
        if name.endswith(f"-{change}"):
            return apply(named_variant(name.removesuffix(f"-{change}")))
    raise InputError(
        f"no run {name!r}: choose {', '.join(RECIPES)}, one of these with -{', -'.join(CHANGES)}, "
        "or an encoder's folder or Hub name"
    )


def frozen(run: RunConfig) -> RunConfig:
    """The run with its language model frozen: the control that says what training it is worth."""
    if run.recommender.uses_words:
        raise InputError(f"-frozen: {run.news.encoder} has no language model to freeze; leave it out")
    return replace(run, train=replace(run.train, encoder_lr=0.0))


def from_minilm(run: RunConfig) -> RunConfig:
    """The run with words that start from the word pieces of MiniLM, as wide as those."""
    if not run.recommender.uses_words:
        raise InputError(f"-minilm: {run.news.encoder} is no encoder over words; leave it out")
    return replace(run, words=replace(run.words, vectors="minilm", width=MINILM_WIDTH))


def without_gradients(run: RunConfig) -> RunConfig:
    """The run whose cache hits teach the language model nothing, as in the paper."""
    if not run.cache.gradients or run.cache.gamma == 0:
        raise InputError("-no-gradients: no gradient of this recipe's cache hits is deferred; leave it out")
    return replace(run, cache=replace(run.cache, gradients=False))


CHANGES: Mapping[str, Callable[[RunConfig], RunConfig]] = {
    **WORKFLOWS,
    "frozen": frozen,
    "minilm": from_minilm,
    "no-gradients": without_gradients,
}
"""Changes of a recipe by the words that follow its name."""


def is_encoder_name(name: str) -> bool:
    """Whether a name can only be that of an encoder: a folder, ORG/NAME or PREFIX:NAME."""
    return ":" in name or "/" in name or Path(name).exists()


def with_encoder(name: str) -> RunConfig:
    """The recipe speed-mini with another pretrained encoder."""
    like = recipe("speed-mini")
    return replace(like, news=replace(like.news, encoder=name))
