"""A fingerprint differs where the code of a model has changed something, wherever it keeps it."""

from __future__ import annotations

import collections
import functools
import itertools
import random
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrecall import WSM, Moon
from fedrecall.client.hidden_state import MOST_THINGS, fingerprint, generators
from fedrecall.models.lenet import lenet
from fedrecall.models.representation import Representation

calls = 0
table: dict[str, list[int]] = {"calls": [0]}
variable: ContextVar[int] = ContextVar("variable", default=0)


class Slots:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@dataclass
class Inner:
    count: int = 0


class Counts(list[int]):
    total = 0


class Model(nn.Module):
    """Counts its calls in a place of its own choice."""

    shared = 0

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.space = SimpleNamespace(count=0, inner=Inner())
        self.slots, self.items, self.deque = Slots(), [[0]], collections.deque([0])
        self.counts, self.counter = Counts(), collections.Counter[str]()
        self.array, self.tensor = np.zeros(3), torch.zeros(3)
        self.own_random, self.own_numpy = random.Random(0), np.random.default_rng(0)
        self.own_torch = torch.Generator()
        self.numbers, self.iterator = itertools.count(), iter([1] * 100)
        self.generator = (i for i in range(100))
        self.partial = functools.partial(self.fc.forward, self.items)


def change_global(model: Model) -> None:
    global calls
    calls += 1


def closure() -> tuple[nn.Module, object]:
    count = 0

    class Counting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal count
            count += 1
            return super().forward(x)

    model = Counting(3, 2)
    return model, lambda _: model(torch.zeros(1, 3))


class ByGlobals(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.helper(x) * calls + len(table) + variable.get()

    def helper(self, x: Tensor) -> Tensor:
        return self.fc(x) * table["calls"][0]


def add(model: Model) -> None:
    model.space.count += 1


CHANGES = {
    "an attribute's attribute": add,
    "an attribute's attribute's attribute": lambda model: setattr(model.space.inner, "count", 1),
    "slots": lambda model: setattr(model.slots, "count", 1),
    "a nested list": lambda model: model.items[0].append(1),
    "an element": lambda model: model.items[0].__setitem__(0, 5),
    "a deque": lambda model: model.deque.append(1),
    "a list with attributes": lambda model: setattr(model.counts, "total", 1),
    "a counter": lambda model: model.counter.update("a"),
    "an array": lambda model: model.array.__iadd__(1),
    "a tensor": lambda model: model.tensor.add_(1),
    "a generator of its own": lambda model: model.own_random.random(),
    "NumPy's generator of its own": lambda model: model.own_numpy.random(),
    "torch's generator of its own": lambda model: torch.rand(1, generator=model.own_torch),
    "itertools.count": lambda model: next(model.numbers),
    "an iterator": lambda model: next(model.iterator),
    "a running function": lambda model: next(model.generator),
    "a class attribute": lambda model: setattr(Model, "shared", Model.shared + 1),
    "an inner layer's attribute": lambda model: setattr(model.fc, "extra", 1),
    "a new hook": lambda model: model.fc.register_forward_hook(print),
    "a module's variable": change_global,
    "a module's table": lambda model: table["calls"].append(1),
    "a context variable": lambda model: variable.set(object()),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_and_no_change_is_none(name) -> None:
    model, objective = ByGlobals(), WSM()
    before = fingerprint(model, objective)
    assert fingerprint(model, objective) == before
    CHANGES[name](model)
    assert fingerprint(model, objective) != before


def test_a_variable_of_an_enclosing_function_is_seen() -> None:
    model, call = closure()
    before = fingerprint(model)
    assert fingerprint(model) == before
    call(model)
    assert fingerprint(model) != before


@pytest.mark.parametrize("draw", [random.random, lambda: np.random.rand()])  # noqa: NPY002
def test_draws_from_the_global_generators_are_seen(draw) -> None:
    before = generators()
    assert generators() == before
    draw()
    assert generators() != before


def test_an_objective_that_counts_is_seen() -> None:
    objective = SimpleNamespace(count=0)
    model = nn.Linear(3, 2)
    before = fingerprint(model, objective)
    objective.count += 1
    assert fingerprint(model, objective) != before


def test_what_a_recording_holds_is_no_change() -> None:
    model = nn.Sequential(lenet((3, 32, 32), 10), nn.BatchNorm1d(10), nn.Dropout(0.5))
    representation, algorithm = Representation(model, None), Moon()
    before = fingerprint(model, algorithm)
    model.train()
    model(torch.randn(4, 3, 32, 32)).sum().backward()
    representation.take()
    model.eval()
    assert fingerprint(model, algorithm) == before


class Unwilling:
    def __length_hint__(self) -> int:
        raise ValueError("ask somebody else")


def test_an_object_that_cannot_be_asked_is_passed_over() -> None:
    model = nn.Linear(3, 2)
    model.unwilling = Unwilling()
    assert fingerprint(model) == fingerprint(model)


def test_it_is_bounded_and_ends_in_circles() -> None:
    model = nn.Linear(3, 2)
    model.itself, model.many = SimpleNamespace(), list(range(10 * MOST_THINGS))
    model.itself.itself, model.itself.model = model.itself, [model]
    assert len(fingerprint(model)) < 3 * MOST_THINGS
