"""Rearranging a graph changes no value."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedrecall.client.graph import (
    UntraceableError,
    aten,
    finish,
    pad_channels,
    pool_before_relu,
    trace,
    without_repeats,
)


def targets(graph_module) -> list[object]:
    return [node.target for node in graph_module.graph.nodes if node.op == "call_function"]


def test_relu_and_pooling_change_places() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.relu(x), 2)

    x = torch.randn(4, 3, 8, 8)
    x[0] = -x[0].abs()  # windows in which nothing is above zero
    before = trace(model, [x])
    graph_module = trace(model, [x])
    pool_before_relu(graph_module.graph)
    finish(graph_module)
    order = targets(graph_module)
    assert order.index(aten.max_pool2d_with_indices.default) < order.index(aten.relu.default)
    gradients = []
    for function in (before, graph_module):
        leaf = x.clone().requires_grad_()
        out = function(leaf)
        assert torch.equal(out, model(x))
        (out * torch.arange(out.numel()).view(out.shape)).sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


def test_a_relu_that_others_read_stays_where_it_is() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = F.relu(x)
        return F.max_pool2d(y, 2).sum() + y.sum()

    graph_module = trace(model, [torch.randn(1, 1, 4, 4)])
    expected = targets(graph_module)
    pool_before_relu(graph_module.graph)
    assert targets(graph_module) == expected


def test_calls_that_change_nothing_or_repeat_another_are_dropped() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        same = aten.mul.Scalar(x.expand(3, 4).view(3, 4), 1)
        return same.transpose(0, 1).transpose(1, 0).exp() + x.exp()

    x = torch.randn(3, 4)
    graph_module = trace(twice, [x])
    without_repeats(graph_module)
    finish(graph_module)
    assert targets(graph_module).count(aten.exp.default) == 1
    assert aten.transpose.int not in targets(graph_module)
    assert torch.equal(graph_module(x), 2 * x.exp())


def test_equal_tensors_stay_two_where_one_is_written_into() -> None:
    def written(x: torch.Tensor) -> torch.Tensor:
        first, second = x * x, x * x
        first.reciprocal_()
        return first + second

    x = torch.rand(3) + 1
    graph_module = trace(written, [x])
    without_repeats(graph_module)
    finish(graph_module)
    assert torch.allclose(graph_module(x), 1 / x**2 + x**2)


def convolutions(*channels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(channels):
        layers += [nn.Conv2d(before, after, 3), nn.ReLU()]
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("channels", "padded"),
    # The last layer's channels are read by the caller and stay as they are.
    [((3, 6, 16), 1), ((3, 6, 12, 16), 2), ((3, 8, 16), 0), ((3, 6), 0)],
)
def test_channels_are_padded_where_only_convolutions_read_them(channels, padded) -> None:
    net = convolutions(*channels)
    names = [name for name, _ in net.named_parameters()]

    def forward(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, dict(zip(names, parameters)), (x,))

    inputs = [torch.randn(2, 3, 12, 12), *(parameter.detach() for parameter in net.parameters())]
    graph_module = trace(forward, inputs)
    assert pad_channels(graph_module.graph) == padded
    finish(graph_module)
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    torch.testing.assert_close(graph_module(*leaves), net(inputs[0]), rtol=1e-5, atol=1e-6)
    graph_module(*leaves).square().sum().backward()
    net(inputs[0]).square().sum().backward()
    for leaf, parameter in zip(leaves[1:], net.parameters()):
        torch.testing.assert_close(leaf.grad, parameter.grad, rtol=1e-4, atol=1e-5)


def test_channels_that_a_linear_layer_reads_are_left_alone() -> None:
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 2))
    names = [name for name, _ in net.named_parameters()]

    def forward(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, dict(zip(names, parameters)), (x,))

    graph_module = trace(forward, [torch.randn(2, 3, 8, 8), *(p.detach() for p in net.parameters())])
    assert pad_channels(graph_module.graph) == 0


def test_a_hidden_tensor_is_refused() -> None:
    hidden = torch.ones(3)
    with pytest.raises(UntraceableError, match="keeps a tensor"):
        trace(lambda x: x + hidden, [torch.zeros(3)])
