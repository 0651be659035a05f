"""FedSAM and FedLESAM against a few lines of NumPy, in kernels too, and what becomes of batch norm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import FedAvg, Federation, FedLESAM, FedSAM, InputError, Local, federate


def test_fedsam_follows_the_gradient_of_a_worse_neighbour(lab, tools) -> None:
    lab = lab([5, 9, 14], lr=0.2, momentum=0.5, weight_decay=0.02)
    run = lab.run(FedSAM(rho=0.3), rounds=2)

    def sharp(y, x, labels):
        g = lab.gradient(y, x, labels)
        return lab.gradient(y + 0.3 * g / np.linalg.norm(g), x, labels)

    x = lab.start
    for t, S in tools.rounds(run):
        x = sum(lab.n[k] * lab.local(x, k, t, gradient=sharp)[0] for k in S) / sum(lab.n[k] for k in S)
    tools.agree(run, x)


def test_fedlesam_perturbs_back_along_the_servers_last_step(lab, tools) -> None:
    lab = lab([5, 9, 14], lr=0.2)
    run = lab.run(FedLESAM(rho=0.3), rounds=3, clients_per_round=2)
    x = before = lab.start
    for t, S in tools.rounds(run):
        back = before - x
        length = np.linalg.norm(back) or 1.0
        at = 0.3 * back / length
        y = {k: lab.local(x, k, t, gradient=lambda y, *batch, at=at: lab.gradient(y + at, *batch))[0] for k in S}
        before, x = x, sum(lab.n[k] * y[k] for k in S) / sum(lab.n[k] for k in S)
    tools.agree(run, x)


def federation() -> Federation:
    random = np.random.default_rng(0)
    clients = [(random.normal(size=(30, 20)).astype("float32"), random.integers(0, 4, 30)) for _ in range(4)]
    return Federation.from_clients(clients, test=clients[0], num_classes=4, validation=0.1)


def trained(out: Path, algorithm, model: nn.Module, engine: str = "serial", step: str = "exact") -> dict:
    run = federate(
        model, federation(), algorithm=algorithm, rounds=2, clients_per_round=2, engine=engine, out=out,
        local=Local(epochs=1, batch_size=16, lr=0.1, step=step), workers=2 if engine == "processes" else 1,
    )  # fmt: skip
    return run.model().state_dict()


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.mark.parametrize("algorithm", [FedSAM(rho=0.3), FedLESAM(rho=0.3)], ids=["fedsam", "fedlesam"])
@pytest.mark.usefixtures("warm_workers")
def test_engines_and_kernels_agree(algorithm, tmp_path) -> None:
    serial = trained(tmp_path / "serial", algorithm, mlp())
    processes = trained(tmp_path / "processes", algorithm, mlp(), "processes")
    lanes = trained(tmp_path / "lanes", algorithm, mlp(), step="lanes")
    assert all(torch.equal(serial[name], processes[name]) for name in serial)
    assert all(torch.allclose(serial[name], lanes[name], atol=1e-5) for name in serial)
    with pytest.raises(InputError, match="takes gradients beside the model"):
        trained(tmp_path / "vectorised", algorithm, mlp(), "vectorised")


def test_statistics_of_batch_norm_are_those_of_the_unperturbed_pass(tmp_path) -> None:
    """With a rate of zero the model stays, and so the statistics are FedAvg's."""

    def statistics(algorithm) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
        run = federate(
            model, federation(), algorithm=algorithm, rounds=1, clients_per_round=2, engine="serial",
            out=tmp_path / type(algorithm).__name__, local=Local(epochs=1, batch_size=9, lr=0.0),
        )  # fmt: skip
        return run.model().state_dict()["1.running_mean"]

    assert torch.equal(statistics(FedSAM(rho=5.0)), statistics(FedAvg()))
