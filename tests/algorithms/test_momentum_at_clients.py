"""FedACG and FedCM against a few lines of NumPy, and FedDisco's weights by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedrecall import FedACG, FedAvg, FedCM, FedDisco


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fedacg_starts_clients_ahead_of_the_server(lab, tools, momentum) -> None:
    lab = lab([5, 9, 14], momentum=momentum, lr=0.1)
    run = lab.run(FedACG(lam=0.6, beta=0.2), rounds=4, clients_per_round=2)
    x, m = lab.start, np.zeros_like(lab.start)
    for t, S in tools.rounds(run):
        z = x + 0.6 * m
        y = {k: lab.local(z, k, t, lambda g, y, z=z: g + 0.2 * (y - z))[0] for k in S}
        delta = sum(lab.n[k] * (y[k] - z) for k in S) / sum(lab.n[k] for k in S)
        m = 0.6 * m + delta
        x = x + m
    tools.agree(run, x)


def test_fedacg_without_its_terms_is_fedavg(lab, tools) -> None:
    lab = lab([5, 9])
    tools.agree(lab.run(FedACG(lam=0.0, beta=0.0), rounds=3), tools.vector(lab.run(FedAvg(), rounds=3).model()))


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fedcm_mixes_the_gradient_with_the_direction_of_the_last_round(lab, tools, momentum) -> None:
    lab = lab([5, 9, 14], lr=0.1, epochs=3, momentum=momentum, factor=0.7)
    run = lab.run(FedCM(alpha=0.3), rounds=3, clients_per_round=2)
    x, d = lab.start, np.zeros_like(lab.start)
    moved = sum(sum(momentum**j for j in range(step + 1)) for step in range(3))  # of three equal gradients
    for t, S in tools.rounds(run):
        y = {k: lab.local(x, k, t, lambda g, y, d=d: 0.3 * g + 0.7 * d)[0] for k in S}
        share = {k: lab.n[k] / sum(lab.n[j] for j in S) for k in S}
        d = sum(share[k] * (x - y[k]) / (moved * lab.rate(t)) for k in S)
        x = sum(share[k] * y[k] for k in S)
    tools.agree(run, x)


def test_weights_of_feddisco_by_hand() -> None:
    samples = torch.tensor([30.0, 10.0], dtype=torch.float64)
    counts = torch.tensor([[30.0, 0.0], [5.0, 5.0]], dtype=torch.float64)
    # KL to uniform: log 2 and 0, shares of their sum 1 and 0; n_k 3/4 and 1/4.
    assert FedDisco(a=0.5, b=0.1).weights(samples, counts).tolist() == pytest.approx([0.35, 0.35])
    assert FedDisco(a=2.0, b=0.0).weights(samples, counts).tolist() == pytest.approx([0.0, 0.25])


def test_feddisco_weighs_by_samples_where_classes_are_alike_or_nothing_is_left() -> None:
    samples = torch.tensor([30.0, 10.0], dtype=torch.float64)
    alike = torch.tensor([[15.0, 15.0], [5.0, 5.0]], dtype=torch.float64)
    assert FedDisco(a=0.5, b=0.0).weights(samples, alike).tolist() == pytest.approx([0.75, 0.25])
    skewed = torch.tensor([[30.0, 0.0], [0.0, 10.0]], dtype=torch.float64)
    assert FedDisco(a=9.0, b=0.0).weights(samples, skewed).tolist() == pytest.approx([0.75, 0.25])


def test_feddisco_averages_with_these_weights(lab, tools) -> None:
    lab = lab([6, 12])
    run = lab.run(FedDisco(a=0.5, b=0.1), rounds=1)
    beta = [np.bincount(lab.samples(k)[1], minlength=3) / lab.n[k] for k in range(2)]
    d = [sum(p * math.log(3 * p) for p in own if p) for own in beta]
    p = [max(0.0, lab.n[k] / 18 - 0.5 * d[k] / sum(d) + 0.1) for k in range(2)]
    y = [lab.local(lab.start, k, 1)[0] for k in range(2)]
    tools.agree(run, (p[0] * y[0] + p[1] * y[1]) / sum(p))
