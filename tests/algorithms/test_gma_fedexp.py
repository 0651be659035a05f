"""GMA and FedExP against a few lines of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from fedrecall import GMA, FedAvg, FedExP


def updates(lab, x, t, S) -> tuple[np.ndarray, np.ndarray]:
    """D_i = y_i - x of the round's clients, and their weights p_i."""
    return np.stack([lab.local(x, i, t)[0] - x for i in S]), lab.n[S] / lab.n[S].sum()


# Of four clients 0, 2, 3 or 4 agree, so that A is 0, 1/2 or 1: tau = 1/2 is the border itself.
@pytest.mark.parametrize("tau", [0.4, 0.5, 0.6, 1.0])
@pytest.mark.parametrize("eta", [1.0, 0.7])
def test_gma(lab, tools, tau, eta) -> None:
    lab = lab([5, 7, 9, 14])
    run = lab.run(GMA(tau=tau, server_lr=eta))
    x, seen = lab.start, set()
    for t, S in tools.rounds(run):
        D_i, p = updates(lab, x, t, S)
        A = np.abs(np.sign(D_i).mean(0))
        mask = np.where(tau > A, A, 1.0)
        x = x + eta * mask * (p @ D_i)
        seen |= set(A)
    assert seen == {0.0, 0.5, 1.0}
    tools.agree(run, x)


def test_a_coordinate_that_a_client_does_not_move_is_no_vote_of_it(lab, tools) -> None:
    # The first input is 0 at one client: its sign there is 0. The other two are twins: A is 2/3.
    (x0, y0), twin = (lab([6, 9]).samples(i) for i in range(2))
    clients = [(x0 * [0, 1, 1, 1], y0), twin, twin]
    lab = lab([6, 9, 9], weight_decay=0.0, clients=[(x.astype(np.float32), y) for x, y in clients])
    run = lab.run(GMA(tau=0.9))
    x = lab.start
    for t, S in tools.rounds(run):
        D_i, p = updates(lab, x, t, S)
        A = np.abs(np.sign(D_i).mean(0))
        np.testing.assert_allclose(A[[0, 4, 8]], 2 / 3)
        x = x + np.where(A < 0.9, A, 1.0) * (p @ D_i)
    tools.agree(run, x)


@pytest.mark.parametrize("eps", [1e-3, 1e-6])
def test_fedexp(lab, tools, eps) -> None:
    lab = lab([5, 9, 14], lr=0.6)
    run = lab.run(FedExP(eps=eps), rounds=3, clients_per_round=2)
    x, etas = [lab.start], []
    for t, S in tools.rounds(run):
        D_i, p = updates(lab, x[-1], t, S)
        D = p @ D_i
        etas.append(max(1.0, p @ (D_i**2).sum(1) / (2 * (D @ D + eps))))
        x.append(x[-1] + etas[-1] * D)
    assert max(etas) > 1.05, "no round steps further than FedAvg: nothing is tested"
    tools.agree(run, (x[-1] + x[-2]) / 2)
    np.testing.assert_allclose(tools.server_state(run)["w"], tools.padded([x[-1][:12], x[-1][12:]]), atol=1e-9)


def test_fedexp_never_steps_less_far_than_fedavg(lab, tools) -> None:
    # Clients with the same data agree: sum p_i |D_i|^2 / (2 |D|^2) is 1/2, and the max is 1.
    twin = lab([9]).samples(0)
    lab = lab([9, 9, 9], clients=[(twin[0].astype(np.float32), twin[1])] * 3)
    before, last = (tools.vector(lab.run(FedAvg(), rounds=rounds).model()) for rounds in (2, 3))
    run = lab.run(FedExP(), rounds=3)
    tools.agree(run, (before + last) / 2)
    np.testing.assert_allclose(tools.server_state(run)["w"], tools.padded([last[:12], last[12:]]), atol=1e-9)
