"""What a model, an algorithm and an objective have kernels for, and the operation that has none."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from lane_nets import NETS, batch, lowering_of, net
from torch import Tensor, nn

from fedrecall import WSM, CrossEntropy, FedAvg, FedNTD, FedVLS, Images, Local, Moon, Objective, Scaffold
from fedrecall.client.lanes.lowering import unsupported_reason
from fedrecall.client.lanes.model_reader import UnsupportedError
from fedrecall.core.vector import FlatModel
from fedrecall.data.transform import SmallerCrops
from fedrecall.models.lenet import lenet

X = torch.randn(2, 3, 32, 32)
IMAGES = Images((0.5,) * 3, (0.25,) * 3, crop_padding=4, flip=True)


def features(*after: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), *after)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3072, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x.flatten(1))
        return x + self.b(x)


class Odd(nn.Module):
    """Forward is not the same every time, or not in training and evaluation."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.fc, self.how, self.calls = nn.Linear(3072, 5), how, 0

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.how == "counts":
            self.calls += 1
        elif self.how == "Python's random numbers":
            x = x * random.random()
        elif self.how == "NumPy's random numbers":
            x = x * np.random.rand()  # noqa: NPY002
        elif self.how == "training" and self.training:
            x = x + 0.0
        return self.fc(x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3072, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.c.weight = self.b.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(torch.relu(self.a(x.flatten(1))))))


def frozen() -> nn.Module:
    model = features(nn.ReLU(), nn.Linear(8, 5))
    model[1].weight.requires_grad_(False)
    return model


def unused() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 5))
    model.extra = nn.Parameter(torch.zeros(3))
    model.forward = lambda x: model[1](model[0](x))
    return model


WITHOUT_KERNELS = {
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(7200, 5)),
        "native_group_norm",
    ),
    "batch norm": (lambda: features(nn.BatchNorm1d(8), nn.Linear(8, 5)), "batch norm"),
    "tanh": (lambda: features(nn.Tanh(), nn.Linear(8, 5)), "tanh"),
    "dropout": (lambda: features(nn.Dropout(0.5), nn.Linear(8, 5)), "dropout"),
    "ReLU behind the last layer": (lambda: features(nn.Linear(8, 5), nn.ReLU()), "ReLU behind"),
    "padded pooling": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(900, 5)),
        "padding",
    ),
    "dilation": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, dilation=2), nn.Flatten(), nn.Linear(3136, 5)),
        "dilated",
    ),
    "a residual sum": (Residual, "add"),
    "tied weights": (Tied, "a parameter that is not used once"),
    "a frozen weight": (frozen, "a weight that is not trained"),
    "an unused parameter": (unused, "a parameter that is not used once"),
    "float64": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 5)).double(), "a precision other than"),
    "a counter": (lambda: Odd("counts"), "its forward changes an attribute of the model \\('calls'\\)"),
    "Python's random numbers": (lambda: Odd("Python's random numbers"), "its forward is another one each time"),
    "NumPy's random numbers": (lambda: Odd("NumPy's random numbers"), "its forward is another one each time"),
    "another forward in training": (lambda: Odd("training"), "add"),
}


@pytest.mark.parametrize("name", WITHOUT_KERNELS)
def test_a_model_without_kernels_is_refused_with_the_operation(name) -> None:
    make, reason = WITHOUT_KERNELS[name]
    flat = FlatModel(make())
    with pytest.raises(UnsupportedError, match=f"there is no kernel for .*{reason}"):
        lowering_of(flat, X.to(flat.w.dtype))


@pytest.mark.parametrize("name", NETS)
def test_a_model_with_kernels_is_lowered_to_the_same_layers_whatever_its_weights_are(name) -> None:
    x, _ = batch(name, 2)
    one, other = FlatModel(net(name)), FlatModel(net(name))
    other.w.normal_()
    assert lowering_of(one, x) == lowering_of(other, -x)


def test_lowering_leaves_the_model_and_torchs_generator_as_they_were() -> None:
    flat = FlatModel(net("lenet").eval())
    before, generator = flat.w.clone(), torch.get_rng_state()
    lowering_of(flat, X)
    assert torch.equal(flat.w, before)
    assert torch.equal(torch.get_rng_state(), generator)
    assert not flat.module.training


def test_a_smaller_model_than_a_vector_of_lanes_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"samples of shape \(15,\)"):
        lowering_of(FlatModel(nn.Linear(15, 3)), torch.zeros(2, 15))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"algorithm": Moon()}, "a loss of features"),
        ({"local": Local(precision="bfloat16")}, "a precision other than float32"),
        ({"transform": SmallerCrops((0.5,) * 3, (0.25,) * 3)}, "training on crops"),
    ],
)
def test_settings_without_kernels_are_refused_with_the_reason(given, reason) -> None:
    with pytest.raises(UnsupportedError, match=f"there is no kernel for {reason}"):
        lowering_of(FlatModel(net("lenet")), X, **given)


def test_bytes_are_read_by_kernels_unless_a_teacher_wants_floats() -> None:
    flat = FlatModel(net("lenet"))
    assert lowering_of(flat, X).pixels is None
    assert lowering_of(flat, X, WSM(), transform=IMAGES).pixels is not None
    assert lowering_of(flat, X, FedNTD(), transform=IMAGES).pixels is None


class Own(WSM):
    """A subclass, whose loss may be another."""


@pytest.mark.parametrize(
    ("objective", "own"),
    [
        (CrossEntropy(), True),
        (WSM(), True),
        (WSM(smoothing=0.1, prior="pooled"), True),
        (WSM(distill=0.1), False),
        (FedNTD(), False),
        (FedVLS(), False),
        (Own(), False),
    ],
    ids=str,
)
def test_the_loss_is_a_kernels_for_cross_entropy_and_wsm_alone(objective: Objective, own: bool) -> None:
    lowering = lowering_of(FlatModel(net("lenet")), X, objective)
    assert lowering.own_loss is own
    reason = None if own else "the objective is neither cross-entropy nor WSM without distillation"
    assert unsupported_reason(lowering, FedAvg()) == reason


def test_an_algorithm_that_corrects_gradients_has_no_kernels_with_a_client_in_each_lane() -> None:
    lowering = lowering_of(FlatModel(net("lenet")), X)
    assert unsupported_reason(lowering, Scaffold()) == "the algorithm changes gradients"


@pytest.mark.parametrize(
    ("model", "pays"),
    [
        (lambda: lenet((3, 32, 32), 5), True),
        (lambda: nn.Sequential(nn.Conv2d(3, 17, 3), nn.Flatten(), nn.Linear(15300, 5)), False),  # wide
        (lambda: features(nn.ReLU(), nn.Linear(8, 5)), True),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 5)), False),  # one product
    ],
)
def test_kernels_pay_for_narrow_convolutions_and_layers_on_features(model, pays) -> None:
    assert lowering_of(FlatModel(model()), X).pays is pays
