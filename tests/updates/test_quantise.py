"""Stochastic quantisation, beside numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrecall import Quantise
from fedrecall.updates import StageContext

AT = StageContext(seed=0, round=1, client=3, cohort=5, place=0)


def decoded(stage: Quantise, values: torch.Tensor, at: StageContext = AT) -> torch.Tensor:
    return stage.receive(stage.send({"w": values}, {}, at)[0], at)["w"]


def test_levels_are_those_of_the_formula_with_the_stream_of_the_client() -> None:
    values = np.array([0.5, -1.0, 0.25, 0.0, 3.0, -2.0, 1.0], np.float32)
    drawn = AT.stream().random(7)
    scales = np.array([1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 1.0])  # the largest of three consecutive numbers
    for bits, top in ((8, 127), (4, 7)):
        expected = np.floor(values / scales * top + drawn) * scales / top
        found = decoded(Quantise(bits=bits, bucket=3), torch.from_numpy(values))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
        assert found.dtype == torch.float32


@pytest.mark.parametrize("bits", [8, 4])
def test_what_lies_on_a_level_arrives_unchanged(bits: int) -> None:
    top = 2 ** (bits - 1) - 1
    values = torch.tensor([-1.0, 0.0, 1.0, 3 / top, -2 / top], dtype=torch.float64)
    torch.testing.assert_close(decoded(Quantise(bits=bits), values), values, rtol=1e-12, atol=1e-14)
    zeros = torch.zeros(5)
    assert torch.equal(decoded(Quantise(bits=bits, bucket=2), zeros), zeros)


@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_is_unbiased(bits: int) -> None:
    count, top = 40_000, 2 ** (bits - 1) - 1
    values = torch.full((count,), 0.3 / top)
    values[0] = 1.0
    found = decoded(Quantise(bits=bits, bucket=count), values)[1:]
    assert set((found * top).round().tolist()) == {0.0, 1.0}
    spread = (0.3 * 0.7) ** 0.5 / top / count**0.5  # a number is 1 / top with probability .3
    assert abs(float(found.double().mean()) - 0.3 / top) < 4 * spread


def test_other_rounds_and_clients_draw_other_numbers() -> None:
    values = torch.linspace(-1, 1, 1000)
    first = decoded(Quantise(), values)
    assert torch.equal(first, decoded(Quantise(), values))
    for at in (StageContext(0, 2, 3, 5, 0), StageContext(0, 1, 4, 5, 0), StageContext(1, 1, 3, 5, 0)):
        assert not torch.equal(first, decoded(Quantise(), values, at))


@pytest.mark.parametrize(("bits", "size"), [(8, 1001), (4, 501)])
def test_a_message_has_a_byte_or_half_a_byte_a_number_and_a_scale_a_bucket(bits: int, size: int) -> None:
    message, state = Quantise(bits=bits, bucket=100).send({"w": torch.ones(1001)}, {}, AT)
    assert sum(tensor.numel() * tensor.itemsize for tensor in message.values()) == size + 4 * 11
    assert state == {}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_does_not_become_one(bad: float) -> None:
    assert not decoded(Quantise(), torch.tensor([1.0, bad, 2.0])).isfinite().all()


def test_positions_of_an_earlier_stage_pass() -> None:
    positions = torch.tensor([3, 70000], dtype=torch.int32)
    stage = Quantise(bits=4)
    found = stage.receive(stage.send({"w.positions": positions, "w.values": torch.ones(2)}, {}, AT)[0], AT)
    assert torch.equal(found["w.positions"], positions)
    assert torch.equal(found["w.values"], torch.ones(2))
