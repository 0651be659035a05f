"""Recipes that are almost right: read, or refused in a sentence, and soon; nothing else, and nothing written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from fuzzing import QUICK, edited, many, mutated, refused_or_fine
from hypothesis import given
from hypothesis import strategies as st

from fedrecall.errors import InputError
from fedrecall.recipe.files import shipped_recipes
from fedrecall.recipe.layers import load_recipe as load_recipe
from fedrecall.recipe.recipe import SECTIONS, Recipe

FULL: dict[str, Any] = {
    "base": "demo",
    "preset": "authors",
    "data": {"name": "npz", "path": "my.npz", "layout": "auto", "augment": False},
    "partition": {"name": "dirichlet", "alpha": 0.1, "clients": 10, "validation": 0.1, "seed": 0, "held_out": 1},
    "model": {"name": "mlp", "hidden": [8, 4]},
    "objective": {"name": "wsm", "tau": 1.0, "smoothing": 0.1},
    "algorithm": {"name": "scaffold", "server_lr": 1.0},
    "rounds": 4,
    "participation": 0.5,
    "local": {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5, "schedule": {"name": "step", "every": 2}},
    "batch_norm": "average",
    "evaluation": {"every": 2, "test_last": 2, "target": 0.5, "metrics": ["mine:metric"]},
    "forgetting": {"rounds": [1, 2], "sample": 3},
    "checkpoint": {"every": 2},
    "seed": 3,
    "execution": {"engine": "serial", "workers": 1},
}
FULL["local"]["schedule"]["factor"] = 0.5
SHIPPED = [path.read_text(encoding="utf-8") for path in shipped_recipes().values()]
NAMES = {section: sorted(named.listing) for section, named in SECTIONS.items()}

FOUND = [  # by these tests, or known of YAML; more are in test_bad_input.py
    "rounds: " + "[" * 400,
    "local: " + "{a: " * 400,
    "seed: 0b_",
    "seed: 2001-99-99",
    "seed: !!timestamp abc",
    "seed: !!int abc",
    "seed: .nan",
    "local: {3: 4}",
    "partition: {3: 4}",
    "local: {? [a]: 4}",
    "model: {name: mlp, hidden: !!binary aGVsbG8=}",
    "model: {name: python, x: !!binary /w==}",
    "data: {name: python, x: 2001-01-01}",
    "objective: !!set {wsm}",
    "algorithm: {name: 'a\\0b:c'}",
    "algorithm: {name: '.:c'}",
    "--- 1\n--- 2",
    '"\\ud800": 1',
    "base: recipe.yaml",
    'base: "a\\0b"',
    "base: /dev/zero",
    "base: [demo]",
    "preset: [authors]",
    "preset: authors\nlocal: 3\npartition: [4]",
]


def check(place: Path, content: bytes) -> None:
    """Read as `run` does before the data come, and written as a run's own recipe."""
    (place / "recipe.yaml").write_bytes(content)
    with refused_or_fine(place):
        recipe = load_recipe(str(place / "recipe.yaml"))
        again = yaml.safe_load(recipe.yaml())
        assert Recipe(**again).tree() == recipe.tree()
        recipe.digest()
        for section in ("partition", "objective", "algorithm"):
            recipe.create(section)


def as_yaml(tree: Any) -> bytes:
    try:
        return yaml.safe_dump(tree, allow_unicode=True).encode(errors="surrogatepass")
    except RecursionError:
        return json.dumps(tree).encode()


def named() -> st.SearchStrategy[Any]:
    """A recipe with other names in its sections, so that every option is there to be spoiled."""
    sections = st.sampled_from([(section, name) for section, names in NAMES.items() for name in names])

    def spelled_out(chosen: tuple[str, str]) -> dict[str, Any]:
        section, name = chosen
        try:
            return {**FULL, section: SECTIONS[section].complete(name)}
        except InputError:  # an option without a default
            return {**FULL, section: {"name": name, "path": "x", "label": "y"}}

    return sections.map(spelled_out)


trees = st.one_of(edited(FULL), named().flatmap(edited)).map(as_yaml)
texts = st.sampled_from([text.encode() for text in SHIPPED] + [as_yaml(FULL)]).flatmap(mutated)
documents = st.one_of(trees, trees, texts, st.binary(max_size=200), st.text(max_size=100).map(str.encode))
words = st.one_of(
    st.text(max_size=30),
    st.builds("{}={}".format, st.sampled_from(["rounds", "local.lr", "model", "a.b", "."]), st.text(max_size=20)),
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "sentinel").write_text("mine")
    return tmp_path


@pytest.mark.parametrize("text", FOUND, ids=lambda text: text[:20].replace("\n", " "))
def test_a_recipe_once_found_to_be_hard_is_one_sentence(place: Path, text: str) -> None:
    check(place, text.encode())


def check_words(place: Path, given_words: list[str]) -> None:
    with refused_or_fine(place):
        load_recipe("demo", given_words).yaml()


PROPERTIES = {"recipe": (check, documents), "settings": (check_words, st.lists(words, max_size=3))}


@pytest.mark.parametrize("what", PROPERTIES)
@given(data=st.data())
@QUICK
def test_a_recipe_and_settings_are_read_or_refused(place: Path, data: st.DataObject, what: str) -> None:
    check_it, strategy = PROPERTIES[what]
    check_it(place, data.draw(strategy))


@pytest.mark.slow
@pytest.mark.parametrize("what", PROPERTIES)
@given(data=st.data())
@many(0.2)
def test_a_recipe_and_settings_are_read_or_refused_many_times(place: Path, data: st.DataObject, what: str) -> None:
    check_it, strategy = PROPERTIES[what]
    check_it(place, data.draw(strategy))
