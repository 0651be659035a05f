"""FedNova against a few lines of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from fedrecall import FedAvg, FedNova


def pull(mu, x):
    return lambda g, y: g + mu * (y - x)


def norm_of_a(K: int, rho: float, alpha: float) -> float:
    """|a|_1 by the paper's formulas for momentum and for a proximal term (alpha = lr mu); for both, K steps of
    the linear map (S, U) -> (S + U', U') with U' = rho U + 1 - alpha S."""
    if not alpha:
        return sum((1 - rho**k) / (1 - rho) for k in range(1, K + 1))
    if not rho:
        return (1 - (1 - alpha) ** K) / alpha
    step = np.array([[1 - alpha, rho, 1], [-alpha, rho, 1], [0, 0, 1]])
    return (np.linalg.matrix_power(step, K) @ [0, 0, 1])[0]


def fednova(lab, rounds, mu: float) -> np.ndarray:
    x = lab.start
    for t, S in rounds:
        p = lab.n[S] / lab.n[S].sum()
        tau_eff, d = 0.0, np.zeros_like(x)
        for p_i, i in zip(p, S):
            y, K = lab.local(x, i, t, pull(mu, x))
            a = norm_of_a(K, lab.momentum, lab.rate(t) * mu)
            tau_eff += p_i * a
            d += p_i * (x - y) / a
        x = x - tau_eff * d
    return x


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.8])
def test_two_rounds_of_unequal_steps(lab, tools, momentum, mu) -> None:
    # Batches of 4 make 2, 4 and 6 steps.
    lab = lab([4, 9, 14], batch_size=4, epochs=2, momentum=momentum, lr=0.1)
    run = lab.run(FedNova(mu=mu))
    expected = fednova(lab, tools.rounds(run), mu)
    tools.agree(run, expected)
    assert np.abs(expected - tools.vector(lab.run(FedAvg()).model())).max() > 1e-3


def test_the_weights_are_those_of_the_rounds_clients(lab, tools) -> None:
    lab = lab([4, 9, 14], batch_size=4, epochs=2)
    run = lab.run(FedNova(), clients_per_round=2)
    tools.agree(run, fednova(lab, tools.rounds(run), 0.0))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_schedule_is_in_the_norm_of_a_proximal_client(lab, tools, momentum) -> None:
    lab = lab([4, 9, 14], batch_size=4, epochs=2, momentum=momentum, lr=0.2, factor=0.5)
    run = lab.run(FedNova(mu=1.5), rounds=3)
    tools.agree(run, fednova(lab, tools.rounds(run), 1.5))
