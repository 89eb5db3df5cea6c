"""Weight interpolation: a model between the initial and the final weights is often better than both.

    initial weights ----- 0.25 ----- 0.5 ----- 0.75 ----- final weights

On the straight line between them, weights retain what both have learned (Wortsman et al., 2022). Validation
chooses the point.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from speedyfeed.checksums import damaged
from speedyfeed.files import new_file
from speedyfeed.training.run_folder import AGAIN

ALPHAS = (0.25, 0.5, 0.75)
"""Weights of the final model that are tried."""
CHECKSUM = "sha256"
"""Name of the checksum of all weights in the header of the file."""


def save_initial(path: Path, model: nn.Module) -> None:
    """Save the weights that training will change."""
    weights = {name: value.detach().contiguous() for name, value in _trained(model)}
    with new_file(path) as partial:
        save_file(weights, partial, {CHECKSUM: _checksum(weights)})


@torch.no_grad()
def interpolate(path: Path, model: nn.Module, validate: Callable[[float], None]) -> None:
    """Call `validate` with each alpha while the model has the weights between those saved to `path` and its own.

    Afterwards the model has its own weights again.
    """
    start = load_initial(path)
    end = {name: value.detach().clone() for name, value in _trained(model)}
    for alpha in ALPHAS:
        for name, value in _trained(model):
            value.copy_(start[name].to(value).lerp(end[name], alpha))
        validate(alpha)
    for name, value in _trained(model):
        value.copy_(end[name])


def load_initial(path: Path) -> dict[str, Tensor]:
    """Load what `save_initial` wrote; a damaged file is refused."""
    try:
        with safe_open(path, "pt") as file:
            expected = (file.metadata() or {}).get(CHECKSUM)
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no dictionary
    except SafetensorError as error:
        raise damaged(path, AGAIN) from error
    if expected is not None and expected != _checksum(weights):
        raise damaged(path, AGAIN)
    return weights


def _checksum(weights: Mapping[str, Tensor]) -> str:
    whole = hashlib.sha256()
    for name, value in sorted(weights.items()):
        whole.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        whole.update(value.cpu().reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()


def _trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, value) for name, value in model.named_parameters() if value.requires_grad)
