"""Each objective against its formula in float64 NumPy: values, and gradients by differences of those values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedrecall import WSM, CrossEntropy, FedLC, FedNTD, FedRS, FedVLS, Mask
from fedrecall.core.labels import Labels

Array = npt.NDArray[Any]
# The fixture is a plain function: it keeps nothing from one example to the next.
quickly = settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


def contrast(f: Array, y: Array, weight: Array) -> float:
    """mean over the batch of log sum_c weight_c exp(f_c) - f_y"""
    return float(np.mean([np.log(np.sum(weight * np.exp(row))) - row[c] for row, c in zip(f, y)]))


def divergence(f: Array, g: Array, classes: list[list[int]], T: float = 1.0) -> float:
    """mean over the batch of KL(softmax(g/T) || softmax(f/T)), each over the classes of its row."""
    total = 0.0
    for student, teacher, kept in zip(f, g, classes):
        q, p = np.exp(student[kept] / T), np.exp(teacher[kept] / T)
        q, p = q / q.sum(), p / p.sum()
        total += float(np.sum(p * np.log(p / q)))  # over no class at all: 0
    return total / len(f)


def cross_entropy(f: Array, y: Array, n: Array, g: Array) -> float:
    return contrast(f, y, np.ones(len(n)))


def wsm(f: Array, y: Array, n: Array, g: Array, tau=1.0, smoothing=0.0, distill=0.0) -> float:
    beta = (1 - smoothing) * n / n.sum() + smoothing / len(n)
    absent = [np.flatnonzero(n == 0).tolist()] * len(y)
    return contrast(f, y, beta**tau) + distill * divergence(f, g, absent)


def mask(f: Array, y: Array, n: Array, g: Array) -> float:
    return contrast(f, y, (n > 0).astype(float))


def fedrs(f: Array, y: Array, n: Array, g: Array, alpha=0.5) -> float:
    return cross_entropy(np.where(n > 0, f, alpha * f), y, n, g)


def fedlc(f: Array, y: Array, n: Array, g: Array, tau=1.0) -> float:
    margin = np.array([tau / k**0.25 if k else 0.0 for k in n])
    return contrast(f - margin, y, (n > 0).astype(float))


def fedntd(f: Array, y: Array, n: Array, g: Array, beta=1.0, T=1.0) -> float:
    others = [[c for c in range(len(n)) if c != label] for label in y]
    return cross_entropy(f, y, n, g) + beta * T**2 * divergence(f, g, others, T)


def fedvls(f: Array, y: Array, n: Array, g: Array, lam=0.1, suppress=0.005) -> float:
    C, beta, suppression = len(n), n / n.sum(), 0.0
    for c in np.flatnonzero(n):
        others = f[y != c, c]
        if len(others):
            suppression += beta[c] * np.log(np.mean(np.exp(others - np.log(beta[c]) + np.log(1 / C))))
    return wsm(f, y, n, g, distill=lam) + suppress * suppression


FORMULAS = {
    "cross_entropy": (CrossEntropy(), cross_entropy),
    "wsm": (WSM(), wsm),
    "wsm half": (WSM(tau=0.5), lambda *a: wsm(*a, tau=0.5)),
    "wsm smoothed": (WSM(smoothing=0.2), lambda *a: wsm(*a, smoothing=0.2)),
    "wsm distilled": (WSM(distill=0.7), lambda *a: wsm(*a, distill=0.7)),
    "wsm all": (WSM(2.0, 0.1, 0.4), lambda *a: wsm(*a, tau=2.0, smoothing=0.1, distill=0.4)),
    "mask": (Mask(), mask),
    "fedrs": (FedRS(), fedrs),
    "fedrs 0.1": (FedRS(alpha=0.1), lambda *a: fedrs(*a, alpha=0.1)),
    "fedlc": (FedLC(), fedlc),
    "fedlc 2.5": (FedLC(tau=2.5), lambda *a: fedlc(*a, tau=2.5)),
    "fedntd": (FedNTD(), fedntd),
    "fedntd warm": (FedNTD(0.3, 2.0), lambda *a: fedntd(*a, beta=0.3, T=2.0)),
    "fedvls": (FedVLS(), fedvls),
    "fedvls strong": (FedVLS(0.7, 0.4), lambda *a: fedvls(*a, lam=0.7, suppress=0.4)),
}


def gradient(value: Any, f: Array, *rest: Any) -> Array:
    """By central differences, whose error in float64 is below 1e-8 here."""
    result, h = np.zeros_like(f), 1e-5
    for at in np.ndindex(f.shape):
        up, down = f.copy(), f.copy()
        up[at] += h
        down[at] -= h
        result[at] = (value(up, *rest) - value(down, *rest)) / (2 * h)
    return result


@st.composite
def batches(draw: st.DrawFn) -> Any:
    """Logits, labels that the client has, its label counts (zeros likely), and a teacher's logits."""
    counts = draw(st.lists(st.integers(-3, 9).map(lambda n: max(0, n)), min_size=2, max_size=6).filter(any))
    y = np.array(draw(st.lists(st.sampled_from(np.flatnonzero(counts).tolist()), min_size=1, max_size=5)))
    logits = arrays(np.float64, (len(y), len(counts)), elements=st.floats(-6, 6))
    return draw(logits), y, np.array(counts), draw(logits)


@pytest.mark.parametrize(("objective", "formula"), FORMULAS.values(), ids=FORMULAS)
@given(batch=batches())
@quickly
def test_value_and_gradient_are_those_of_the_formula(answer, objective, formula, batch) -> None:
    f, y, n, g = batch
    value, found = answer(objective, n, f, y, g)
    # Logits are float64 here; what is left is that a client's label shares are float32.
    np.testing.assert_allclose(value, formula(f, y, n, g), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found, gradient(formula, f, y, n, g), rtol=1e-5, atol=1e-6)


def test_values_by_hand(answer) -> None:
    # Logits log 1, log 2, log 4, log 8; the client has 3 samples of class 0 and 1 of class 1; a sample of class 1.
    f, y, n = np.log([[1.0, 2.0, 4.0, 8.0]]), [1], [3, 1, 0, 0]
    g = np.log([[1.0, 1.0, 3.0, 1.0]])
    expected = {
        CrossEntropy(): np.log(15 / 2),
        WSM(): np.log((0.75 * 1 + 0.25 * 2) / 2),
        WSM(tau=0.0): np.log(15 / 2),
        Mask(): np.log(3 / 2),
        FedRS(): np.log((3 + 2 + np.sqrt(8)) / 2),
        # teacher over classes 2 and 3: 3/4, 1/4; client: 1/3, 2/3
        WSM(distill=2.0): np.log(1.25 / 2) + 2 * (0.75 * np.log(9 / 4) + 0.25 * np.log(3 / 8)),
        # teacher over 0, 2, 3: 1/5, 3/5, 1/5; client: 1/13, 4/13, 8/13
        FedNTD(): np.log(15 / 2)
        + 0.2 * np.log(13 / 5) + 0.6 * np.log(39 / 20) + 0.2 * np.log(13 / 40),
        # only class 0 has a sample of another class: 3/4 log(1 / (4 * 3/4))
        FedVLS(lam=0.0, suppress=1.0): np.log(1.25 / 2) + 0.75 * np.log(1 / 3),
    }  # fmt: skip
    for objective, value in expected.items():
        assert answer(objective, n, f, y, g)[0].item() == pytest.approx(value, rel=1e-6), objective


def test_fedlc_by_hand(answer) -> None:
    # 16 samples of class 0 and 81 of class 1: margins 1/2 and 1/3.
    value, _ = answer(FedLC(), [16, 81, 0], np.array([[0.5, 1 / 3, 50.0]]), [0])
    assert value.item() == pytest.approx(np.log(2), rel=1e-6)
    value, _ = answer(FedLC(tau=2.0), [16, 81, 0], np.array([[1.0, 2 / 3, 50.0]]), [1])
    assert value.item() == pytest.approx(np.log(2), rel=1e-6)


@given(batch=batches())
@quickly
def test_wsm_has_the_gradient_of_balanced_softmax(answer, batch) -> None:
    f, y, n, _ = batch
    logits = torch.from_numpy(f).requires_grad_()
    log_beta = torch.from_numpy(n / n.sum()).log()  # -inf for absent classes
    torch.nn.functional.cross_entropy(logits + log_beta, torch.from_numpy(y)).backward()
    torch.testing.assert_close(answer(WSM(), n, f, y)[1], logits.grad, rtol=1e-6, atol=1e-6)


@given(batch=batches())
@quickly
def test_the_mask_is_wsm_as_tau_goes_to_zero(answer, batch) -> None:
    f, y, n, _ = batch
    for found, limit in zip(answer(WSM(tau=1e-9), n, f, y), answer(Mask(), n, f, y)):
        torch.testing.assert_close(found, limit, rtol=0, atol=1e-6)


SAME_AS_CROSS_ENTROPY = {
    "fedlc with tau 0": FedLC(tau=0.0),
    "fedrs with alpha 1": FedRS(alpha=1.0),
    "fedntd with beta 0": FedNTD(beta=0.0),
    "wsm with tau 0": WSM(tau=0.0),
}


@pytest.mark.parametrize("objective", SAME_AS_CROSS_ENTROPY.values(), ids=SAME_AS_CROSS_ENTROPY)
@given(batch=batches())
@quickly
def test_at_an_end_of_its_range_it_is_cross_entropy(answer, objective, batch) -> None:
    f, y, n, g = batch
    logits = torch.from_numpy(f).requires_grad_()
    plain = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y))
    plain.backward()
    value, found = answer(objective, n, f, y, g)
    torch.testing.assert_close(value, plain.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found, logits.grad, rtol=1e-12, atol=1e-12)


def test_wsm_without_strength_needs_no_pooled_shares() -> None:
    objective, labels = WSM(tau=0.0, prior="pooled"), Labels.of(torch.tensor([3, 0, 1]))
    logits, target = torch.randn(4, 3), torch.tensor([0, 2, 0, 0])
    expected = torch.nn.functional.cross_entropy(logits, target)
    torch.testing.assert_close(objective(logits, target, objective.prepare(labels)), expected)
