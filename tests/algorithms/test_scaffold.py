"""SCAFFOLD, option II, against a few lines of NumPy, and what its control variates are for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecall import FedAvg, Scaffold


def minus_drift(c_i, c):
    return lambda g, y: g - c_i + c


def scaffold(lab, rounds, eta_g: float = 1.0, weights=None) -> tuple[np.ndarray, np.ndarray]:
    """The paper's x and c; `weights` are the clients' weights in place of equal ones."""
    w = np.ones(lab.N) if weights is None else weights
    x, c = lab.start, np.zeros_like(lab.start)
    c_i = np.zeros((lab.N, len(x)))
    rho = lab.momentum
    for t, S in rounds:
        dx, dc = np.zeros_like(x), np.zeros_like(x)
        for i in S:
            y, K = lab.local(x, i, t, minus_drift(c_i[i], c))
            K_eff = (K - rho * (1 - rho**K) / (1 - rho)) / (1 - rho)
            c_plus = c_i[i] - c + (x - y) / (K_eff * lab.rate(t))
            dx += w[i] * (y - x) / w[S].sum()
            dc += w[i] * (c_plus - c_i[i]) / w.sum()  # over all N clients, not those of the round
            c_i[i] = c_plus
        x, c = x + eta_g * dx, c + dc
    return x, c


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("eta_g", [1.0, 0.6])
def test_three_rounds_of_some_clients(lab, tools, momentum, eta_g) -> None:
    # Unequal sizes and batches of 4: 2, 4 and 6 steps. Two of three clients: one at least is there again.
    lab = lab([4, 9, 14], batch_size=4, epochs=2, momentum=momentum, lr=0.1)
    run = lab.run(Scaffold(server_lr=eta_g), rounds=3, clients_per_round=2)
    x, c = scaffold(lab, tools.rounds(run), eta_g)
    tools.agree(run, x)
    expected = tools.padded([c[:12], c[12:]])
    np.testing.assert_allclose(tools.server_state(run)["c"], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_clients_may_weigh_by_their_samples(lab, tools, momentum) -> None:
    lab = lab([4, 9, 14], momentum=momentum)
    run = lab.run(Scaffold(weighting="samples"), rounds=3, clients_per_round=2)
    tools.agree(run, scaffold(lab, tools.rounds(run), weights=lab.n)[0])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_schedule_divides_by_the_rate_of_the_round(lab, tools, momentum) -> None:
    lab = lab([5, 8], momentum=momentum, factor=0.5)
    run = lab.run(Scaffold(), rounds=3)
    tools.agree(run, scaffold(lab, tools.rounds(run))[0])


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rounds=st.integers(1, 6),
    clients=st.integers(1, 4),
    weighting=st.sampled_from(["uniform", "samples"]),
    momentum=st.sampled_from([0.0, 0.9]),
)
def test_c_is_always_the_mean_of_all_the_clients_variates(
    lab, tools, seed, rounds, clients, weighting, momentum
) -> None:
    lab = lab([3, 5, 8, 13], batch_size=3, epochs=1, momentum=momentum, lr=0.1)
    run = lab.run(Scaffold(weighting=weighting), rounds, clients_per_round=clients, seed=seed)
    states = tools.client_states(run)
    assert set(states) == {i for _, S in tools.rounds(run) for i in S}
    w = np.ones(lab.N) if weighting == "uniform" else lab.n
    # A client that has not taken part yet has c_i = 0.
    mean = sum(w[i] * state["c"] for i, state in states.items()) / w.sum()
    assert np.abs(mean).max() > 1e-4
    np.testing.assert_allclose(tools.server_state(run)["c"], mean, rtol=0, atol=1e-12)


def test_after_a_round_of_one_step_c_i_is_the_clients_gradient(lab, tools) -> None:
    # Option II's estimate is exact for one step: c_i = (x - y) / lr.
    lab = lab([5, 8], epochs=1, weight_decay=0.0)
    states = tools.client_states(lab.run(Scaffold(), rounds=1))
    for i, state in states.items():
        g = lab.gradient(lab.start, *lab.samples(i))
        np.testing.assert_allclose(state["c"], tools.padded([g[:12], g[12:]]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("momentum", "lr"), [(0.0, 0.2), (0.9, 0.04)])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_it_reaches_the_optimum_that_fedavg_leaves(quadratic, tools, momentum, lr, weighting) -> None:
    lab = quadratic([6, 18], epochs=8, momentum=momentum, lr=lr)
    by_samples = lab.optimum(lab.n)
    optimum = lab.optimum(np.ones(2)) if weighting == "uniform" else by_samples
    tools.agree(lab.run(Scaffold(weighting=weighting), rounds=30), optimum, tolerance=1e-6)
    # FedAvg weighs by samples. It does not stay at that optimum even if it starts there.
    fedavg = tools.vector(lab.run(FedAvg(), rounds=4, model=lab.starting_at(by_samples)).model())
    assert np.abs(fedavg - by_samples).max() > 1e-2
