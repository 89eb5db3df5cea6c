"""Models that a run saves: the best so far while it trains, and the finished recommender with its catalogue.

Shapes: V all articles, D embedding width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from speedyfeed.checksums import share_equal, verify_checksums, write_checksums
from speedyfeed.data.store import Store
from speedyfeed.errors import InputError
from speedyfeed.files import new_folder, remove_folder
from speedyfeed.models.catalogue import Catalogue
from speedyfeed.models.packed import PackedNews
from speedyfeed.pretrained import Recommender
from speedyfeed.progress import Report
from speedyfeed.saved_model import WEIGHTS, load_weights
from speedyfeed.training.distributed.partition import encode_all
from speedyfeed.training.distributed.process_group import ProcessGroup
from speedyfeed.training.run_folder import AGAIN, RunFolder

BIASES = "biases.safetensors"
"""File of the best model with the bias of each article when it was validated, where biases are learned."""


def adds_biases(model: Recommender, store: Store) -> bool:
    """Whether learned biases of articles are part of the scores: in a log without impressions, which tells popular
    articles from others only by their clicks."""
    return not store.train.has_negatives and not model.news.is_user_dependent


def best_name(step: int) -> str:
    """Folder name of the best model, by its step."""
    return f"step-{step:08d}"


def save_best(run: RunFolder, model: Recommender, name: str, biases_V: Tensor | None = None) -> None:
    """Save this model as the best so far with the biases of all articles, then remove the one before."""
    path = run.best / name
    if not path.exists():  # a resumed run may validate this step again
        with new_folder(path) as folder:
            model.save_pretrained(folder)
            if biases_V is not None:
                save_file({"biases": biases_V.contiguous()}, folder / BIASES)
                write_checksums(folder)
            share_equal(folder, run.checkpoints.glob("step-*/model"))
    for other in run.best.glob("step-*"):
        if other != path:
            remove_folder(other)


@contextmanager
def initial_weights(run: RunFolder, model: Recommender, group: ProcessGroup) -> Iterator[Tensor | None]:
    """Give a model the weights it was initialized with, as the run saved them, inside a `with` block.

    Yields the biases that were saved with them, biases_V, on rank 0.
    """
    trained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    biases_V = group.on_rank_0(lambda: _load_saved(run.best / best_name(0), model))
    group.broadcast_module(model)
    try:
        yield biases_V
    finally:
        model.load_state_dict(trained)


def write_model(
    run: RunFolder,
    model: Recommender,
    store: Store,
    news: PackedNews,
    report: Report,
    group: ProcessGroup,
    *,
    biases_V: Tensor | None = None,
) -> None:
    """Write the best model, or the last without validation, with embeddings and biases of all articles.

    `biases_V` are those of the last step; the best model has its own.
    """
    best_biases_V = group.on_rank_0(lambda: _load_best(run, model))
    if best_biases_V is not None:
        biases_V = best_biases_V
    group.broadcast_module(model)
    is_user_dependent = model.news.is_user_dependent
    news_VD = (
        torch.empty(1 + store.num_news, 0)
        if is_user_dependent
        else encode_all(model.news, news, group, report=report)
    )
    group.on_rank_0(lambda: _write_model(run, model, store, news, news_VD, biases_V))


def _load_best(run: RunFolder, model: Recommender) -> Tensor | None:
    """Load the best model, if there is one, and return the biases that were saved with it."""
    found = list(run.best.glob("step-*"))
    if run.facts.best_auc and not found:
        raise InputError(f"{run.best}: the model that validated best is missing; {AGAIN}")
    biases_V = None
    for best in found:
        biases_V = _load_saved(best, model)
    return biases_V


def _load_saved(folder: Path, model: Recommender) -> Tensor | None:
    """Load the weights that were saved in a folder, and return the biases beside them."""
    verify_checksums(folder, AGAIN)
    load_weights(model, folder / WEIGHTS)
    return load_file(folder / BIASES)["biases"] if (folder / BIASES).exists() else None


def _write_model(
    run: RunFolder,
    model: Recommender,
    store: Store,
    news: PackedNews,
    news_VD: Tensor,
    biases_V: Tensor | None,
) -> None:
    titles = store.load_titles()
    model.catalogue = Catalogue(
        news_ids=titles["news_id"].to_pylist(),
        titles=titles["title"].to_pylist(),
        categories=titles["category"].to_pylist(),
        embeddings_VD=news_VD[1:],
        num_clicks=store.train.count_clicks(store.num_news)[1:].tolist(),
        biases=None if biases_V is None else biases_V[1:].tolist(),
        adds_biases=biases_V is not None and adds_biases(model, store),
        abstracts=store.load_abstracts(),
        published=store.load_first_shown(),
        bodies=store.bodies,
        texts=news.select(torch.arange(1, len(news))) if model.news.is_user_dependent else None,
    )
    with new_folder(run.model) as folder:
        model.save_pretrained(folder)
        share_equal(folder, [*run.best.glob("step-*"), *run.checkpoints.glob("step-*/model")])
