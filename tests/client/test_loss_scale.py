"""Float16 steps: what would vanish or overflow does not, and no step is lost or taken twice."""

from __future__ import annotations

import copy

import torch
from exact_steps import exact_step
from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall.client.batch import Batch
from fedrecall.client.loss_scale import FIRST, LossScale
from fedrecall.client.step import ExactStep
from fedrecall.core.vector import FlatModel
from fedrecall.objectives import LossFunction


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def stepped(factor: float, precision: str) -> tuple[FlatModel, ExactStep]:
    """The gradient of a loss that is so many times cross-entropy."""

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return factor * F.cross_entropy(logits, target)

    flat = FlatModel(copy.deepcopy(model()).train())
    step = exact_step(flat, LossFunction(loss), precision=precision)
    step.begin_client(0.1, {})
    torch.manual_seed(1)
    step(Batch(torch.randn(16, 6), torch.arange(16) % 3))
    return flat, step


def assert_near(found: FlatModel, expected: FlatModel) -> None:
    """Float16 has 11 bits of mantissa."""
    assert (found.g - expected.g).norm() < 2e-2 * expected.g.norm()
    assert torch.allclose(found.b, expected.b, atol=1e-2)
    assert found.buffers()["i"].tolist() == [1]  # batch norm has counted one batch


def test_a_gradient_below_what_float16_holds_is_kept() -> None:
    exact, (found, step) = stepped(1e-7, "float32")[0], stepped(1e-7, "float16")
    assert 0 < exact.g.abs().max() < 6e-8  # the least that float16 holds
    assert_near(found, exact)
    assert step._scale is not None
    assert step._scale.value == FIRST


def test_an_overflow_halves_the_scale_and_the_batch_is_taken_again() -> None:
    exact, (found, step) = stepped(1e4, "float32")[0], stepped(1e4, "float16")
    assert FIRST * exact.g.abs().max() > 65504  # the largest that float16 holds
    assert_near(found, exact)
    assert step._scale is not None
    assert 1 <= step._scale.value < FIRST


def test_a_model_that_overflows_by_itself_is_not_tried_for_ever() -> None:
    found, step = stepped(1e9, "float16")
    assert not found.g.isfinite().all()
    assert step._scale is not None
    assert step._scale.value == 1


def test_the_scale_grows_after_many_good_steps() -> None:
    scale = LossScale()
    for _ in range(1999):
        scale.held()
    assert scale.value == FIRST
    scale.held()
    assert scale.value == 2 * FIRST
    assert scale.overflowed()
    assert scale.value == FIRST
