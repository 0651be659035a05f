"""The prior of WSM: its formula, what it becomes at its ends, and a problem whose answer is known."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import (
    WSM,
    CrossEntropy,
    Federation,
    InputError,
    Labels,
    WSMLoss,
    federate,
    reweighted_cross_entropy,
)

COUNTS = np.array([6, 0, 3, 1])
BETA = COUNTS / 10
PI = np.array([0.1, 0.2, 0.3, 0.4])
LOGITS = np.random.default_rng(0).normal(size=(5, 4)) * 3
TARGET = np.array([0, 2, 3, 0, 2])


def by_hand(logits: np.ndarray, pi: np.ndarray, lam: float, tau: float) -> float:
    ratio = ((1 - lam) * BETA + lam * pi) / pi
    each = [np.log(np.sum(ratio**tau * np.exp(row))) - row[c] for row, c in zip(logits, TARGET)]
    return float(np.mean(each))


def gradient_by_hand(pi: np.ndarray, lam: float, tau: float) -> np.ndarray:
    """By differences of values in float64."""
    found, step = np.zeros_like(LOGITS), 1e-6
    for at in np.ndindex(*LOGITS.shape):
        up, down = LOGITS.copy(), LOGITS.copy()
        up[at] += step
        down[at] -= step
        found[at] = (by_hand(up, pi, lam, tau) - by_hand(down, pi, lam, tau)) / (2 * step)
    return found


def value_and_gradient(objective, pooled=None, dtype=torch.float32) -> tuple[float, np.ndarray]:
    labels = Labels(torch.tensor(COUNTS), torch.tensor(BETA, dtype=dtype), pooled)
    logits = torch.tensor(LOGITS, dtype=dtype, requires_grad=True)
    loss = objective(logits, torch.tensor(TARGET), objective.prepare(labels))
    loss.backward()
    assert logits.grad is not None
    return loss.item(), logits.grad.numpy()


@pytest.mark.parametrize(("lam", "tau"), [(0.0, 1.0), (0.003, 1.0), (0.2, 0.6)])
def test_value_and_gradient_are_those_of_the_formula(lam: float, tau: float) -> None:
    options = {"smoothing": lam, "tau": tau}
    given = value_and_gradient(WSM(prior=tuple(PI), **options), dtype=torch.float64)
    pooled = value_and_gradient(WSM(prior="pooled", **options), torch.tensor(PI), torch.float64)
    for value, gradient in (given, pooled):
        assert value == pytest.approx(by_hand(LOGITS, PI, lam, tau), abs=1e-12)
        np.testing.assert_allclose(gradient, gradient_by_hand(PI, lam, tau), atol=1e-8)


def test_loss_and_module_say_the_same_as_the_objective() -> None:
    logits, target = torch.tensor(LOGITS), torch.tensor(TARGET)
    expected = by_hand(LOGITS, PI, 0.1, 0.8)
    options = {"tau": 0.8, "smoothing": 0.1}
    assert reweighted_cross_entropy(logits, target, BETA, prior=PI, **options).item() == pytest.approx(expected)
    module = WSMLoss(torch.tensor(BETA), prior=5 * PI, **options)  # counts will do
    assert module(logits, target).item() == pytest.approx(expected)
    assert module(logits.float(), target).item() == pytest.approx(expected, abs=1e-5)


def test_equal_shares_have_the_gradient_of_the_paper() -> None:
    value, gradient = value_and_gradient(WSM(prior=(2, 2, 2, 2)))
    paper, paper_gradient = value_and_gradient(WSM())
    np.testing.assert_allclose(gradient, paper_gradient, atol=1e-7)
    assert value - paper == pytest.approx(math.log(4), abs=1e-6)  # beta / pi is 4 beta


@pytest.mark.parametrize("prior", ["uniform", "pooled", (1.0, 2.0, 3.0, 4.0)])
def test_smoothing_of_one_is_cross_entropy(prior) -> None:
    value, gradient = value_and_gradient(WSM(prior=prior, smoothing=1.0), torch.tensor(PI))
    plain, plain_gradient = value_and_gradient(CrossEntropy())
    np.testing.assert_allclose(gradient, plain_gradient, atol=1e-7)
    assert value - plain == pytest.approx(-math.log(4) if prior == "uniform" else 0, abs=1e-6)


def test_a_client_that_is_the_whole_population_has_cross_entropy() -> None:
    counts = torch.tensor([5, 1, 2, 2])
    labels = Labels.of(counts, counts / counts.sum(dtype=torch.float64))
    objective = WSM(prior="pooled")
    logits, target = torch.tensor(LOGITS), torch.tensor(TARGET)
    loss = objective(logits, target, objective.prepare(labels))
    assert loss.item() == pytest.approx(torch.nn.functional.cross_entropy(logits, target).item(), abs=1e-6)


@pytest.mark.parametrize("lam", [0.0, 0.01])
def test_a_class_that_nobody_has_weighs_lam(lam: float) -> None:
    pooled = torch.tensor([0.5, 0.0, 0.25, 0.25], dtype=torch.float64)
    weight = WSM(prior="pooled", smoothing=lam).prepare(Labels.of(torch.tensor(COUNTS), pooled))["log_weight"]
    assert weight.exp().tolist()[1] == pytest.approx(lam)
    assert not weight.isnan().any()
    _, gradient = value_and_gradient(WSM(prior="pooled", smoothing=lam), pooled)
    assert np.isfinite(gradient).all()
    assert (gradient[:, 1] == 0).all() == (lam == 0)


@pytest.mark.parametrize(
    ("prior", "said"),
    [
        ("poled", "objective.prior is 'poled'; uniform, pooled or a list of class shares"),
        ([0.5, -0.1], "objective.prior is [0.5, -0.1]; uniform, pooled or a list"),
        ([0.0, 1.0], "objective.prior is (0.0, 1.0); shares above 0 were expected"),
        ([float("nan"), 1.0], "objective.prior is [nan, 1.0]"),
    ],
)
def test_what_is_no_prior_is_a_sentence(prior, said: str) -> None:
    with pytest.raises(InputError) as error:
        WSM(prior=prior)
    assert said in str(error.value)


def test_a_loss_is_given_shares_and_not_a_word() -> None:
    with pytest.raises(InputError, match="prior is 'pooled'; the class shares themselves were expected"):
        WSMLoss(torch.tensor(BETA), prior="pooled")
    with pytest.raises(InputError, match="prior is zero for class 2, of which the client has samples"):
        WSMLoss(torch.tensor(BETA), prior=[0.5, 0.5, 0.0, 0.5])
    with pytest.raises(InputError, match="prior has 3 entries, but there are 4 classes"):
        WSMLoss(torch.tensor(BETA), prior=[0.5, 0.5, 0.5])
    with pytest.raises(InputError, match="prior has the shape"):
        reweighted_cross_entropy(torch.tensor(LOGITS), torch.tensor(TARGET), BETA, prior=[1.0])


# Two classes at -1 and 1 with deviation 1: the log-odds of class 1 are 2 x + log(share_1 / share_0), whatever the
# shares are. Three clients see the same classes with these numbers of samples.
CLIENTS = [(390, 10), (150, 50), (200, 200)]


def label_shift() -> Federation:
    """Each class at the middle of as many equally likely pieces of its distribution as a client has samples."""
    clients = []
    for counts in CLIENTS:
        x = [[NormalDist(2 * c - 1, 1).inv_cdf((i + 0.5) / n)] for c, n in enumerate(counts) for i in range(n)]
        clients.append((np.array(x, dtype=np.float32), np.repeat([0, 1], counts)))
    return Federation.from_clients(clients, num_classes=2, validation=0)


def odds_after_training(objective, tmp_path) -> tuple[float, float]:
    """Slope and intercept of the log-odds, after rounds in which every client goes to its own optimum."""
    run = federate(
        nn.Linear(1, 2),
        label_shift(),
        objective=objective,
        rounds=6,
        participation=1.0,
        local={"steps": 150, "batch_size": 400, "lr": 1.0, "weight_decay": 0.0},
        engine="serial",
        out=tmp_path / "run",
    )
    last = run.model()
    slope, intercept = last.weight.detach(), last.bias.detach()
    return float(slope[1] - slope[0]), float(intercept[1] - intercept[0])


def test_pooled_reaches_the_centralised_posterior_where_labels_alone_differ(tmp_path) -> None:
    slope, intercept = odds_after_training(WSM(prior="pooled"), tmp_path)
    assert intercept == pytest.approx(math.log(260 / 740), abs=0.02)  # the shares of all 1000 samples
    assert slope == pytest.approx(2.0, abs=0.1)  # extremes are missing in pieces of a distribution


def test_uniform_reaches_the_posterior_of_equal_shares(tmp_path) -> None:
    assert odds_after_training(WSM(), tmp_path)[1] == pytest.approx(0.0, abs=0.02)


def test_cross_entropy_reaches_the_mean_of_the_clients_posteriors_instead(tmp_path) -> None:
    intercept = odds_after_training(CrossEntropy(), tmp_path)[1]
    mean_odds = sum(sum(counts) * math.log(counts[1] / counts[0]) for counts in CLIENTS) / 1000
    assert mean_odds == pytest.approx(0.4 * -3.66356 + 0.2 * -1.09861, abs=1e-4)  # -1.69, and pooled -1.05
    assert intercept == pytest.approx(mean_odds, abs=0.03)
