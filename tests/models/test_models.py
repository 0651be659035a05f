"""The models, against counts worked out by hand and the textbook's layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedrecall.errors import InputError
from fedrecall.models import MODELS, LeNet, lenet, mlp

# conv2: 16 filters of 6 x 5 x 5 and a bias each; then 16 x 5 x 5 = 400 values go through 120-84-10.
AFTER_CONV1 = 16 * (6 * 5 * 5 + 1) + (400 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10)


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_lenet_for_colour_images_has_62006_parameters() -> None:
    # conv1: 6 filters of 3 x 5 x 5 and a bias each, 456. In all 456 + 2,416 + 48,120 + 10,164 + 850.
    assert 6 * (3 * 5 * 5 + 1) + AFTER_CONV1 == 62_006
    assert size(lenet((3, 32, 32), 10)) == 62_006


def test_lenet_for_grey_images_has_61706_parameters() -> None:
    # conv1: 6 filters of 1 x 5 x 5 and a bias each, 156: 300 less. Padding has no parameters.
    assert 6 * (1 * 5 * 5 + 1) + AFTER_CONV1 == 61_706
    assert size(lenet((1, 28, 28), 10)) == 61_706


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 32, 32), (1, 28, 28), (3, 28, 28)])
@pytest.mark.parametrize("classes", [10, 62])
def test_lenet_gives_a_logit_a_class(shape: tuple[int, ...], classes: int) -> None:
    assert lenet(shape, classes)(torch.zeros(5, *shape)).shape == (5, classes)


def textbook(model: LeNet, x: torch.Tensor, padding: int) -> torch.Tensor:
    """ReLU, then pooling, as it is written everywhere."""
    x = F.max_pool2d(F.relu(F.conv2d(x, model.conv1.weight, model.conv1.bias, padding=padding)), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, model.conv2.weight, model.conv2.bias)), 2)
    x = x.reshape(len(x), 16 * 5 * 5)
    for layer in (model.fc1, model.fc2):
        x = F.relu(F.linear(x, layer.weight, layer.bias))
    return F.linear(x, model.fc3.weight, model.fc3.bias)


@pytest.mark.parametrize(("shape", "padding"), [((3, 32, 32), 0), ((1, 28, 28), 2)])
def test_lenet_is_the_textbooks_to_the_bit(shape: tuple[int, ...], padding: int) -> None:
    torch.manual_seed(0)
    model, x = lenet(shape, 10), torch.randn(9, *shape)
    with torch.no_grad():
        assert torch.equal(model(x), textbook(model, x, padding))


def test_lenet_has_the_textbooks_gradient() -> None:
    torch.manual_seed(0)
    model, x, y = lenet((3, 32, 32), 10), torch.randn(9, 3, 32, 32), torch.arange(9)
    ours = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    theirs = torch.autograd.grad(F.cross_entropy(textbook(model, x, 0), y), list(model.parameters()))
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 31, 31), (3, 28, 32), (28, 28), (784,), (1, 3, 32, 32)])
def test_lenet_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="images of 28x28 or 32x32"):
        lenet(shape, 10)


def test_mlp_without_hidden_layers_is_linear() -> None:
    torch.manual_seed(0)
    model, x = mlp((2, 3), 4, hidden=()), torch.randn(5, 2, 3)
    weight, bias = model.parameters()
    assert (weight.shape, bias.shape) == ((4, 6), (4,))
    torch.testing.assert_close(model(x), x.reshape(5, 6) @ weight.T + bias)


def test_mlp_37_53_31_10_has_4008_parameters() -> None:
    # (37 + 1) 53 = 2,014, (53 + 1) 31 = 1,674, (31 + 1) 10 = 320.
    assert size(mlp((37,), 10, hidden=(53, 31))) == 2_014 + 1_674 + 320 == 4_008


def test_mlp_is_linear_layers_with_relu_between() -> None:
    torch.manual_seed(0)
    model, x = mlp((37,), 10, hidden=(53, 31)), torch.randn(5, 37)
    w1, b1, w2, b2, w3, b3 = model.parameters()
    expected = F.relu(F.relu(x @ w1.T + b1) @ w2.T + b2) @ w3.T + b3
    torch.testing.assert_close(model(x), expected)


def test_mlp_refuses_a_layer_without_width() -> None:
    with pytest.raises(InputError, match=r"model.hidden is \[5, 0\]"):
        mlp((37,), 10, hidden=(5, 0))


def test_models_are_listed_under_their_names() -> None:
    assert MODELS["lenet"] is lenet
    assert MODELS["mlp"] is mlp
