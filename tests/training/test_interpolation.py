"""Weight interpolation: what lies between initial and last weights is as it says, and is saved only if better."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from speedyfeed.pretrained import Recommender
from speedyfeed.training.checkpoint import checkpoints
from speedyfeed.training.interpolation import ALPHAS, interpolate, save_initial
from speedyfeed.training.loop import train
from speedyfeed.training.losses import ClickLoss
from speedyfeed.training.metrics import METRICS
from speedyfeed.training.run_folder import start_run
from speedyfeed.training.trainer import Trainer


def test_interpolated_weights_lie_between_the_initial_and_the_last(tmp_path):
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    save_initial(tmp_path / "start", model)
    start, bias = model.weight.detach().clone(), model.bias.clone()
    end = torch.randn(2, 3)
    model.weight.data.copy_(end)
    seen = {}
    interpolate(tmp_path / "start", model, lambda share: seen.update({share: model.weight.detach().clone()}))
    assert tuple(seen) == ALPHAS
    for share, weight in seen.items():
        torch.testing.assert_close(weight, (1 - share) * start + share * end)
    torch.testing.assert_close(model.weight.detach(), end, rtol=0, atol=0)
    torch.testing.assert_close(model.bias, bias, rtol=0, atol=0)


@pytest.mark.parametrize("best_point", ["last", "interpolation_alpha", "start"])
def test_what_validates_best_is_kept(store, config, tmp_path, monkeypatch, best_point):
    run = start_run(tmp_path / "run", replace(config, train=replace(config.train, steps=4, validations=1)), store)
    # What is validated: the start, the end, and the interpolates.
    aucs = iter(
        {
            "last": [1.0, 1.2, 1.1, 1.1, 1.1],
            "interpolation_alpha": [1.0, 1.1, 1.1, 1.2, 1.15],
            "start": [1.0, 0.0, 0.0, 0.0, 0.0],
        }[best_point]
    )
    monkeypatch.setattr(Trainer, "validate", lambda *_: next(aucs))
    biases, learned = ClickLoss.biases, []
    monkeypatch.setattr(ClickLoss, "biases", lambda loss: learned.append(biases(loss)) or learned[-1])
    outcome = train(run, store)
    kept = load_file(run.model / "model.safetensors")["news.projection.weight"]
    (saved,) = checkpoints(run.checkpoints)
    end = load_file(saved / "model" / "model.safetensors")["news.projection.weight"]
    start = load_file(run.initial_weights)["news.projection.weight"]
    assert not torch.equal(start, end)
    share = {"last": 1.0, "interpolation_alpha": 0.5, "start": 0.0}[best_point]
    torch.testing.assert_close(kept, start.lerp(end, share), rtol=0, atol=1e-7)
    assert learned[-1].any()
    kept_biases = torch.tensor(Recommender.from_pretrained(run.model).catalogue.biases)
    torch.testing.assert_close(kept_biases, share * learned[-1][1:], rtol=0, atol=1e-6)
    if best_point != "start":
        assert outcome.progress.best_auc == 1.2
    lines = [json.loads(line) for line in (run.path / METRICS).read_text().splitlines()]
    assert [line["interpolation_alpha"] for line in lines if "interpolation_alpha" in line] == list(ALPHAS)


def test_nothing_is_interpolated_that_was_not_trained_or_not_validated(store, config, tmp_path):
    for name, changes in (("untrained", {"steps": 0}), ("unseen", {"steps": 2, "validations": 0})):
        run = start_run(tmp_path / name, replace(config, train=replace(config.train, **changes)), store)
        assert train(run, store).is_finished
        assert "interpolation_alpha" not in (run.path / METRICS).read_text()
