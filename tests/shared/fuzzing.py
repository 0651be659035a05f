"""Input that is almost right, for the fuzz tests, and what must hold of it: an `InputError` or success, soon."""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from fedrecall.api.execute import load_federation
from fedrecall.errors import InputError, Note
from fedrecall.recipe.layers import load_recipe as load_recipe
from fedrecall.runs.folder import RunFolder
from fedrecall.simulation.experiment import build
from fedrecall.simulation.loop import run_experiment

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "2000"))  # of all slow tests together; `make fuzz` wants more
MOST_SECONDS = 20.0  # of one example, on a busy machine; most take a few milliseconds

_CALM = {"deadline": None, "suppress_health_check": list(HealthCheck)}
# The same examples every time, and none made smaller: what fails here is looked into with the slow tests.
QUICK = settings(max_examples=30, derandomize=True, database=None, phases=[Phase.generate], **_CALM)
FEW = settings(QUICK, max_examples=6)  # where an example is a run


def many(share: float) -> settings:
    """As many examples as this share of all."""
    return settings(max_examples=max(1, round(share * EXAMPLES)), print_blob=True, **_CALM)


# Values that a careful reader refuses.

NUMBERS: list[Any] = [0, -1, 1, 2, 10**18, 2**63, -(2**70), 10**400, 1e-320, 1e308, -0.0, 0.5]
NUMBERS += [float("nan"), float("inf"), float("-inf")]
TEXTS = ["", " ", 'it\'s "odd"\n', "</script><b>&amp;", "../../evil", "/etc/passwd", "\x00", "\x1b[31m", "\ud800"]
TEXTS += ["{{7*7}}", "$x^2$", "%s", "名前", "nosuch:thing", "a:b:c", ":", "python", "n" * 3000, "null", "1e5"]
DEEP: list[Any] = []
for _ in range(200):
    DEEP = [DEEP]

odd: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.sampled_from([None, True, False, [], {}, [[]], {"name": None}, {"name": []}, [1, "a"], {"": 1}, DEEP]),
    st.integers(-3, 300),
    st.floats(),
    st.text(max_size=8),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
).map(copy.deepcopy)  # because what was drawn may be edited in turn


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something can be changed."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


@st.composite
def edited(draw: st.DrawFn, tree: Any, most: int = 3) -> Any:
    """The tree with a few values replaced, keys left out, added or renamed."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, most))):
        there = list(places(tree))
        if not there:
            return draw(odd)
        *path, last = draw(st.sampled_from(there))
        inner = tree
        for key in path:
            inner = inner[key]
        change = draw(st.sampled_from(["replace"] * 4 + ["remove", "add", "rename"]))
        if change == "replace" or isinstance(inner, list):
            inner[last] = draw(odd)
        elif change == "add":
            inner[draw(st.sampled_from(TEXTS) | st.text(max_size=5))] = draw(odd)
        else:
            value = inner.pop(last)
            if change == "rename":
                inner[f"{last}s"] = value
    return tree


@st.composite
def mutated(draw: st.DrawFn, content: bytes, most: int = 3) -> bytes:
    """The bytes with a few bits turned, cut off, put in, zeroed or there twice."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, max(0, len(changed) - 1)))
        length = draw(st.integers(1, 40))
        change = draw(st.sampled_from(["flip"] * 4 + ["set"] * 2 + ["cut", "insert", "zero", "twice", "remove"]))
        if change == "flip" and changed:
            changed[at] ^= 1 << draw(st.integers(0, 7))
        elif change == "set" and changed:
            changed[at] = draw(st.sampled_from(b"0123456789-+eE.,:[]{}\"'\\/ \n\t\xff\x00ntf&*!%@`|>#"))
        elif change == "cut":
            del changed[at:]
        elif change == "insert":
            changed[at:at] = draw(st.binary(min_size=1, max_size=length))
        elif change == "zero":
            changed[at : at + length] = bytes(len(changed[at : at + length]))
        elif change == "twice":
            changed[at:at] = changed[at : at + length]
        elif change == "remove":
            del changed[at : at + length]
    return bytes(changed)


# A run with a file of every kind, which is made in no time.

RECIPE: dict[str, Any] = {
    "data": {"name": "npz", "path": "my.npz"},
    "partition": {"name": "iid", "clients": 4, "validation": 0.25},
    "model": {"name": "mlp", "hidden": [3]},
    "algorithm": "scaffold",
    "rounds": 3,
    "clients_per_round": 4,  # so that round 4 reads the states of all
    "local": {"steps": 1, "batch_size": 4, "lr": 0.1},
    "evaluation": {"every": 1, "test_last": 1},
    "forgetting": {"every": 2},
    "checkpoint": {"every": 1},
    "execution": {"engine": "serial"},
}
_random = np.random.default_rng(0)
ARRAYS: dict[str, Any] = {
    "x_train": _random.normal(size=(24, 4)).astype(np.float32),
    "y_train": np.arange(24) % 3,
    "x_test": _random.normal(size=(6, 4)).astype(np.float32),
    "y_test": np.arange(6) % 3,
    "ids": np.arange(24) % 4,
    "class_names": np.array(["cat", "dog", "emu"]),
}


def make_finished_run(folder: Path, recipe: Mapping[str, Any] = RECIPE, **arrays: Any) -> None:
    """`kept`, a finished run of a recipe on arrays, with both beside it: what is copied and damaged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        np.savez("my.npz", **{**ARRAYS, **arrays})
        Path("recipe.yaml").write_text(yaml.safe_dump(recipe))
        run_recipe("kept")


def make_whole_run(folder: Path) -> None:
    """`whole`, the same with a round more: what `kept` becomes when it is resumed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_recipe("whole", f"rounds={RECIPE['rounds'] + 1}")


def run_recipe(folder: str, *words: str) -> None:
    """Run the recipe beside, with settings over it."""
    loaded = load_recipe("recipe.yaml", words)
    run_experiment(build(loaded, load_federation(loaded)), RunFolder.create(Path(folder)))


# What must hold.


def listing(folder: Path) -> dict[str, tuple[bool, int, int]]:
    """Everything below a folder: is it a link, its size, and when it was changed."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            facts = os.lstat(path)
            size = 0 if name in folders else facts.st_size
            found[os.path.relpath(path, folder)] = (os.path.islink(path), size, facts.st_mtime_ns)
    return found


@contextmanager
def refused_or_fine(outside: Path) -> Iterator[None]:
    """Inside, an `InputError` with a sentence is well, and a note; any other exception fails, and what takes long.

    Nothing may be made or changed below `outside`, but for the folder `run` there.
    """
    before, began = listing_around(outside), time.monotonic()
    with suppress(InputError), warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)
        yield
    assert time.monotonic() - began < MOST_SECONDS
    assert listing_around(outside) == before


def listing_around(outside: Path) -> dict[str, tuple[bool, int, int]]:
    return {name: facts for name, facts in listing(outside).items() if Path(name).parts[0] != "run"}
