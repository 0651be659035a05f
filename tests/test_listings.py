"""The algorithms and objectives that come with the package, by name."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import subprocess
import sys

import pytest

import fedrecall as package
from fedrecall import Algorithm, Objective, algorithms, objectives
from fedrecall.algorithms import ALGORITHMS
from fedrecall.objectives import OBJECTIVES

LISTS = [(ALGORITHMS, Algorithm, algorithms), (OBJECTIVES, Objective, objectives)]


@pytest.mark.parametrize(("listing", "base", "module"), LISTS)
def test_the_package_exports_what_is_listed_and_nothing_else_of_the_kind(listing, base, module) -> None:
    exported = [getattr(package, name) for name in package.__all__]
    kinds = {thing for thing in exported if isinstance(thing, type) and issubclass(thing, base)} - {base}
    assert kinds == set(listing.values())
    assert {kind.__name__ for kind in kinds} < set(module.__all__)
    assert len(set(listing.values())) == len(listing)


@pytest.mark.parametrize(("listing", "base", "module"), LISTS)
def test_every_finished_class_of_the_folder_is_listed(listing, base, module) -> None:
    """A class is finished if it can be used as it is: the shared parts of others are not."""
    inner = [importlib.import_module(f"{module.__name__}.{i.name}") for i in pkgutil.iter_modules(module.__path__)]
    things = [(file.__name__, thing) for file in inner for thing in vars(file).values() if isinstance(thing, type)]
    found = {thing for file, thing in things if issubclass(thing, base) and thing.__module__ == file}
    shared = {base.__name__, "Adaptive", "WithMomentum", "StaysHome", "LossFunction", "CoordinateWise"}
    assert {kind.__name__ for kind in found - set(listing.values())} <= shared
    assert set(listing.values()) <= found


@pytest.mark.parametrize("kind", [*ALGORITHMS.values(), *OBJECTIVES.values()])
def test_each_is_a_frozen_data_class_that_works_without_options_and_says_what_it_is(kind) -> None:
    made = kind()
    assert made == kind()
    assert hash(made) == hash(kind())
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}(")  # which is what a data class without a docstring has
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.anything = 1


def test_importing_the_lists_changes_nothing_elsewhere(tmp_path) -> None:
    script = """
import os, random, signal, sys, threading, warnings
import numpy, pydantic, torch  # pydantic adds to the filters of warnings

def world():
    return repr((
        torch.random.get_rng_state().tolist(), random.getstate(), numpy.random.get_state(),
        torch.get_num_threads(), torch.get_default_dtype(), threading.active_count(), os.listdir("."),
        dict(os.environ), signal.getsignal(signal.SIGINT), sys.path, warnings.filters,
    ))

before = world()
import fedrecall.algorithms, fedrecall.objectives
assert world() == before
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
