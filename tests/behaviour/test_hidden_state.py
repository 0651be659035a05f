"""A model that keeps something outside of its tensors has the bits of the loop that anybody would write."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall import CrossEntropy, Federation, Iid, Local, federate
from fedrecall.core.rng import Shuffle

ROUNDS, SEED, BATCH = 5, 7, 5
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(30, 20)).astype(np.float32), np.arange(30) % 3
TEMPERATURE = SimpleNamespace(value=1.0)
STEPS = 0


class Hidden(nn.Module):
    """Depends on more than its parameters when it trains."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.fc, self.where = nn.Linear(20, 3), where
        self.calls, self.progress, self.last = 0, SimpleNamespace(calls=0), None
        with torch.no_grad():
            self.fc.weight.copy_(torch.linspace(-1, 1, 60).view(3, 20))
            self.fc.bias.zero_()

    def factor(self) -> float:
        """What the logits are multiplied by, which changes after the 20th step or is drawn."""
        global STEPS
        if self.where == "an attribute":
            self.calls += 1
            return 1.0 if self.calls < 20 else 0.5
        if self.where == "an attribute's attribute":
            self.progress.calls += 1
            return 1.0 if self.progress.calls < 20 else 0.5
        if self.where == "a variable":
            STEPS += 1
            return 1.0 if STEPS < 20 else 0.5
        if self.where == "random numbers of Python":
            return random.random()
        if self.where == "random numbers of NumPy":
            return float(np.random.rand())  # noqa: NPY002
        return 1 / TEMPERATURE.value

    def forward(self, x: Tensor) -> Tensor:
        logits = self.fc(x)
        return logits * self.factor() if self.training else logits


def cool(line: dict[str, Any]) -> None:
    TEMPERATURE.value = 2.0 if line["round"] >= 3 else 1.0


def plain_sgd(model: nn.Module) -> dict[str, Tensor]:
    """One client with all samples, whose order is fedrecall's."""
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    for t in range(1, ROUNDS + 1):
        optimiser, order = torch.optim.SGD(model.parameters(), 0.1, foreach=False), Shuffle(SEED, t, 0)
        for _ in range(2):
            for chosen in torch.from_numpy(order.permutation(np.arange(30))).split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(model(x[chosen]), y[chosen]).backward()
                optimiser.step()
        cool({"round": t})
    return model.state_dict()


@pytest.fixture
def from_the_start(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the models hide, as it is before a run."""

    def reset() -> None:
        monkeypatch.setitem(globals(), "STEPS", 0)
        TEMPERATURE.value = 1.0
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002

    return reset


@pytest.mark.parametrize(
    "where",
    [
        "an attribute", "an attribute's attribute", "a variable", "random numbers of Python",
        "random numbers of NumPy", "a variable that a callback changes",
    ],
)  # fmt: skip
def test_exact_steps_on_serial_have_the_bits_of_a_plain_loop(where: str, tmp_path: Path, from_the_start) -> None:
    from_the_start()
    expected = plain_sgd(Hidden(where))
    from_the_start()
    run = federate(
        Hidden(where), Federation.from_arrays(X, Y, partition=Iid(clients=1, validation=0.0)),
        objective=CrossEntropy(), rounds=ROUNDS, participation=1.0, seed=SEED, engine="serial", callbacks=[cool],
        local=Local(epochs=2, batch_size=BATCH, lr=0.1, weight_decay=0.0), out=tmp_path / "run",
    )  # fmt: skip
    trained = run.model().state_dict()
    assert all(torch.equal(trained[name], tensor) for name, tensor in expected.items())
