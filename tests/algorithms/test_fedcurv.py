"""FedCurv against a few lines of NumPy, and its Fisher information against single backward passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import FedCurv


def curved(lam, U, V, u, v):
    """The gradient of lam sum_{j != i} u_j (y - y_j)^2."""
    return lambda g, y: g + 2 * lam * ((U - u) * y - (V - v))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_three_rounds_of_some_clients(lab, tools, momentum) -> None:
    # 70 samples are more than the package takes at once; two of three clients: one at least is there again.
    lam, lab = 0.8, lab([7, 12, 70], momentum=momentum, lr=0.2)
    run = lab.run(FedCurv(lam=lam), rounds=3, clients_per_round=2)
    x = lab.start
    u, v = np.zeros((lab.N, len(x))), np.zeros((lab.N, len(x)))
    for t, S in tools.rounds(run):
        U, V = u.sum(0), v.sum(0)  # also of clients that are not in this round
        y = {i: lab.local(x, i, t, curved(lam, U, V, u[i], v[i]))[0] for i in S}
        for i in S:
            u[i] = (tools.sample_gradients(y[i], *lab.samples(i)) ** 2).mean(0)
            v[i] = u[i] * y[i]
        x = sum(lab.n[i] * y[i] for i in S) / lab.n[S].sum()
    tools.agree(run, x)
    for name, expected in (("U", u.sum(0)), ("V", v.sum(0))):
        expected = tools.padded([expected[:12], expected[12:]])
        np.testing.assert_allclose(tools.server_state(run)[name], expected, rtol=0, atol=1e-9)


class Recurrent(nn.Module):
    """A GRU, whose per-sample gradients torch cannot compute at once."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.last = nn.GRU(1, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(self.gru(x[:, :, None])[0][:, -1])


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))


@pytest.mark.parametrize("make", [noisy, Recurrent])
def test_the_fisher_information_is_of_the_trained_model_in_eval_mode(lab, tools, make) -> None:
    torch.manual_seed(0)
    lab = lab([40], model=make().double())
    run = lab.run(FedCurv(), rounds=1)
    model = run.model()  # of the only client, as it was after its steps; in eval mode
    u = 0.0
    x, y = map(torch.from_numpy, lab.samples(0))
    for i in range(40):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        u = u + tools.padded([p.grad.numpy() ** 2 for p in model.parameters()]) / 40
    w = tools.padded([p.detach().numpy() for p in model.parameters()])
    state = tools.client_states(run)[0]
    assert u.max() > 1e-3
    np.testing.assert_allclose(state["u"], u, rtol=0, atol=1e-12)
    np.testing.assert_allclose(state["v"], u * w, rtol=0, atol=1e-12)
