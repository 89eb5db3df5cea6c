"""Weight interpolation: a model between the initial and the final weights is often better than both.

    initial weights ----- 0.25 ----- 0.5 ----- 0.75 ----- final weights

On the straight line between them, weights retain what both have learned (Wortsman et al., 2022). Validation
chooses the point.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from speedyfeed.files import new_file

ALPHAS = (0.25, 0.5, 0.75)
"""Weights of the final model that are tried."""


def save_initial(path: Path, model: nn.Module) -> None:
    """Save the weights that training will change."""
    with new_file(path) as partial:
        save_file({name: value.detach().contiguous() for name, value in _trained(model)}, partial)


@torch.no_grad()
def interpolate(path: Path, model: nn.Module, validate: Callable[[float], None]) -> None:
    """Call `validate` with each alpha while the model has the weights between those saved to `path` and its own.

    Afterwards the model has its own weights again.
    """
    start: Mapping[str, Tensor] = load_file(path)
    end = {name: value.detach().clone() for name, value in _trained(model)}
    for alpha in ALPHAS:
        for name, value in _trained(model):
            value.copy_(start[name].to(value).lerp(end[name], alpha))
        validate(alpha)
    for name, value in _trained(model):
        value.copy_(end[name])


def _trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, value) for name, value in model.named_parameters() if value.requires_grad)
