"""MOON against a gradient written out in NumPy, and with batch norm against torch's."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedrecall import FedAvg, Moon

FEATURES, HIDDEN, CLASSES = 4, 5, 3
SHAPES = [(HIDDEN, FEATURES), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)]


def two_layers() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()


def parts(theta) -> list[np.ndarray]:
    ends = np.cumsum([np.prod(shape) for shape in SHAPES])
    return [part.reshape(shape) for part, shape in zip(np.split(theta, ends[:-1]), SHAPES)]


def representation(theta, x) -> np.ndarray:
    W, b, _, _ = parts(theta)
    return np.tanh(x @ W.T + b)


def cosine(z, r) -> tuple[np.ndarray, np.ndarray]:
    """sim(z, r) per sample, and its gradient with respect to z."""
    norms = np.linalg.norm(z, axis=1, keepdims=True), np.linalg.norm(r, axis=1, keepdims=True)
    sim = (z * r).sum(1, keepdims=True) / (norms[0] * norms[1])
    return sim, r / (norms[0] * norms[1]) - sim * z / norms[0] ** 2


def moon_gradient(mu, T, glob, prev):
    """Of cross-entropy + mu mean log(1 + exp((sim(z, z_prev) - sim(z, z_glob)) / T)), which is the paper's
    -log [e^(near / T) / (e^(near / T) + e^(far / T))]."""

    def gradient(theta, x, y):
        _, _, W2, b2 = parts(theta)
        z = representation(theta, x)
        e = np.exp(z @ W2.T + b2)
        d_logits = (e / e.sum(1, keepdims=True) - np.eye(CLASSES)[y]) / len(x)
        near, d_near = cosine(z, representation(glob, x))
        far, d_far = cosine(z, representation(prev, x))
        d_z = d_logits @ W2 + mu / T / (1 + np.exp((near - far) / T)) * (d_far - d_near) / len(x)
        d_inner = d_z * (1 - z**2)
        return np.concatenate([(d_inner.T @ x).ravel(), d_inner.sum(0), (d_logits.T @ z).ravel(), d_logits.sum(0)])

    return gradient


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_three_rounds_of_some_clients(lab, tools, momentum) -> None:
    # Two of three clients: one at least is there again. A client that was not sits on its older model.
    mu, T, lab = 2.0, 0.3, lab([6, 9, 14], model=two_layers(), lr=0.3, momentum=momentum)
    run = lab.run(Moon(mu=mu, temperature=T), rounds=3, clients_per_round=2)
    x, previous = lab.start, {}
    for t, S in tools.rounds(run):
        y = {i: lab.local(x, i, t, gradient=moon_gradient(mu, T, x, previous.get(i, x)))[0] for i in S}
        previous |= y
        x = sum(lab.n[i] * y[i] for i in S) / lab.n[S].sum()
    tools.agree(run, x)
    assert np.abs(x - tools.vector(lab.run(FedAvg(), rounds=3, clients_per_round=2).model())).max() > 1e-3


@pytest.mark.parametrize("name", [None, "1"])
def test_the_compared_models_are_in_eval_mode_with_statistics_of_their_own(lab, tools, name) -> None:
    # The previous model has the statistics of the client's last round, the global one those that were sent.
    mu, T, lab = 1.0, 0.5, lab([8, 12], model=tools.with_batch_norm().double(), momentum=0.9, lr=0.1)
    run = lab.run(Moon(mu=mu, temperature=T, representation=name), rounds=3)
    last = 3 if name is None else 2  # the layers up to the representation: to ReLU, or to batch norm
    server, previous = copy.deepcopy(lab.model), {}
    for _ in range(3):
        clients = []
        for i in range(2):
            x, y = map(torch.from_numpy, lab.samples(i))
            model = copy.deepcopy(server).train()
            with torch.no_grad():
                glob = server.eval()[:last](x)
                prev = previous[i].eval()[:last](x) if i in previous else glob
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=lab.weight_decay)
            for _ in range(lab.epochs):
                optimiser.zero_grad()
                z = model[:last](x)
                near, far = ((F.cosine_similarity(z, r, dim=1) / T).exp() for r in (glob, prev))
                (F.cross_entropy(model[last:](z), y) - mu * (near / (near + far)).log().mean()).backward()
                optimiser.step()
            clients.append(model)
        previous = {i: copy.deepcopy(model) for i, model in enumerate(clients)}
        mean = {
            key: (8 * tensor + 12 * clients[1].state_dict()[key]) / 20 if tensor.is_floating_point() else tensor
            for key, tensor in clients[0].state_dict().items()
        }
        server.load_state_dict(mean)
    trained = run.model().state_dict()
    for key, tensor in server.state_dict().items():
        torch.testing.assert_close(trained[key], tensor, rtol=0, atol=1e-9, msg=key)


def test_the_penalty_of_an_unseen_client_has_no_gradient_at_all() -> None:
    torch.manual_seed(0)
    z, sent = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5)
    penalty = Moon(mu=3.0).penalty(z, sent, sent)
    penalty.backward()
    assert penalty.item() == pytest.approx(3 * np.log(2))
    assert torch.equal(z.grad, torch.zeros(7, 5))


def test_the_penalty_by_hand() -> None:
    # sim 1 with the global representation and 0 with the previous one; then the other way round.
    z = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    glob, prev = torch.tensor([[1.0, 0.0], [5.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    low, high = np.log(1 + np.exp(-1 / 0.5)), np.log(1 + np.exp(1 / 0.5))
    assert Moon().penalty(z, glob, prev).item() == pytest.approx((low + high) / 2, rel=1e-6)
