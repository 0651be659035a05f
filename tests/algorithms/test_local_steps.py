"""`LocalSteps.accumulated`: how far K steps along one constant gradient go, in units of the rate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecall import LocalSteps
from fedrecall.optimisers import SGD

KS = st.integers(1, 300)


@settings(max_examples=60, deadline=None)
@given(K=KS, rho=st.floats(0.0, 0.99), lr=st.floats(1e-4, 10.0))
def test_momentum_makes_k_steps_into_k_eff(K, rho, lr) -> None:
    K_eff = (K - rho * (1 - rho**K) / (1 - rho)) / (1 - rho)
    assert LocalSteps(K, lr, 7, SGD(momentum=rho)).accumulated() == pytest.approx(K_eff, rel=1e-8)


@settings(max_examples=60, deadline=None)
@given(K=KS, lr=st.floats(1e-3, 1.0), mu=st.floats(1e-3, 0.99))
def test_a_proximal_term_makes_k_steps_a_geometric_sum(K, lr, mu) -> None:
    # FedNova's paper: a = [(1 - lr mu)^(K-1), .., 1 - lr mu, 1].
    a = sum((1 - lr * mu) ** k for k in range(K))
    assert LocalSteps(K, lr, 7).accumulated(mu) == pytest.approx(a, rel=1e-8)


@pytest.mark.parametrize("K", [1, 2, 7, 50])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(("lr", "mu"), [(0.1, 0.0), (0.1, 0.3), (0.5, 1.1), (0.01, 10.0)])
def test_it_is_the_way_that_torchs_sgd_goes(K, rho, lr, mu) -> None:
    y = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([y], lr=lr, momentum=rho)
    for _ in range(K):
        optimiser.zero_grad()
        (y + mu / 2 * y.square()).backward()  # gradient 1, and a proximal term around 0
        optimiser.step()
    assert LocalSteps(K, lr, 7, SGD(momentum=rho)).accumulated(mu) == pytest.approx(-y.item() / lr, rel=1e-10)


def test_no_steps_go_nowhere() -> None:
    assert LocalSteps(0, 0.1, 7, SGD(momentum=0.9)).accumulated(0.5) == 0.0
