"""Blending: of the way from a run's start to its end, some part is often better than all of it.

    pretrained start ----- 0.25 ----- 0.5 ----- 0.75 ----- end

On the straight line between the two, weights keep what both know (Wortsman et al., 2022). How far to go is for the
validation to say.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from speedyfeed.files import new_file

ALPHAS = (0.25, 0.5, 0.75)
"""Parts of the way that are tried."""


def save_initial(path: Path, model: nn.Module) -> None:
    """Keep the weights that training will change."""
    with new_file(path) as partial:
        save_file({name: value.detach().contiguous() for name, value in _trained(model)}, partial)


@torch.no_grad()
def interpolate(path: Path, model: nn.Module, look: Callable[[float], None]) -> None:
    """Call `look` with each share while the model has gone that far from the start that was saved to `path`.

    Afterwards its weights are what they were.
    """
    start: Mapping[str, Tensor] = load_file(path)
    end = {name: value.detach().clone() for name, value in _trained(model)}
    for share in ALPHAS:
        for name, value in _trained(model):
            value.copy_(start[name].to(value).lerp(end[name], share))
        look(share)
    for name, value in _trained(model):
        value.copy_(end[name])


def _trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, value) for name, value in model.named_parameters() if value.requires_grad)
