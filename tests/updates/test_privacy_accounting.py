"""Epsilon of textbook cases, beside computations of our own in NumPy and mpmath."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedrecall import InputError
from fedrecall.updates.privacy_accounting import NoisySums

ORDERS = np.concatenate([1 + np.arange(1, 100) / 10, np.arange(11, 64), [128, 256, 512, 1024]])


def conversion(orders: np.ndarray, rdp: np.ndarray, delta: float) -> float:
    """Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", 2020, proposition 12."""
    return float(np.min(rdp + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)))


def exact_delta(epsilon: float, deviation: float) -> float:
    """Balle and Wang, "Improving the Gaussian Mechanism", ICML 2018, theorem 8, for a sensitivity of 1."""

    def normal(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    a, b = 1 / (2 * deviation), epsilon * deviation
    return normal(a - b) - math.exp(epsilon) * normal(-a - b)


def poisson_rdp(q: float, z: float, order: float) -> float:
    """Mironov, Talwar and Zhang, "Renyi Differential Privacy of the Sampled Gaussian Mechanism", 2019: the integral
    itself, by quadrature."""
    x = np.linspace(-20 * z, 20 * z + order, 200_001)
    log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * z**2))
    log_terms = -(x**2) / (2 * z**2) - math.log(z * math.sqrt(2 * math.pi)) + order * log_ratio
    top = log_terms.max()
    return float((top + math.log(np.exp(log_terms - top).sum() * (x[1] - x[0]))) / (order - 1))


pytestmark = pytest.mark.heavy


@pytest.fixture(autouse=True)
def accountant() -> None:
    pytest.importorskip("dp_accounting", reason="needs fedrecall[privacy]")


@pytest.mark.parametrize(("relation", "sensitivity"), [("add-or-remove-one", 1.0), ("replace-one", 2.0)])
def test_gaussian_noise_without_amplification(relation: str, sensitivity: float) -> None:
    z, rounds, delta = 5.0, 30, 1e-5
    found = NoisySums(z, relation, "no-amplification").epsilon(rounds, delta)
    rdp = rounds * ORDERS * sensitivity**2 / (2 * z**2)  # Mironov 2017, proposition 7
    assert found == pytest.approx(conversion(ORDERS, rdp, delta), rel=1e-9)
    # Thirty sums are as one with less noise, whose exact epsilon is at most this bound, and not far below.
    deviation = z / sensitivity / math.sqrt(rounds)
    assert exact_delta(found, deviation) <= delta
    assert exact_delta(0.85 * found, deviation) > delta


def test_poisson_sampling_of_abadi_and_others() -> None:
    """Abadi et al., "Deep Learning with Differential Privacy", CCS 2016: q = .01, sigma = 4, 10,000 steps and
    delta = 1e-5 give epsilon 1.26, by the conversion of that time."""
    q, z, rounds, delta = 0.01, 4.0, 10_000, 1e-5
    orders = np.arange(2, 65).astype(float)
    rdp = rounds * np.array([poisson_rdp(q, z, order) for order in orders])
    assert round(float(np.min(rdp - math.log(delta) / (orders - 1))), 2) == 1.26
    found = NoisySums(z, "add-or-remove-one", "poisson", q).epsilon(rounds, delta)
    assert found == pytest.approx(conversion(orders, rdp, delta), rel=1e-5)


def test_sampling_without_replacement_of_wang_and_others() -> None:
    """Wang, Balle and Kasiviswanathan, "Subsampled Renyi Differential Privacy and Analytical Moments Accountant",
    AISTATS 2019, theorem 27, for a sensitivity of 2 C."""
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 60
    z, population, chosen, rounds, delta = 10.0, 1000, 20, 100, 1e-5
    q, deviation = mpmath.mpf(chosen) / population, mpmath.mpf(z) / 2

    def renyi(order: int) -> object:
        return order / (2 * deviation**2)

    def ternary(order: int) -> object:  # the forward difference of exp((i - 1) renyi(i)) at 0
        terms = (
            (-1) ** (order - i) * mpmath.binomial(order, i) * mpmath.exp((i - 1) * renyi(i)) for i in range(order + 1)
        )
        return mpmath.fsum(terms)

    def rdp(order: int) -> float:
        two = min(4 * (mpmath.exp(renyi(2)) - 1), 2 * mpmath.exp(renyi(2)))
        total = 1 + q**2 * mpmath.binomial(order, 2) * two
        for j in range(3, order + 1):
            pair = 4 * mpmath.sqrt(ternary(2 * (j // 2)) * ternary(2 * -(-j // 2)))
            bound = min(pair, 2 * mpmath.exp((j - 1) * renyi(j)))
            total += q**j * mpmath.binomial(order, j) * bound
        return float(mpmath.log(total) / (order - 1))

    orders = np.arange(40, 52)
    spent = np.array([rdp(int(order)) for order in orders]) * rounds
    found = NoisySums(z, "replace-one", "without-replacement", chosen, population).epsilon(rounds, delta)
    assert found == pytest.approx(conversion(orders.astype(float), spent, delta), rel=1e-6)


def test_sampling_never_costs_more_than_taking_part_in_every_round() -> None:
    most = NoisySums(4.0, "replace-one", "no-amplification").epsilon(10, 1e-5)
    spent = [NoisySums(4.0, "replace-one", "without-replacement", m, 100).epsilon(10, 1e-5) for m in (1, 30, 90, 100)]
    assert spent == sorted(spent)
    assert spent[0] < 0.2 * most
    assert spent[2:] == pytest.approx([most, most], rel=1e-9)


def test_the_rounds_that_a_budget_pays_for() -> None:
    sums = NoisySums(5.0, "add-or-remove-one", "no-amplification")
    rounds = sums.affordable_rounds(100, 1e-5, 4.0)
    assert sums.epsilon(rounds, 1e-5) <= 4.0 < sums.epsilon(rounds + 1, 1e-5)
    assert sums.epsilon(0, 1e-5) == 0.0
    assert sums.affordable_rounds(100, 1e-5, 1e-9) == 0


def test_without_the_extra_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r"pip install 'fedrecall\[privacy\]'"):
        NoisySums(1.0, "replace-one", "no-amplification").epsilon(1, 1e-5)
