"""The variants of a sweep, by the names given on the command line."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from speedyfeed.errors import InputError
from speedyfeed.recipes import RECIPES, WORKFLOWS, in_workflow, recipe
from speedyfeed.training.config import RunConfig


def named_variants(names: Sequence[str]) -> dict[str, RunConfig]:
    """The runs with these names, in the given order."""
    return {name: named_variant(name) for name in names}


def named_variant(name: str) -> RunConfig:
    """A recipe (`nrms`), a recipe in a workflow (`nrms-conventional`), or Speed-Mini with another encoder.

    An encoder is a folder, a Hub name (`ORG/NAME`) or a prefixed name (`half:minilm`).
    """
    if name in RECIPES:
        return recipe(name)
    base, _, workflow = name.rpartition("-")
    if base in RECIPES and workflow in WORKFLOWS:
        return in_workflow(recipe(base), workflow)
    if not is_encoder_name(name):
        raise InputError(
            f"no run {name!r}: choose {', '.join(RECIPES)}, one of these with -conventional or -fast, "
            "or an encoder's folder or Hub name"
        )
    return with_encoder(name)


def is_encoder_name(name: str) -> bool:
    """Whether a name can only be that of an encoder: a folder, ORG/NAME or PREFIX:NAME."""
    return ":" in name or "/" in name or Path(name).exists()


def with_encoder(name: str) -> RunConfig:
    """Speed-Mini with another pretrained encoder."""
    like = recipe("speed-mini")
    return replace(like, news=replace(like.news, encoder=name))
