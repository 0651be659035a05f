"""FedAvg and FedProx against a few lines of NumPy."""

from __future__ import annotations

import pytest

from fedrecall import FedAvg, FedProx

SIZES = [4, 9, 14]  # in batches of 4: 1, 2 and 3 steps an epoch, and a last partial batch that is dropped


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedavg_is_the_mean_weighted_by_samples(lab, tools, momentum) -> None:
    lab = lab(SIZES, batch_size=4, epochs=2, momentum=momentum, lr=0.1)
    run = lab.run(FedAvg(), clients_per_round=2)
    x = lab.start
    for t, S in tools.rounds(run):
        assert len(S) == 2
        p = lab.n[S] / lab.n[S].sum()
        x = sum(p_i * lab.local(x, i, t)[0] for p_i, i in zip(p, S))
    tools.agree(run, x)


def pull(mu, x):
    return lambda g, y: g + mu * (y - x)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedprox_pulls_the_clients_to_the_server(lab, tools, momentum) -> None:
    mu, lab = 0.7, lab(SIZES, momentum=momentum)
    run = lab.run(FedProx(mu=mu))
    x = lab.start
    for t, S in tools.rounds(run):
        p = lab.n[S] / lab.n[S].sum()
        x = sum(p_i * lab.local(x, i, t, pull(mu, x))[0] for p_i, i in zip(p, S))
    tools.agree(run, x)
