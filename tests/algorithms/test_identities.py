"""Where one algorithm is another: over several rounds, and with batch norm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedrecall import (
    GMA,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedCurv,
    FedDyn,
    FedExP,
    FedNova,
    FedProx,
    FedYogi,
    Moon,
    Scaffold,
)

UNEQUAL, EQUAL = [5, 9, 14], [8, 8, 8]


def saved(run) -> bytes:
    return (run.path / "model.safetensors").read_bytes()


def state(run) -> dict[str, torch.Tensor]:
    """Parameters, batch norm's statistics and its counter."""
    return load_file(run.path / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert set(one) == set(other)
    assert "1.running_var" in one
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=1e-6, msg=name)


@pytest.fixture
def unequal(lab, tools):
    """Float64: the identities that hold to rounding are then tested well below 1e-6."""
    return lab(UNEQUAL, model=tools.with_batch_norm().double(), momentum=0.9, lr=0.1, batch_size=4)


@pytest.fixture
def equal(lab, tools):
    return lab(EQUAL, model=tools.with_batch_norm().double(), momentum=0.9, lr=0.1, batch_size=4)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedprox_without_a_pull_is_fedavg_to_the_bit(lab, tools, momentum) -> None:
    lab = lab(UNEQUAL, model=tools.with_batch_norm(), momentum=momentum, lr=0.1, batch_size=4)
    runs = [lab.run(algorithm, rounds=4, clients_per_round=2) for algorithm in (FedProx(mu=0.0), FedAvg())]
    assert saved(runs[0]) == saved(runs[1])
    assert saved(lab.run(FedProx(mu=0.1), rounds=4, clients_per_round=2)) != saved(runs[1])


@pytest.mark.parametrize("algorithm", [Moon(mu=5.0), FedCurv(lam=5.0)])
def test_the_first_round_of_moon_and_fedcurv_is_fedavg_to_the_bit(lab, tools, algorithm) -> None:
    lab = lab(UNEQUAL, model=tools.with_batch_norm(), momentum=0.9, lr=0.1, batch_size=4)
    assert saved(lab.run(algorithm, rounds=1)) == saved(lab.run(FedAvg(), rounds=1))
    assert saved(lab.run(algorithm, rounds=2)) != saved(lab.run(FedAvg(), rounds=2))


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_the_first_round_of_scaffold_is_fedavg(equal, unequal, weighting) -> None:
    lab = equal if weighting == "uniform" else unequal
    algorithm = Scaffold(weighting=weighting)
    same(state(lab.run(algorithm, rounds=1)), state(lab.run(FedAvg(), rounds=1)))
    second = [state(lab.run(a, rounds=2))["0.weight"] for a in (algorithm, FedAvg())]
    assert (second[0] - second[1]).abs().max() > 1e-4


def test_scaffold_without_weights_differs_from_fedavg_on_unequal_clients(unequal) -> None:
    first = [state(unequal.run(a, rounds=1)) for a in (Scaffold(), FedAvg())]
    assert (first[0]["0.weight"] - first[1]["0.weight"]).abs().max() > 1e-4
    # Batch norm's statistics weigh by samples whatever the parameters do.
    for name in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(first[0][name], first[1][name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_fednova_at_equal_sizes_and_steps_is_fedavg(equal, mu) -> None:
    same(state(equal.run(FedNova(mu=mu), rounds=4)), state(equal.run(FedProx(mu=mu), rounds=4)))


def test_fedavgm_without_momentum_is_fedavg(unequal) -> None:
    same(state(unequal.run(FedAvgM(momentum=0.0), rounds=4)), state(unequal.run(FedAvg(), rounds=4)))


# x + eta m / (sqrt(v) + tau) with m = D is x + D if eta = sqrt(v) + tau. For a huge tau, sqrt(v) is tau where v
# stays what it starts as, tau^2 (beta2 near 1, or Adagrad's sum), and nothing where v forgets it (beta2 = 0).
HUGE, ALMOST_1 = 1e7, 1 - 1e-12


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAdam(server_lr=2 * HUGE, tau=HUGE, beta1=0.0, beta2=ALMOST_1),
        FedAdam(server_lr=HUGE, tau=HUGE, beta1=0.0, beta2=0.0),
        FedYogi(server_lr=2 * HUGE, tau=HUGE, beta1=0.0, beta2=ALMOST_1),
        FedAdagrad(server_lr=2 * HUGE, tau=HUGE),
    ],
)
def test_adaptive_servers_with_a_huge_tau_are_fedavg(unequal, algorithm) -> None:
    same(state(unequal.run(algorithm, rounds=4)), state(unequal.run(FedAvg(), rounds=4)))


def test_gma_without_a_threshold_is_fedavg(unequal) -> None:
    same(state(unequal.run(GMA(tau=0.0), rounds=4)), state(unequal.run(FedAvg(), rounds=4)))


def test_fedexp_with_a_huge_eps_is_fedavg_and_answers_with_the_mean_of_two_iterates(unequal) -> None:
    before, last = (state(unequal.run(FedAvg(), rounds=rounds)) for rounds in (3, 4))
    trained = {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}
    # Batch norm's statistics are those of the last round: they are no iterates.
    expected = {key: (before[key] + tensor) / 2 if key in trained else tensor for key, tensor in last.items()}
    same(state(unequal.run(FedExP(eps=1e9), rounds=4)), expected)


@pytest.mark.parametrize("clients", [1, 2, 3])
def test_the_first_round_of_feddyn_is_fedprox_and_a_bit_further(equal, clients) -> None:
    # g_k = 0 makes the local steps FedProx's; h = -alpha / N sum_S (y - x) adds |S| / N of the mean update.
    start = equal.model.state_dict()
    prox = state(equal.run(FedProx(mu=0.3), rounds=1, clients_per_round=clients))
    dyn = state(equal.run(FedDyn(alpha=0.3), rounds=1, clients_per_round=clients))
    for name in ("0.weight", "1.weight", "3.bias"):
        expected = start[name] + (1 + clients / 3) * (prox[name] - start[name])
        assert np.abs((prox[name] - start[name]).numpy()).max() > 1e-3
        torch.testing.assert_close(dyn[name], expected, rtol=0, atol=1e-9)
