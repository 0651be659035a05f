"""The re-weighted loss against its formula in float64 NumPy, values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from fedrecall.core.losses import (
    WSMLoss,
    log_weights,
    quick_cross_entropy,
    reweighted_cross_entropy,
    reweighted_cross_entropy_from_logs,
)

Array = npt.NDArray[Any]
quickly = settings(deadline=None, max_examples=30)
EXTREME = st.sampled_from([-1e4, -100.0, -1.0, 0.0, 2.5, 100.0, 1e4])
ORDINARY = st.floats(-30, 30)


def normaliser(f: Array, beta: Array, tau: float) -> Array:
    """log sum_c beta_c^tau exp(f_c), row by row, over the classes that have a weight."""
    present = beta > 0
    g, w = f[:, present], beta[present] ** tau
    top = g.max(axis=1, keepdims=True)
    return np.log(np.sum(w * np.exp(g - top), axis=1)) + top[:, 0]


def mean_loss(f: Array, y: Array, beta: Array, tau: float) -> float:
    return float(np.mean(normaliser(f, beta, tau) - f[np.arange(len(y)), y]))


def mean_gradient(f: Array, y: Array, beta: Array, tau: float) -> Array:
    """(softmax(f + tau log beta) - onehot(y)) / N, where an absent class has probability zero."""
    with np.errstate(over="ignore"):
        p = beta**tau * np.exp(np.where(beta > 0, f - normaliser(f, beta, tau)[:, None], 0.0))
    return (p - np.eye(len(beta))[y]) / len(y)


@st.composite
def batches(draw: st.DrawFn, values: st.SearchStrategy[float] = ORDINARY, any_label: bool = False) -> Any:
    """Logits, labels, beta (zeros likely) and tau; labels of present classes unless `any_label`."""
    counts = draw(st.lists(st.integers(0, 9).map(lambda n: max(0, n - 3)), min_size=1, max_size=6).filter(any))
    beta = np.array(counts) / sum(counts)
    labels = range(len(beta)) if any_label else np.flatnonzero(beta).tolist()
    y = np.array(draw(st.lists(st.sampled_from(labels), min_size=1, max_size=5)))
    f = draw(arrays(np.float64, (len(y), len(beta)), elements=values))
    return f, y, beta, draw(st.sampled_from([0.25, 0.5, 1.0, 2.0]))


def tensors(f: Array, y: Array, beta: Array, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    return torch.tensor(f, dtype=dtype, requires_grad=True), torch.tensor(y), torch.tensor(beta, dtype=dtype)


def quick(logits: Tensor, target: Tensor, logs: Tensor) -> Tensor:
    return quick_cross_entropy(logits, target, logs, -logs)


def smoothed(logits: Tensor, target: Tensor, logs: Tensor) -> Tensor:
    return reweighted_cross_entropy_from_logs(logits, target, logs, label_smoothing=0.2)


@quickly
@given(batches(any_label=True))
def test_value_is_the_formula_for_present_and_absent_labels(batch: Any) -> None:
    f, y, beta, tau = batch
    loss = reweighted_cross_entropy(*tensors(f, y, beta), tau)
    np.testing.assert_allclose(loss.item(), mean_loss(f, y, beta, tau), rtol=1e-12, atol=1e-11)


@quickly
@given(batches(any_label=True))
def test_gradient_is_the_weighted_softmax_less_the_label(batch: Any) -> None:
    f, y, beta, tau = batch
    logits, target, shares = tensors(f, y, beta)
    reweighted_cross_entropy(logits, target, shares, tau).backward()
    np.testing.assert_allclose(logits.grad, mean_gradient(f, y, beta, tau), atol=1e-12)


@quickly
@given(batches())
def test_quick_form_has_the_value_of_the_formula(batch: Any) -> None:
    f, y, beta, tau = batch
    logits, target, shares = tensors(f, y, beta)
    loss = quick(logits, target, log_weights(shares, tau))
    np.testing.assert_allclose(loss.item(), mean_loss(f, y, beta, tau), rtol=1e-12, atol=1e-11)


@quickly
@given(batches())
def test_quick_form_has_the_gradient_of_the_formula(batch: Any) -> None:
    f, y, beta, tau = batch
    logits, target, shares = tensors(f, y, beta)
    quick(logits, target, log_weights(shares, tau)).backward()
    np.testing.assert_allclose(logits.grad, mean_gradient(f, y, beta, tau), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@quickly
@given(batch=batches())
def test_module_computes_in_float32_whatever_the_logits(dtype: torch.dtype, batch: Any) -> None:
    f, y, beta, tau = batch
    logits = torch.tensor(f, dtype=dtype)
    loss = WSMLoss(beta, tau)(logits, torch.tensor(y))
    assert loss.dtype is torch.float32
    expected = mean_loss(logits.double().numpy(), y, beta, tau)
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@quickly
@given(batch=batches(values=EXTREME))
def test_gradients_follow_the_formula_at_extreme_logits(dtype: torch.dtype, batch: Any) -> None:
    f, y, beta, tau = batch
    logits = torch.tensor(f, dtype=dtype, requires_grad=True)
    WSMLoss(beta, tau)(logits, torch.tensor(y)).backward()
    assert logits.grad is not None
    expected = mean_gradient(logits.detach().double().numpy(), y, beta, tau)
    # Half an ulp of the float32 sum f + log beta at 1e4 is 5e-4; float16 and bfloat16 round the gradient.
    np.testing.assert_allclose(logits.grad.float(), expected, atol=2e-3, rtol=1e-2)


@quickly
@given(batches(values=EXTREME))
def test_values_follow_the_formula_at_extreme_logits(batch: Any) -> None:
    f, y, beta, tau = batch
    logits = torch.tensor(f, dtype=torch.float32)
    loss = reweighted_cross_entropy(logits, torch.tensor(y), beta, tau)
    np.testing.assert_allclose(loss.item(), mean_loss(f, y, beta, tau), rtol=1e-5, atol=2e-3)


@pytest.mark.parametrize("loss", [reweighted_cross_entropy_from_logs, quick])
@quickly
@given(batch=batches(values=EXTREME))
def test_absent_class_gets_zero_gradient(loss: Any, batch: Any) -> None:
    f, y, beta, tau = batch
    logits, target, shares = tensors(f, y, beta, torch.float32)
    loss(logits, target, log_weights(shares, tau)).backward()
    assert logits.grad is not None
    assert (logits.grad[:, beta == 0] == 0).all()


@pytest.mark.parametrize("loss", [reweighted_cross_entropy_from_logs, smoothed, quick])
@quickly
@given(f=arrays(np.float32, (4, 3), elements=st.floats(-100, 100, width=32)))
def test_one_class_client_has_exactly_zero_gradient(loss: Any, f: Array) -> None:
    logits, target = torch.tensor(f, requires_grad=True), torch.full((4,), 1)
    loss(logits, target, log_weights([0.0, 1.0, 0.0])).backward()
    assert logits.grad is not None
    assert (logits.grad == 0).all()


@quickly
@given(batches(), st.floats(0.01, 1))
def test_smoothing_mixes_a_uniform_share_into_beta(batch: Any, lam: float) -> None:
    f, y, beta, tau = batch
    loss = reweighted_cross_entropy(*tensors(f, y, beta), tau, smoothing=lam)
    expected = mean_loss(f, y, (1 - lam) * beta + lam / len(beta), tau)
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12, atol=1e-11)


@quickly
@given(batches(), st.data())
def test_soft_targets_replace_the_label_score_by_its_mean(batch: Any, data: st.DataObject) -> None:
    f, _, beta, tau = batch
    t = data.draw(arrays(np.float64, f.shape, elements=st.floats(0.01, 1)))
    t /= t.sum(axis=1, keepdims=True)
    logits, target, shares = torch.tensor(f), torch.tensor(t), torch.tensor(beta)
    loss = reweighted_cross_entropy(logits, target, shares, tau)
    expected = np.mean(normaliser(f, beta, tau) - (t * f).sum(axis=1))
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12, atol=1e-11)


@quickly
@given(batches(), st.floats(0.01, 1))
def test_label_smoothing_spreads_over_present_classes_only(batch: Any, eps: float) -> None:
    f, y, beta, tau = batch
    t = (1 - eps) * np.eye(len(beta))[y] + eps * (beta > 0) / np.count_nonzero(beta)
    loss = reweighted_cross_entropy(*tensors(f, y, beta), tau, label_smoothing=eps)
    expected = np.mean(normaliser(f, beta, tau) - (t * f).sum(axis=1))
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12, atol=1e-11)


@quickly
@given(batches(), st.floats(0.1, 1000))
def test_a_common_factor_of_beta_moves_the_loss_by_a_constant(batch: Any, factor: float) -> None:
    f, y, beta, tau = batch
    logits, target, shares = tensors(f, y, beta)
    moved = reweighted_cross_entropy(logits, target, factor * shares, tau)
    there = reweighted_cross_entropy(logits, target, shares, tau)
    np.testing.assert_allclose((moved - there).item(), tau * np.log(factor), atol=1e-10)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (3, 4, 5), (2, 4, 3, 2)])
def test_each_position_of_any_shape_has_the_loss_of_its_row(shape: tuple[int, ...], reduction: str) -> None:
    rng = np.random.default_rng(0)
    beta = np.array([0.2, 0.0, 0.5, 0.3])
    f = rng.normal(size=shape)
    y = rng.choice([0, 2, 3], size=shape[:1] * (len(shape) > 1) + shape[2:])
    losses = np.zeros(y.shape)
    for i in np.ndindex(y.shape):
        row = f[(*i[:1], slice(None), *i[1:])]
        losses[i] = np.log(np.sum(beta * np.exp(row))) - row[y[i]]
    logs = log_weights(torch.tensor(beta))
    loss = reweighted_cross_entropy_from_logs(torch.tensor(f), torch.tensor(y), logs, reduction=reduction)
    expected = {"none": losses, "sum": losses.sum(), "mean": losses.mean()}[reduction]
    np.testing.assert_allclose(loss, expected, rtol=1e-12)


@pytest.mark.parametrize("loss", [reweighted_cross_entropy_from_logs, smoothed, quick])
def test_gradcheck_passes_in_float64(loss: Any) -> None:
    f = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y, logs = torch.tensor([0, 2, 3, -100, 2]), log_weights(np.array([0.2, 0.0, 0.5, 0.3]), 0.7)
    assert torch.autograd.gradcheck(lambda f: loss(f, y, logs), f)


def test_float64_logits_take_the_logarithm_of_a_float32_beta_in_float64() -> None:
    f, y, beta = np.zeros((1, 3)), np.array([0]), torch.tensor([0.1, 0.2, 0.3])
    loss = reweighted_cross_entropy(torch.tensor(f), torch.tensor(y), beta)
    np.testing.assert_allclose(loss.item(), mean_loss(f, y, beta.double().numpy(), 1.0), rtol=1e-14)


def test_autocast_computes_in_float32() -> None:
    x, w = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(2)).unbind()
    y, loss = torch.arange(8), WSMLoss(torch.ones(8), label_smoothing=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        f = x @ w
        inside = loss(f, y)
    assert (f.dtype, inside.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(inside, loss(f.float(), y))


def test_float64_beta_leaves_float32_logits_in_float32() -> None:
    loss = reweighted_cross_entropy(torch.zeros(1, 2), torch.tensor([0]), np.array([0.5, 0.5]))
    assert loss.dtype is torch.float32
