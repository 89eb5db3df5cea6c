"""Train with a user encoder of your own: a decayed mean, in which recent clicks count more.

python examples/own_user_encoder.py STORE runs/decayed
"""

import argparse
from dataclasses import replace

import torch
from torch import Tensor, nn

import speedyfeed
from speedyfeed.models.users import USER_ENCODERS


class DecayedMeanUser(nn.Module):
    """Mean of the clicks so far, a click's weight falling with its age; `decay` is learned.

    A user encoder maps clicks_BLD (B users, L clicks, width D) to users_BPD, one embedding per prefix: row p knows
    the first p clicks, row 0 none. `speedyfeed.testing.UserEncoderContract` checks the rules, as a pytest class.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(dim))
        self.decay = nn.Parameter(torch.tensor(-3.0))

    def forward(self, clicks_BLD: Tensor, clicked_BL: Tensor, user_ids_B: Tensor | None = None) -> Tensor:
        """Encode every prefix; padding comes last and counts for nothing."""
        num_clicks = clicks_BLD.size(1)
        prefix_P = torch.arange(num_clicks + 1, device=clicks_BLD.device)
        age_PL = prefix_P[:, None] - 1 - prefix_P[:num_clicks]
        rate = nn.functional.softplus(self.decay)
        weights_PL = torch.where(age_PL >= 0, torch.exp(-rate * age_PL.clamp(min=0)), 0.0)
        weights_BPL = weights_PL * clicked_BL[:, None, :]
        sums_BPD = weights_BPL.to(clicks_BLD.dtype) @ clicks_BLD
        return self.start.to(clicks_BLD.dtype) + sums_BPD / weights_BPL.sum(-1, keepdim=True).clamp(min=1e-9)


def main() -> None:
    """Register the encoder by name and train the default recipe with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", help="a prepared store")
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("--encoder", default="minilm", help="pretrained encoder the store was prepared for")
    parser.add_argument("--steps", type=int, default=100, help="training steps")
    options = parser.parse_args()
    USER_ENCODERS["decayed-mean"] = lambda dim, config, user_embeddings: DecayedMeanUser(dim)
    default = speedyfeed.recipe("speed-mini")
    news, train = replace(default.news, encoder=options.encoder), replace(default.train, steps=options.steps)
    config = replace(default, news=news, train=train, user=replace(default.user, name="decayed-mean"))
    speedyfeed.train(options.store, options.run, config)
    print(f"AUC {speedyfeed.evaluate(options.run).overall.metrics['auc'].mean:.4f}")


if __name__ == "__main__":
    main()
