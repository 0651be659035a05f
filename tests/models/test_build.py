"""Making a job's model: what is mended, and what is refused."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import Federation, federate

GROUP_NORM = """
import torch
from torch import nn
from fedrecall.models.build import contiguous_without_gradient

channels = {channels}
norm = nn.GroupNorm(1, channels)
norm.register_forward_pre_hook(contiguous_without_gradient)
x = torch.randn(4, 6, 5, channels).permute(0, 3, 1, 2)  # channels last
norm(x).square().sum().backward()
plain = nn.GroupNorm(1, channels)
plain(x.clone(memory_format=torch.contiguous_format)).square().sum().backward()
torch.testing.assert_close(norm.weight.grad, plain.weight.grad)
"""


@pytest.mark.parametrize("channels", [1, 8])
def test_group_norm_survives_images_that_need_no_gradient(channels: int) -> None:
    subprocess.run([sys.executable, "-c", GROUP_NORM.format(channels=channels)], check=True, timeout=60)


def test_a_lazy_model_may_be_float64(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 4))
    federation = Federation.from_clients([(x[i::4], np.arange(10) % 2) for i in range(4)], validation=0.0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.LazyLinear(2)).double()
    run = federate(model, federation, rounds=1, participation=1.0, engine="serial", out=tmp_path / "run")
    assert run.model().state_dict()["2.weight"].dtype == torch.float64
