"""Who is asked, who answers and who is slow, beside arithmetic by hand and the frequencies of many rounds."""

from __future__ import annotations

import numpy as np
import pytest

from fedrecall.core.rng import stream
from fedrecall.errors import InputError
from fedrecall.participation import (
    PARTICIPATION,
    CyclicSampling,
    Participation,
    PoissonSampling,
    SamplingBySize,
    UniformSampling,
)
from fedrecall.recipe.layers import load_recipe
from fedrecall.recipe.recipe import Recipe

ROUNDS = 2000


def chosen(scheme: Participation, t: int, sizes: list[int]) -> list[int]:
    return list(scheme.choose(t, np.array(sizes), stream(0, "sample", t)))


def frequencies(scheme: Participation, sizes: list[int]) -> np.ndarray:
    counts = np.zeros(len(sizes))
    for t in range(1, ROUNDS + 1):
        counts[chosen(scheme, t, sizes)] += 1
    return counts / ROUNDS


def test_by_size_draws_one_after_the_other() -> None:
    """Of sizes 1, 2, 5 two are drawn: 5 with 5/8 + 1/8 * 5/7 + 2/8 * 5/6, and so on for the others."""
    largest = 5 / 8 + 1 / 8 * 5 / 7 + 2 / 8 * 5 / 6
    expected = [1 / 8 + 2 / 8 / 6 + 5 / 8 / 3, 2 / 8 + 1 / 8 * 2 / 7 + 5 / 8 * 2 / 3, largest]
    assert sum(expected) == pytest.approx(2)
    np.testing.assert_allclose(frequencies(SamplingBySize(clients=2), [1, 2, 5]), expected, atol=0.04)


def test_poisson_draws_each_client_by_itself_and_may_draw_nobody() -> None:
    scheme = PoissonSampling(fraction=0.3)
    np.testing.assert_allclose(frequencies(scheme, [9] * 5), [0.3] * 5, atol=0.04)
    counts = [len(chosen(scheme, t, [9] * 5)) for t in range(1, ROUNDS + 1)]
    assert counts.count(0) / ROUNDS == pytest.approx(0.7**5, abs=0.03)
    assert scheme.expected(5) == 2
    assert PoissonSampling(fraction=0.001).expected(5) == 1


def test_groups_take_turns() -> None:
    scheme = CyclicSampling(groups=3)
    assert [chosen(scheme, t, [1] * 7) for t in (1, 2, 3, 4)] == [[0, 3, 6], [1, 4], [2, 5], [0, 3, 6]]
    half = CyclicSampling(groups=2, fraction=0.5)
    assert half.expected(8) == 2
    for t in range(1, 9):
        found = chosen(half, t, [1] * 8)
        assert len(found) == 2
        assert {client % 2 for client in found} == {(t - 1) % 2}
    with pytest.raises(InputError, match=r"^participation\.groups is 9, but only 8 clients may train$"):
        CyclicSampling(groups=9).expected(8)


def test_each_client_fails_by_itself() -> None:
    scheme, asked = UniformSampling(dropout=0.25), list(range(40))
    answers = [scheme.answering(t, asked, stream(0, "answers", t)) for t in range(1, 201)]
    assert sum(map(len, answers)) / (200 * 40) == pytest.approx(0.75, abs=0.02)
    assert scheme.answering(1, asked, stream(0, "answers", 1)) == answers[0]
    assert UniformSampling(dropout=1).answering(1, asked, stream(0, "answers", 1)) == []
    assert UniformSampling().answering(1, asked, stream(0, "answers", 1)) is asked


def test_stragglers_are_as_many_as_asked_for_with_even_shares() -> None:
    scheme, asked = UniformSampling(stragglers=0.5), list(range(40))
    slow = [scheme.straggling(t, asked, stream(0, "stragglers", t)) for t in range(1, 201)]
    assert sum(map(len, slow)) / (200 * 40) == pytest.approx(0.5, abs=0.03)
    shares = [share for found in slow for share in found.values()]
    assert np.quantile(shares, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.03)


def test_the_short_form_stays_short() -> None:
    for given, fraction, clients in (
        (0.3, 0.3, None),
        ({"fraction": 0.3}, 0.3, None),
        ({"name": "uniform", "clients": 4}, None, 4),
        ({"fraction": 0.3, "dropout": 0, "stragglers": 0.0, "late": "fewer_steps"}, 0.3, None),
    ):
        recipe = Recipe(participation=given)
        assert (recipe.participation, recipe.clients_per_round) == (fraction, clients)


@pytest.mark.parametrize("name", ["demo", "resnet18-cifar10"])  # clients_per_round: 2, and participation: 0.1
def test_an_option_keeps_the_number_of_clients_below_it(name: str) -> None:
    plain = load_recipe(name).create_participation()
    made = load_recipe(name, ["participation.dropout=0.2"]).create_participation()
    assert isinstance(made, UniformSampling)
    assert made.dropout == 0.2
    assert made.expected(100) == plain.expected(100) == (2 if name == "demo" else 10)


def test_the_recipe_makes_what_it_names() -> None:
    tree = {"name": "by_size", "clients": 3, "dropout": 0.1, "late": "left_out"}
    recipe = Recipe(participation=tree)
    assert recipe.create_participation() == SamplingBySize(clients=3, dropout=0.1, late="left_out")
    assert Recipe(**recipe.tree()) == recipe


def last_ones(round: int, population: int, random: np.random.Generator, count: int = 2) -> list[int]:
    return [population - 1 - k for k in range(count)]


def test_a_plain_function_chooses() -> None:
    made = PARTICIPATION.from_python(last_ones)
    assert list(made.choose(1, np.ones(9), stream(0, "sample", 1))) == [8, 7]
    assert made.expected(9) == 2


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"dropout": 1.5}, "participation.dropout is 1.5; expected at most 1.0"),
        ({"stragglers": -1}, "participation.stragglers is -1; expected at least 0.0"),
        ({"late": "gone"}, "participation.late is 'gone'; expected 'fewer_steps' or 'left_out'"),
        ({"name": "cyclik"}, "participation is 'cyclik', which is not known; did you mean 'cyclic'?"),
        ({"name": "poisson", "clients": 3}, "there is no key 'participation.clients'"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        Recipe(participation=given)
    assert sentence in str(refused.value)
