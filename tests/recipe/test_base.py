"""A recipe that names a base says only what differs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedrecall import InputError
from fedrecall.recipe.files import MOST_BASES, shipped_recipes
from fedrecall.recipe.layers import load_recipe
from fedrecall.recipe.recipe import Recipe

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Recipes by name, as files of a folder that is not the working one; the first one's path."""
    monkeypatch.chdir(tmp_path)

    def put(**texts: str) -> str:
        folder = tmp_path / "recipes"
        folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            (folder / f"{name}.yaml").write_text(text)
        return str(folder / f"{next(iter(texts))}.yaml")

    return put


def test_a_recipe_goes_over_its_base_which_goes_over_its_own(write: Write) -> None:
    top = write(
        top="base: middle.yaml\nlocal: {lr: 0.5}",
        middle="base: bottom.yaml\nrounds: 7\nlocal: {lr: 0.25, momentum: 0.5}",
        bottom="rounds: 3\nseed: 11\nlocal: {batch_size: 5}",
    )
    loaded = load_recipe(top, ["seed=12"])
    local = loaded.local
    assert (loaded.rounds, loaded.seed) == (7, 12)
    assert (local.lr, local.momentum, local.batch_size) == (0.5, 0.5, 5)


def test_a_base_is_a_shipped_recipe_by_name(write: Write) -> None:
    expected = load_recipe("demo", ["rounds=5"])
    assert load_recipe(write(top="base: demo\nrounds: 5")) == expected
    assert "base" not in expected.tree()


def test_a_base_is_looked_for_beside_the_file_that_names_it(write: Write, tmp_path: Path) -> None:
    write(top="base: below/middle.yaml")
    below = tmp_path / "recipes" / "below"
    below.mkdir()
    (below / "middle.yaml").write_text("base: ../bottom.yaml")
    (tmp_path / "recipes" / "bottom.yaml").write_text("rounds: 9")
    assert load_recipe("recipes/top.yaml").rounds == 9
    (tmp_path / "other.yaml").write_text(f"base: {tmp_path}/recipes/bottom.yaml")
    assert load_recipe("other.yaml").rounds == 9


def test_another_name_drops_the_options_of_the_base(write: Write) -> None:
    bottom = "partition: {name: dirichlet, alpha: 5.0, clients: 7}"
    same = load_recipe(write(top="base: bottom.yaml\npartition: {clients: 9}", bottom=bottom)).partition
    other = load_recipe(write(top="base: bottom.yaml\npartition: iid", bottom=bottom)).partition
    assert (same["alpha"], same["clients"]) == (5.0, 9)
    assert other["clients"] == 100


def test_one_of_a_pair_drops_the_other_of_the_base(write: Write) -> None:
    top = write(
        top="base: bottom.yaml\nclients_per_round: 4\nlocal: {steps: 21}\nforgetting: {every: 400}",
        bottom="participation: 0.3\nlocal: {epochs: 2}\nforgetting: {rounds: [1200]}",
    )
    loaded = load_recipe(top)
    assert (loaded.participation, loaded.clients_per_round) == (None, 4)
    assert (loaded.local.epochs, loaded.local.steps) == (None, 21)
    assert (loaded.forgetting.rounds, loaded.forgetting.every) == (None, 400)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ({"top": "base: bottom.yaml"}, r"^there is no recipe file 'bottom.yaml' \(a base of '.*top.yaml'\)$"),
        ({"top": "base: dem"}, r"^there is no recipe 'dem', .*; did you mean 'demo'\? \(a base of '.*top.yaml'\)$"),
        ({"top": "base: [demo]"}, r"top.yaml': base is \['demo'\]; a recipe's name or a file was expected$"),
        ({"top": "base: 3"}, r"top.yaml': base is 3; a recipe's name or a file was expected$"),
        ({"top": "base: .."}, r"^the recipe '\.\.' is a folder; .* \(a base of"),
        ({"top": "base: ''"}, r"^the recipe '' is a folder; .* \(a base of"),
        ({"top": 'base: "a\\0b"'}, r"^there is no recipe 'a\\x00b', by name or as a file \(a base of"),
        ({"top": f"base: {'x' * 300}"}, r"cannot be read: File name too long \(a base of"),
        ({"top": "base: top.yaml"}, r"top.yaml' is a base of itself: .*top.yaml, top.yaml$"),
        ({"top": "base: a.yaml", "a": "base: b.yaml", "b": "base: ../recipes/a.yaml"}, "is a base of itself"),
        ({"top": "base: bad.yaml", "bad": "rounds: ["}, r"^the recipe 'bad.yaml': it is not YAML.* \(a base of"),
        (
            {"top": "base: bad.yaml", "bad": "[1]"},
            r"'bad.yaml' is a list; keys .* were expected.* \(a base of",
        ),
        ({"top": "base: bad.yaml", "bad": "rounds: many"}, "^rounds is 'many'"),
    ],
    ids=str,
)
def test_a_base_that_is_none_is_one_sentence(write: Write, texts: dict[str, str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load_recipe(write(**texts))


def test_a_base_that_is_a_pipe_is_not_waited_for(write: Write, tmp_path: Path) -> None:
    top = write(top="base: pipe.yaml")
    os.mkfifo(tmp_path / "recipes" / "pipe.yaml")
    with pytest.raises(InputError, match=r"'pipe\.yaml': it is no regular file \(a base of"):
        load_recipe(top)


def test_bases_below_one_another_have_a_bound(write: Write) -> None:
    chain = {f"r{i}": f"base: r{i + 1}.yaml" for i in range(MOST_BASES)}
    with pytest.raises(InputError, match=f"has more than {MOST_BASES - 1} bases, one below the other"):
        load_recipe(write(**chain, **{f"r{MOST_BASES}": "rounds: 4"}))
    assert load_recipe(write(**{**chain, f"r{MOST_BASES - 1}": "rounds: 4"})).rounds == 4


def test_a_base_is_no_setting(write: Write) -> None:
    with pytest.raises(InputError, match="base is given as a setting, but it is a key of a recipe's file only"):
        load_recipe("demo", ["base=demo"])
    with pytest.raises(InputError, match="there is no key 'base'"):
        Recipe(base="demo")


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_copied_recipe_is_the_shipped_one_elsewhere(name: str, fedrecall: Any, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedrecall("recipes", "copy", name).code == 0
    assert load_recipe(f"{name}.yaml") == load_recipe(name)


def test_a_shown_recipe_is_its_file_and_what_it_comes_to(fedrecall: Any, write: Write) -> None:
    top = write(top="# Mine.\nbase: demo\n\nrounds: 5\n")
    head, below = fedrecall("recipes", "show", top, "seed=4").out.split("# This comes to:\n")
    assert head == "# # Mine.\n# base: demo\n#\n# rounds: 5\n#\n"
    assert below == load_recipe("demo", ["rounds=5", "seed=4"]).yaml()
