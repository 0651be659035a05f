"""One client with all the data is plain SGD, to the bit."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedrecall import CrossEntropy, Federation, Iid, Images, Local, federate
from fedrecall.core.rng import Shuffle
from fedrecall.models import lenet, mlp


def images() -> tuple[np.ndarray, np.ndarray, nn.Module]:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (150, 3, 32, 32), dtype=np.uint8)
    return x, random.integers(0, 10, 150), lenet((3, 32, 32), 10)


def vectors() -> tuple[np.ndarray, np.ndarray, nn.Module]:
    random = np.random.default_rng(0)
    x = random.normal(size=(83, 37)).astype(np.float32)
    return x, random.integers(0, 10, 83), mlp((37,), 10, hidden=(53, 31))


def plain_sgd(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, rounds: int, batch_size: int, momentum: float
) -> nn.Module:
    """The loop that anybody would write; the order of the samples is fedrecall's."""
    model = copy.deepcopy(model).to(memory_format=torch.channels_last)
    for t in range(1, rounds + 1):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum, weight_decay=1e-4, foreach=False)
        random = Shuffle(7, t, 0)
        for _ in range(2):
            order = torch.from_numpy(random.permutation(np.arange(len(y))))
            for step in range(len(y) // batch_size):
                chosen = order[step * batch_size : (step + 1) * batch_size]
                batch = x[chosen]
                if batch.dim() == 4:
                    batch = batch.contiguous(memory_format=torch.channels_last)
                optimiser.zero_grad()
                F.cross_entropy(model(batch), y[chosen]).backward()
                optimiser.step()
    return model


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("make", "batch_size"), [(images, 32), (vectors, 1), (vectors, 10)])
def test_one_client_is_plain_sgd_to_the_bit(make, batch_size, momentum, tmp_path: Path) -> None:
    x, y, model = make()
    transform = Images((0.5, 0.4, 0.3), (0.2, 0.2, 0.2)) if x.ndim == 4 else None
    federation = Federation.from_arrays(
        x, y, num_classes=10, partition=Iid(clients=1, validation=0.0), transform=transform
    )
    run = federate(
        model,
        federation,
        objective=CrossEntropy(),
        rounds=3,
        participation=1.0,
        seed=7,
        local=Local(epochs=2, batch_size=batch_size, lr=0.05, momentum=momentum, weight_decay=1e-4),
        out=tmp_path / "run",
    )
    inputs = torch.from_numpy(x) if x.ndim == 2 else transform(torch.from_numpy(x.transpose(0, 2, 3, 1).copy()))
    expected = plain_sgd(model, inputs, torch.from_numpy(y), 3, batch_size, momentum)
    trained = run.model().state_dict()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(trained[name], tensor), name
