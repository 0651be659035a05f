"""A forward pass that changes is noticed, and looking at it leaves the model as it was."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrecall import InputError
from fedrecall.client.forward_calls import (
    LOOKS_EVERY,
    ForwardPass,
    changing_part,
    forward_calls,
    forward_signature,
)
from fedrecall.core.vector import FlatModel

SCALE = SimpleNamespace(value=1.0)
X = torch.randn(2, 6)


class Scaled(nn.Linear):
    """Reads a variable of its module."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * SCALE.value


class Changing(nn.Linear):
    """Changes or draws something in forward."""

    def __init__(self, how: str) -> None:
        super().__init__(6, 3)
        self.how, self.calls, self.space = how, 0, SimpleNamespace(calls=0)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "an attribute":
            self.calls += 1
        elif self.how == "an attribute's attribute":
            self.space.calls += 1
        elif self.how == "Python's random numbers":
            x = x * random.random()
        elif self.how == "NumPy's random numbers":
            x = x * np.random.rand()  # noqa: NPY002
        return super().forward(x) * (1 + self.space.calls)


@pytest.fixture(autouse=True)
def scale_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SCALE, "value", 1.0)


def test_weights_and_samples_are_no_part_of_a_signature() -> None:
    one, other = FlatModel(Scaled(6, 3)), FlatModel(Scaled(6, 3))
    assert forward_signature(one, X) == forward_signature(other, -X)


def test_a_variable_that_the_forward_pass_reads_is_part_of_its_signature() -> None:
    flat = FlatModel(Scaled(6, 3))
    before = forward_signature(flat, X)
    SCALE.value = 2.0
    assert forward_signature(flat, X) != before


def test_what_is_done_in_evaluation_alone_is_part_of_the_signature() -> None:
    class Evaluated(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return nn.Linear.forward(self, x) if self.training else super().forward(x)

    flat = FlatModel(Evaluated(6, 3))
    before = forward_signature(flat, X)
    SCALE.value = 2.0
    assert forward_signature(flat, X) != before


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("nothing", None),
        ("an attribute", "its forward changes an attribute of the model ('calls')"),
        ("an attribute's attribute", "its forward is another one each time"),
        ("Python's random numbers", "its forward is another one each time"),
        ("NumPy's random numbers", "its forward is another one each time"),
    ],
)
def test_what_changes_from_one_pass_to_the_next_is_found(how, found) -> None:
    assert changing_part(FlatModel(Changing(how)), X) == found


class Keeping(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "kept"):
            self.kept = 2.0
        return super().forward(x) * self.kept


def test_an_attribute_that_the_first_pass_sets_for_good_is_no_change() -> None:
    assert changing_part(FlatModel(Keeping(6, 3)), X) is None


def test_a_counter_of_an_inner_layer_is_named_with_its_layer() -> None:
    flat = FlatModel(nn.Sequential(nn.Linear(6, 6), Changing("an attribute")))
    assert changing_part(flat, X) == "its forward changes an attribute of the model ('1.calls')"


def test_draws_of_torch_are_the_same_calls_each_time() -> None:
    assert changing_part(FlatModel(nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))), X) is None


def test_buffers_mode_and_torchs_generator_are_left_as_they_were() -> None:
    flat = FlatModel(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).eval())
    before, generator = {name: b.clone() for name, b in flat.buffers().items()}, torch.get_rng_state()
    forward_calls(flat, X)
    assert all(torch.equal(flat.buffers()[name], buffer) for name, buffer in before.items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert not flat.module.training


def test_a_forward_pass_is_looked_at_in_fixed_rounds() -> None:
    track_updates = ForwardPass(FlatModel(Scaled(6, 3)), X)
    SCALE.value = 2.0
    for round in (1, 3, 5, 33, 65):
        track_updates.check(round)
    for round in (2, 4, 32, 64, 128, 192):
        with pytest.raises(InputError, match=f"before round {round} the model's forward is not the one of"):
            track_updates.check(round)


def test_a_forward_pass_that_is_the_same_again_is_accepted() -> None:
    track_updates = ForwardPass(FlatModel(Scaled(6, 3)), X)
    track_updates.check(LOOKS_EVERY)
    track_updates.check(2 * LOOKS_EVERY)
