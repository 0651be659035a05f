"""What is refused before round 1, on every engine alike."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedrecall import Federation, InputError, federate


def federation(*sizes: int) -> Federation:
    random = np.random.default_rng(0)
    clients = [(random.normal(size=(n, 4)).astype(np.float32), random.integers(0, 2, n)) for n in sizes]
    return Federation.from_clients(clients, num_classes=2, validation=0)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


@pytest.fixture(params=["serial", "processes", "vectorised"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., object]:
    def run(data: Federation, **settings: object) -> object:
        return federate(
            net(), data, rounds=1, participation=1.0, engine=request.param, out=tmp_path / "run", **settings
        )

    return run


def test_batch_norm_refuses_batches_and_clients_of_one_sample(run: Callable[..., object]) -> None:
    with pytest.raises(InputError, match=r"^local\.batch_size is 1, but batch norm needs two samples in a batch$"):
        run(federation(6, 6), local={"batch_size": 1})
    with pytest.raises(InputError, match=r"^client 1 has one training sample, but batch norm needs two in a batch$"):
        run(federation(6, 1, 6))
