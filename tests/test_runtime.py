import logging
import os
import subprocess
import sys

import pytest
import torch

from speedyfeed.errors import InputError
from speedyfeed.runtime import Precision, choose_device, choose_precision, seed_everything

CPU = torch.device("cpu")


@pytest.mark.parametrize(("fp32", "bf16", "chosen"), [(2.0, 1.0, "bf16"), (1.0, 2.0, "fp32"), (1.04, 1.0, "fp32")])
def test_auto_takes_bf16_only_when_clearly_faster_and_says_why(
    fp32: float, bf16: float, chosen: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("speedyfeed.runtime.time.process_time", lambda: clock[0])

    def step() -> None:
        clock[0] += bf16 if torch.is_autocast_enabled("cpu") else fp32

    with caplog.at_level(logging.INFO):
        precision = choose_precision("auto", CPU, step, seconds=0)
    assert precision.name == chosen
    assert f"{fp32 * 1e3:.0f} ms a step in fp32 and {bf16 * 1e3:.0f} ms in bf16" in precision.reason
    assert precision.reason in caplog.text


def test_bf16_reaches_the_matrix_products() -> None:
    product = torch.nn.Linear(4, 4)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        precision = choose_precision(name, CPU, lambda: None)
        with precision.autocast():
            assert product(torch.ones(1, 4)).dtype == dtype
    assert Precision(name="fp16", device=CPU, reason="").needs_scaling


def test_what_the_machine_cannot_do_is_refused() -> None:
    with pytest.raises(InputError, match="fp16 needs CUDA"):
        choose_precision("fp16", CPU, lambda: None)
    with pytest.raises(InputError, match="fp32, bf16, fp16"):
        choose_precision("int8", CPU, lambda: None)
    with pytest.raises(InputError, match="no device"):
        choose_device("abacus")
    if not torch.cuda.is_available():
        assert choose_device() == CPU
        with pytest.raises(InputError, match="no CUDA"):
            choose_device("cuda")


def test_a_seed_repeats() -> None:
    draws = [(torch.rand(2, generator=seed_everything(7)), torch.rand(2)) for _ in range(2)]
    assert torch.equal(draws[0][0], draws[1][0])
    assert torch.equal(draws[0][1], draws[1][1])


@pytest.mark.parametrize(("given", "kept"), [({}, "256"), ({"LRU_CACHE_CAPACITY": "7"}, "7")])
def test_kernels_are_bounded_before_torch_is_there_unless_the_user_says_otherwise(
    given: dict[str, str], kept: str
) -> None:
    free = {name: value for name, value in os.environ.items() if not name.endswith("CACHE_CAPACITY")}
    code = "import sys, os, speedyfeed; print('torch' in sys.modules, os.environ['LRU_CACHE_CAPACITY'])"
    said = subprocess.run(
        [sys.executable, "-c", code], env=free | given, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == ["False", kept]
