import dataclasses
from pathlib import Path

import pytest
import torch

from speedyfeed.errors import InputError
from speedyfeed.models.config import NewsEncoderConfig
from speedyfeed.models.frozen import FrozenStates
from speedyfeed.models.news import NewsEncoder
from speedyfeed.models.packed import PackedNews
from tests.models.families import CONFIGS, build
from tests.models.test_news import make_news as make_nameless

LAYERED = [family for family in CONFIGS if family != "albert"]
NEWS = [[5, 3, 4], [], [4], [3, 5], [1], [9, 2]]


def make_news() -> PackedNews:
    return dataclasses.replace(make_nameless(NEWS), ids_M=torch.arange(len(NEWS)))


def make_encoder(family: str, **settings: object) -> NewsEncoder:
    model = build(family)
    model.set_attn_implementation("bus")
    torch.manual_seed(3)
    return NewsEncoder(NewsEncoderConfig(**{"dim": 12, "frozen_gigabytes": 1e-3, **settings}), model).eval()


def gradients(encoder: NewsEncoder, *, only: set[str] | None = None) -> dict[str, torch.Tensor]:
    return {
        name: p.grad.clone()
        for name, p in encoder.named_parameters()
        if p.grad is not None and (only is None or name in only)
    }


@pytest.mark.parametrize("family", LAYERED)
def test_the_shortcut_gives_the_same_embeddings_and_gradients(family: str) -> None:
    whole, split = make_encoder(family), make_encoder(family, train_layers=1)
    store = make_news()
    upstream = torch.randn(4, 12)
    for rows in ([0, 1, 2, 3], [3, 0, 5, 4]):  # the second time some are kept and some are new
        news = store.select(torch.tensor(rows))
        for encoder in (whole, split):
            encoder.zero_grad()
            (encoder(news) * upstream).sum().backward()
        torch.testing.assert_close(split(news), whole(news), rtol=1e-5, atol=1e-5)
        ours = gradients(split)
        theirs = gradients(whole, only=set(ours))
        assert any(name.startswith("encoder.") for name in ours)
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-5, msg=name)


def test_frozen_layers_run_once_per_news() -> None:
    encoder, store = make_encoder("bert", train_layers=1), make_news()
    calls: list[int] = []
    encoder.encoder.encoder.layer[0].register_forward_hook(
        lambda module, args, output: calls.append(args[0].size(1))
    )
    encoder(store.select(torch.tensor([0, 2])))
    encoder(store.select(torch.tensor([2, 3, 0])))
    encoder(store.select(torch.tensor([3, 2, 0])))
    assert calls == [12 + 4, 8]  # tokens: news 0 and 2, then only news 3


def test_only_the_last_layer_and_the_head_train() -> None:
    encoder = make_encoder("bert", train_layers=1)
    trained = {name for name, p in encoder.named_parameters() if p.requires_grad}
    assert trained
    assert all(name.startswith(("encoder.encoder.layer.1.", "over_", "projection.")) for name in trained)
    encoder.train()
    assert encoder.encoder.encoder.layer[1].training
    assert not encoder.encoder.encoder.layer[0].training
    assert not encoder.encoder.embeddings.training


def test_a_full_budget_costs_time_not_correctness(tmp_path: Path) -> None:
    room = (12 + 4) * 16 * 4 / 1e9  # news 0 and 2, and nothing more
    whole, store = make_encoder("bert"), make_news()
    tight = make_encoder("bert", train_layers=1, frozen_gigabytes=room, frozen_file=tmp_path / "states")
    for _ in range(2):
        for rows in ([0, 2, 3], [5, 4, 0]):
            news = store.select(torch.tensor(rows))
            torch.testing.assert_close(tight(news), whole(news), rtol=1e-5, atol=1e-5)
    assert tight._frozen is not None
    assert len(tight._frozen._states) == 2
    assert (tmp_path / "states").stat().st_size == (12 + 4) * 16 * 4


def test_news_without_ids_are_not_kept() -> None:
    encoder, news = make_encoder("bert", train_layers=1), make_nameless(NEWS)
    encoder(news)
    encoder.encode_all(news)
    assert encoder._frozen is not None
    assert len(encoder._frozen._states) == 0


def test_states_are_read_back_in_any_order() -> None:
    states = FrozenStates(width=2, budget=5 * 2 * 4)
    rows = torch.arange(12.0).view(6, 2)
    states.write(torch.tensor([7, 3, 9]), torch.tensor([2, 3, 1]), rows)  # news 9 no longer fits
    starts = states.find(torch.tensor([3, 9, 7]))
    assert starts.tolist() == [2, -1, 0]
    assert torch.equal(states.read(starts[[0, 2]], torch.tensor([3, 2])), rows[[2, 3, 4, 0, 1]])


def test_last_in_the_name_trains_one_layer() -> None:
    encoder = NewsEncoder(NewsEncoderConfig(encoder="last:minilm", frozen_gigabytes=0.01))
    layers = {name.split(".")[3] for name, p in encoder.named_parameters() if "layer." in name and p.requires_grad}
    assert layers == {"5"}


def test_shared_layers_and_too_many_layers_are_refused() -> None:
    with pytest.raises(InputError, match="ALBERT shares"):
        make_encoder("albert", train_layers=1)
    with pytest.raises(InputError, match="the encoder has 2"):
        make_encoder("bert", train_layers=3)
