"""FedAvgM, FedAdam, FedYogi and FedAdagrad against a few lines of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from fedrecall import FedAdagrad, FedAdam, FedAvgM, FedYogi

SIZES = [5, 9, 14]


def mean_update(lab, x, t, S) -> np.ndarray:
    """D: the mean of y_i - x, weighted by samples."""
    p = lab.n[S] / lab.n[S].sum()
    return sum(p_i * (lab.local(x, i, t)[0] - x) for p_i, i in zip(p, S))


@pytest.mark.parametrize("beta", [0.9, 0.3])
@pytest.mark.parametrize("eta", [1.0, 0.5])
def test_fedavgm(lab, tools, beta, eta) -> None:
    lab = lab(SIZES)
    run = lab.run(FedAvgM(server_lr=eta, momentum=beta), rounds=3, clients_per_round=2)
    x, m = lab.start, 0.0
    for t, S in tools.rounds(run):
        m = beta * m + mean_update(lab, x, t, S)
        x = x + eta * m
    tools.agree(run, x)


def test_fedadam(lab, tools) -> None:
    lab, eta, tau, b1, b2 = lab(SIZES), 0.03, 0.02, 0.8, 0.95
    run = lab.run(FedAdam(server_lr=eta, tau=tau, beta1=b1, beta2=b2), rounds=3, clients_per_round=2)
    x, m, v = lab.start, 0.0, tau**2
    for t, S in tools.rounds(run):
        D = mean_update(lab, x, t, S)
        m, v = b1 * m + (1 - b1) * D, b2 * v + (1 - b2) * D**2
        x = x + eta * m / (np.sqrt(v) + tau)
    tools.agree(run, x)


def test_fedyogi(lab, tools) -> None:
    lab, eta, tau, b1, b2 = lab(SIZES), 0.03, 0.15, 0.8, 0.7
    run = lab.run(FedYogi(server_lr=eta, tau=tau, beta1=b1, beta2=b2), rounds=3, clients_per_round=2)
    x, m, v = lab.start, 0.0, tau**2
    signs = set()
    for t, S in tools.rounds(run):
        D = mean_update(lab, x, t, S)
        m, v, sign = b1 * m + (1 - b1) * D, v - (1 - b2) * D**2 * np.sign(v - D**2), np.sign(v - D**2)
        x = x + eta * m / (np.sqrt(v) + tau)
        signs |= set(sign)
    assert signs == {-1.0, 1.0}, "v is to grow in some coordinates and to shrink in others"
    tools.agree(run, x)


def test_fedadagrad(lab, tools) -> None:
    lab, eta, tau = lab(SIZES), 0.03, 0.02
    run = lab.run(FedAdagrad(server_lr=eta, tau=tau), rounds=3, clients_per_round=2)
    x, v = lab.start, tau**2
    for t, S in tools.rounds(run):
        D = mean_update(lab, x, t, S)
        v = v + D**2
        x = x + eta * D / (np.sqrt(v) + tau)
    tools.agree(run, x)


# Of Reddi et al., with the rate that does not end at chance: eta 0.01, beta1 0.9, beta2 0.99, tau 1e-3.
@pytest.mark.parametrize(
    ("algorithm", "first", "second"),
    [
        (FedAdam(), lambda m, D: 0.9 * m + 0.1 * D, lambda v, D: 0.99 * v + 0.01 * D**2),
        (FedYogi(), lambda m, D: 0.9 * m + 0.1 * D, lambda v, D: v - 0.01 * D**2 * np.sign(v - D**2)),
        (FedAdagrad(), lambda m, D: D, lambda v, D: v + D**2),
    ],
    ids=["fedadam", "fedyogi", "fedadagrad"],
)
def test_the_defaults(lab, tools, algorithm, first, second) -> None:
    lab = lab(SIZES)
    run = lab.run(algorithm)
    x, m, v = lab.start, 0.0, 1e-3**2
    for t, S in tools.rounds(run):
        D = mean_update(lab, x, t, S)
        m, v = first(m, D), second(v, D)
        x = x + 0.01 * m / (np.sqrt(v) + 1e-3)
    tools.agree(run, x)
