"""FedDF against plain torch, what it refuses, and that its student keeps the mean's statistics."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedrecall import FedAvg, FedDF, Federation, InputError, Local, Watcher, federate
from fedrecall.core.rng import stream

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(160, 6)).astype("float32"), RANDOM.integers(0, 3, 160)
UNLABELLED = RANDOM.normal(size=(50, 6)).astype("float32")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 3)


def trained(out: Path, algorithm, module=None, engine: str = "serial", rounds: int = 1, **given):
    # Unequal sizes: with equal ones the mean of linear models has the mean logits, and nothing is left to learn.
    clients = [(X[first:last], Y[first:last]) for first, last in ((0, 15), (15, 45), (45, 105), (105, 160))]
    federation = Federation.from_clients(clients, test=(X, Y), num_classes=3, validation=0.1)
    return federate(
        module or model(), federation, algorithm=algorithm, rounds=rounds, participation=1.0, engine=engine, out=out,
        local=Local(epochs=2, batch_size=8, lr=0.3), workers=2 if engine == "processes" else 1, **given,
    )  # fmt: skip


class Keeps(Watcher):
    """A callback that keeps what the clients sent."""

    wants_each = True

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []

    def result(self, round, update) -> None:
        self.sent.append(update.sent["w"].clone())


@pytest.mark.parametrize("target", ["avg_logits", "avg_probs", "avg_losses"])
def test_the_student_is_trained_as_by_plain_torch(target, tmp_path: Path) -> None:
    algorithm = FedDF(steps=12, lr=0.05, batch_size=16, clip=0.4, target=target)
    ours = trained(tmp_path / "ours", algorithm, server_data=UNLABELLED)
    keeps = Keeps()
    mean = trained(tmp_path / "mean", FedAvg(), callbacks=[keeps])
    x, student = torch.from_numpy(UNLABELLED), model()
    student.load_state_dict(mean.model().state_dict())

    def logits(w: torch.Tensor) -> torch.Tensor:
        return x @ w[:18].view(3, 6).T + w[32:35]  # the bias begins at the next 64 bytes

    each = [logits(w) for w in keeps.sent]
    wanted = {
        "avg_logits": torch.stack(each).mean(0).softmax(1),
        "avg_probs": torch.stack([one.softmax(1) for one in each]).mean(0),
        "avg_losses": torch.stack([one.softmax(1) for one in each]).mean(0),
    }[target]
    adam = torch.optim.Adam(student.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda s: (1 + math.cos(math.pi * s / 12)) / 2)
    random = stream(0, "aggregate", 1)
    for _ in range(12):
        at = torch.from_numpy(random.choice(50, 16, replace=False))
        adam.zero_grad()
        F.kl_div(student(x[at]).log_softmax(1), wanted[at], reduction="batchmean").backward()
        nn.utils.clip_grad_norm_(student.parameters(), 0.4)
        adam.step()
        schedule.step()
    assert not torch.allclose(ours.model().weight, mean.model().weight, atol=1e-2)
    for own, other in zip(ours.model().parameters(), student.parameters()):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("warm_workers")
def test_processes_have_the_bits_of_serial(tmp_path: Path) -> None:
    algorithm = FedDF(steps=5)
    files = [
        (trained(tmp_path / engine, algorithm, engine=engine, rounds=2, server_data=UNLABELLED).path)
        for engine in ("serial", "processes")
    ]
    assert len({(path / "model.safetensors").read_bytes() for path in files}) == 1


def test_statistics_of_batch_norm_are_the_clients_mean(tmp_path: Path) -> None:
    def statistics(algorithm, **given) -> torch.Tensor:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))
        return trained(tmp_path / type(algorithm).__name__, algorithm, module, **given).model()[1].running_var

    assert torch.equal(statistics(FedDF(steps=5), server_data=UNLABELLED), statistics(FedAvg()))


def test_without_data_at_the_server_it_is_refused_before_round_1(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'server_data'"):
        trained(tmp_path / "run", FedDF())
