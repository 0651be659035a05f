"""A mapped step has the gradient of each client, and making its graph changes no value."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule
from torch.nn import functional as F

from fedrecall import CrossEntropy, FedAvg
from fedrecall.client.batch import Batch
from fedrecall.client.mapped_step import MappedSteps, UntraceableError, aten, finish, trace, without_repeats
from fedrecall.core.vector import FlatModel
from fedrecall.objectives import LossFunction


def targets(graph_module: GraphModule) -> list[object]:
    return [node.target for node in graph_module.graph.nodes if node.op == "call_function"]


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


def test_a_tensor_that_is_given_twice_is_traced_as_two_inputs() -> None:
    x = torch.ones(3)
    graph_module = trace(lambda a, b: a + 2 * b, [x, x])
    assert torch.equal(graph_module(x, 10 * x), 21 * x)


CLIENTS = 3


def mapped_over(model: nn.Module) -> MappedSteps:
    return MappedSteps(FlatModel(model.train()), CrossEntropy(), FedAvg())


def inputs_of(mapped: MappedSteps, size: int, *, shared: bool) -> tuple[Batch, list[Tensor]]:
    """A batch and a target for each client, its parameters or those of all, and its buffers."""
    flat, random = mapped.flat, torch.Generator().manual_seed(size)
    x = torch.randn(CLIENTS, size, 6, generator=random)
    target = torch.randint(0, 4, (CLIENTS, size), generator=random)
    w = flat.w if shared else flat.w + 0.1 * torch.randn(CLIENTS, len(flat.w), generator=random)
    buffers = [buffer.expand(CLIENTS, *buffer.shape) for buffer in (flat.float_buffers | flat.int_buffers).values()]
    return Batch(x, target), [*[slot.view(w) for slot in flat.parameter_slots], *buffers]


@pytest.mark.parametrize("shared", [True, False], ids=["one model for all", "a model for each"])
def test_a_mapped_step_has_the_loss_and_gradient_of_each_client(shared) -> None:
    mapped = mapped_over(nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 4)))
    batch, views = inputs_of(mapped, 8, shared=shared)
    mapped.make(batch, views)
    loss, gradients, _ = mapped(batch, views)
    for k in range(CLIENTS):
        own = {
            slot.name: (view if shared else view[k]).detach().clone().requires_grad_()
            for slot, view in zip(mapped.flat.parameter_slots, views)
        }
        expected = F.cross_entropy(functional_call(mapped.flat.module, own, (batch.x[k],)), batch.target[k])
        torch.testing.assert_close(loss[k], expected.detach())
        for gradient, wanted in zip(gradients, torch.autograd.grad(expected, list(own.values()))):
            torch.testing.assert_close(gradient[k], wanted)


def test_a_mapped_step_returns_the_new_statistics_of_each_client() -> None:
    mapped = mapped_over(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    batch, views = inputs_of(mapped, 8, shared=True)
    mapped.make(batch, views)
    _, _, (mean, _, counted) = mapped(batch, views)
    hidden = mapped.flat.module[0](batch.x)
    torch.testing.assert_close(mean, 0.1 * hidden.mean(1).detach())
    assert counted.tolist() == [1] * CLIENTS
    assert mapped.flat.buffers()["i"].tolist() == [0]  # the model's own stay as they were


def test_frozen_parameters_are_those_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    model[0].requires_grad_(False)
    mapped = mapped_over(model)
    batch, views = inputs_of(mapped, 8, shared=True)
    mapped.make(batch, views)
    expected = F.cross_entropy(model(batch.x[1]), batch.target[1])
    torch.testing.assert_close(mapped(batch, views)[0][1], expected.detach())


def test_a_loss_may_keep_weights_of_classes() -> None:
    model, loss = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)), nn.CrossEntropyLoss(torch.rand(4))
    mapped = MappedSteps(FlatModel(model), LossFunction(loss), FedAvg())
    batch, views = inputs_of(mapped, 8, shared=True)
    mapped.make(batch, views)
    torch.testing.assert_close(mapped(batch, views)[0][2], loss(model(batch.x[2]), batch.target[2]).detach())


def test_a_graph_is_made_once_for_each_shape(monkeypatch) -> None:
    mapped, made = mapped_over(nn.Linear(6, 4)), []
    traced = mapped._traced
    monkeypatch.setattr(mapped, "_traced", lambda *given: (made.append(given), traced(*given))[1])
    for size in (8, 5, 8, 5):
        mapped.make(*inputs_of(mapped, size, shared=True))
    assert len(made) == 2


class Keeping(nn.Linear):
    """Its scale is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__(6, 4)
        self.scale = [torch.tensor(2.0)]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale[0]


class Deciding(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits if logits.sum() > 0 else -logits


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Deciding(6, 4), "data-dependent"),
        (nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)), "random"),
        (Keeping(), "it keeps a tensor that is neither a parameter nor a buffer"),
    ],
    ids=["decides by data", "draws", "keeps a tensor"],
)
def test_a_model_that_cannot_be_mapped_is_refused(model, reason) -> None:
    mapped = mapped_over(model)
    with pytest.raises(UntraceableError, match=reason):
        mapped.make(*inputs_of(mapped, 8, shared=True))
