"""Making a job's model: what is mended, and what is refused."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedrecall import Federation, federate
from fedrecall.models.build import build_model

GROUP_NORM = """
import torch
from torch import nn
from fedrecall.models.build import contiguous_without_gradient

for channels in (1, 8):
    norm = nn.GroupNorm(1, channels)
    norm.register_forward_pre_hook(contiguous_without_gradient)
    x = torch.randn(4, 6, 5, channels).permute(0, 3, 1, 2)  # channels last
    norm(x).square().sum().backward()
    plain = nn.GroupNorm(1, channels)
    plain(x.clone(memory_format=torch.contiguous_format)).square().sum().backward()
    torch.testing.assert_close(norm.weight.grad, plain.weight.grad)
"""


def test_group_norm_survives_images_that_need_no_gradient() -> None:
    subprocess.run([sys.executable, "-c", GROUP_NORM], check=True, timeout=60)  # it would end the process


def test_a_strided_convolution_on_one_channel_is_right() -> None:
    """Rows of one output: oneDNN read memory that is not the tensors'."""
    random = np.random.default_rng(0)
    clients = [(random.integers(0, 256, (33, 2, 2, 1), dtype=np.uint8), np.arange(33) % 4) for _ in range(2)]
    federation = Federation.from_clients(clients, num_classes=4, validation=0.0, layout="nhwc")
    make = lambda: nn.Sequential(nn.Conv2d(1, 4, (1, 2), (1, 3)), nn.Flatten(), nn.Linear(8, 4))  # noqa: E731
    flat = build_model(make, federation, seed=0, threads=1)
    x = torch.randn(33, 1, 2, 2).contiguous(memory_format=torch.channels_last)
    weight, bias = flat.module[0].weight.detach().double(), flat.module[0].bias.detach().double()
    exact = (x[:, 0].double()[:, None] * weight[:, 0, 0][None, :, None, :]).sum(-1) + bias[None, :, None]
    for _ in range(30):
        junk = [torch.full((n,), 1e9) for n in range(10, 3000, 150)]
        del junk
        torch.testing.assert_close(flat.module[0](x)[..., 0].double(), exact, atol=1e-5, rtol=1e-5)


def test_a_lazy_model_may_be_float64(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 4))
    federation = Federation.from_clients([(x[i::4], np.arange(10) % 2) for i in range(4)], validation=0.0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.LazyLinear(2)).double()
    run = federate(model, federation, rounds=1, participation=1.0, engine="serial", out=tmp_path / "run")
    assert run.model().state_dict()["2.weight"].dtype == torch.float64
