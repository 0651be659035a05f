"""A sample's representation inside any model, and the Fisher information of any model."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall import CrossEntropy, FedCurv, Federation, InputError, Local, Moon, federate
from fedrecall.client.fisher import fisher
from fedrecall.core.vector import FlatModel
from fedrecall.models.representation import Representation


@pytest.fixture
def images() -> Federation:
    random = np.random.default_rng(0)
    clients = [(random.integers(0, 256, (9, 4, 4), dtype=np.uint8), np.arange(9) % 3) for _ in range(2)]
    return Federation.from_clients(clients, num_classes=3, validation=0)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
        self.hidden, self.head = nn.Linear(8, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(self.body(x).flatten(1))))


IMAGES = torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def test_the_representation_is_the_input_of_the_last_linear_layer() -> None:
    net = Convolutional()
    caught = Representation(net, None)
    net(IMAGES)
    assert torch.equal(caught.take(), torch.tanh(net.hidden(net.body(IMAGES).flatten(1))))


@pytest.mark.parametrize("name", ["hidden", "body", "body.0"])
def test_or_the_output_of_the_named_module_flattened(name: str) -> None:
    net = Convolutional()
    caught = Representation(net, name)
    net(IMAGES)
    features = {"hidden": net.hidden(net.body(IMAGES).flatten(1)), "body": net.body(IMAGES)}
    expected = features.get(name, net.body[0](IMAGES))
    assert torch.equal(caught.take(), expected.flatten(1))


def test_a_representation_is_taken_once() -> None:
    net = Convolutional()
    caught = Representation(net, None)
    net(IMAGES)
    caught.take()
    with pytest.raises(InputError, match=r"the last nn\.Linear was given nothing"):
        caught.take()


def test_a_module_that_answers_with_no_tensor_is_refused() -> None:
    net = nn.GRU(3, 2)
    caught = Representation(nn.Sequential(net), "0")
    net(torch.zeros(1, 1, 3))
    with pytest.raises(InputError, match="module '0' gave a tuple; a tensor was expected"):
        caught.take()


def test_an_unknown_module_is_refused_with_the_nearest_name(images, tmp_path) -> None:
    with pytest.raises(
        InputError, match=r"representation is 'haed', but the model has no such module; did you mean 'head'\?"
    ):
        federate(
            Convolutional(), images, algorithm=Moon(representation="haed"), rounds=1, out=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_model_without_a_linear_layer_must_name_its_representation(images, tmp_path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    settings = {"rounds": 1, "local": Local(steps=1, lr=0.1), "engine": "serial", "out": tmp_path / "run"}
    with pytest.raises(InputError, match=r"no nn\.Linear .*: algorithm\.representation"):
        federate(model, images, algorithm=Moon(), **settings)
    run = federate(model, images, algorithm=Moon(representation="0"), **settings)
    assert len(run.metrics) == 1


def test_the_fisher_information_of_softmax_regression() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(7, 4)), random.integers(0, 3, 7)
    flat = FlatModel(nn.Linear(4, 3).double())
    weight, bias = (parameter.detach().numpy() for parameter in flat.module.parameters())
    odds = np.exp(x @ weight.T + bias)
    errors = odds / odds.sum(1, keepdims=True) - np.eye(3)[y]  # the gradient of each sample's logits
    squared = np.mean([np.outer(error, sample) ** 2 for error, sample in zip(errors, x)], axis=0)
    # Unequal chunks: it is the mean over samples, not over chunks.
    chunks = [(torch.from_numpy(x[part]), torch.from_numpy(y[part])) for part in (slice(0, 5), slice(5, 7))]
    found = fisher(flat, chunks)
    np.testing.assert_allclose(found[:12].view(3, 4), squared, rtol=1e-12)
    np.testing.assert_allclose(found[16:19], np.mean(errors**2, axis=0), rtol=1e-12)  # 12 floats, padded to 16
    assert found.count_nonzero() == 12 + 3


class Recurrent(nn.Module):
    """torch.func has no rule for a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


class Branching(nn.Module):
    """Goes one way or the other by the data, which cannot be mapped."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.one(x) if x.sum() > 0 else self.other(x)


class Usual(nn.Module):
    """Dropout and batch norm, which in eval mode leave each sample alone; and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.same, self.head = nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.drop = nn.Dropout(0.5)
        self.norm.running_mean.fill_(0.3)
        self.norm.running_var.fill_(2.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.flatten(1))
        return self.head(self.drop(torch.tanh(self.same(torch.tanh(self.same(x))))))


@pytest.mark.parametrize("kind", [Recurrent, Branching, Usual])
def test_the_fisher_information_is_the_loop_over_samples(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net, x, y = kind(), torch.randn(9, 2, 3), torch.arange(9) % 3
    flat = FlatModel(copy.deepcopy(net).train())
    expected = [torch.zeros_like(parameter) for parameter in net.parameters()]
    net.eval()
    for i in range(9):
        gradients = torch.autograd.grad(
            F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]), list(net.parameters()), allow_unused=True
        )
        for total, gradient in zip(expected, gradients):
            total += 0 if gradient is None else gradient**2 / 9
    with torch.no_grad():
        before = flat.w.clone()
    found = fisher(flat, [(x[:4], y[:4]), (x[4:], y[4:])])
    for slot, total in zip(flat.parameter_slots, expected, strict=True):
        torch.testing.assert_close(slot.view(found), total, rtol=1e-4, atol=1e-8)
        assert total.any()
    assert torch.equal(flat.w, before)


@pytest.mark.parametrize("kind", [Recurrent, Branching])
def test_curvature_is_found_for_models_that_cannot_be_mapped(kind: type[nn.Module], tmp_path) -> None:
    random = np.random.default_rng(0)
    clients = [(random.normal(size=(n, 2, 3)).astype(np.float32), np.arange(n) % 3) for n in (9, 6)]
    federation = Federation.from_clients(clients, num_classes=3, validation=0)
    run = federate(
        kind(), federation, algorithm=FedCurv(lam=0.1), objective=CrossEntropy(), rounds=2, participation=1.0,
        local=Local(steps=2, batch_size=3, lr=0.1), engine="serial", out=tmp_path / "run",
    )  # fmt: skip
    assert all(np.isfinite(line["train_loss"]) for line in run.metrics)


def test_strided_convolutions_on_one_channel_are_not_mapped(monkeypatch) -> None:
    """Torch reads memory that is not theirs when they are mapped, so that bits depend on what lies there."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3, stride=(1, 2)), nn.Flatten(), nn.Linear(12, 3))
    flat, x, y = FlatModel(module), torch.randn(5, 1, 5, 6), torch.tensor([0, 1, 2, 1, 0])
    monkeypatch.setattr("fedrecall.client.fisher.vmap", None)
    expected = torch.zeros_like(flat.w)
    for i in range(5):
        flat.g.zero_()
        F.cross_entropy(flat.module(x[i : i + 1]), y[i : i + 1]).backward()
        expected += flat.g**2 / 5
    torch.testing.assert_close(fisher(flat, [(x, y)]), expected)
