"""FedDyn against a few lines of NumPy, and what its regulariser is for."""

from __future__ import annotations

import numpy as np
import pytest

from fedrecall import FedAvg, FedDyn


def regularised(alpha, g_k, x):
    return lambda g, y: g - g_k + alpha * (y - x)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("alpha", [0.1, 0.8])
def test_three_rounds_of_some_clients(lab, tools, momentum, alpha) -> None:
    # Unequal sizes, which do not count; two of three clients, so that one at least is there again.
    lab = lab([5, 9, 14], momentum=momentum, lr=0.1)
    run = lab.run(FedDyn(alpha=alpha), rounds=3, clients_per_round=2)
    x, h = lab.start, np.zeros_like(lab.start)
    g = np.zeros((lab.N, len(x)))
    for t, P in tools.rounds(run):
        theta = {k: lab.local(x, k, t, regularised(alpha, g[k], x))[0] for k in P}
        for k in P:
            g[k] -= alpha * (theta[k] - x)
        h = h - alpha / lab.N * sum(theta[k] - x for k in P)
        x = sum(theta.values()) / len(P) - h / alpha
    tools.agree(run, x)
    states = tools.client_states(run)
    for k, state in states.items():
        np.testing.assert_allclose(state["g"], tools.padded([g[k][:12], g[k][12:]]), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("momentum", "lr"), [(0.0, 0.2), (0.9, 0.02)])
def test_it_reaches_the_optimum_that_fedavg_leaves(quadratic, tools, momentum, lr) -> None:
    lab = quadratic([6, 18], epochs=8, lr=lr, momentum=momentum)
    # Of the mean of the clients' objectives, whatever their sizes.
    tools.agree(lab.run(FedDyn(alpha=1.0), rounds=30), lab.optimum(np.ones(2)), tolerance=1e-6)
    # FedAvg weighs by samples. It does not stay at that optimum even if it starts there.
    optimum = lab.optimum(lab.n)
    fedavg = tools.vector(lab.run(FedAvg(), rounds=4, model=lab.starting_at(optimum)).model())
    assert np.abs(fedavg - optimum).max() > 5e-3
