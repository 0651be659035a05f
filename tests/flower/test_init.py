"""`fedrecall flower init`: an app that Flower takes, and what is refused."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flower_grid import app_of
from flwr.cli.build import build_fab_from_disk
from flwr.common.config import validate_config
from flwr.common.constant import FAB_MAX_SIZE

from fedrecall.cli.flower import init
from fedrecall.recipe.layers import load_recipe

WORDS = ["partition.clients=3", "rounds=2"]


@pytest.fixture
def made(tmp_path: Path, fedrecall: Any) -> Path:
    done = fedrecall("flower", "init", str(tmp_path / "my-app"), "--recipe", "demo", *WORDS)
    assert done.code == 0, done.err
    return tmp_path / "my-app"


def test_the_example_of_its_help_works(tmp_path: Path, fedrecall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(str(init.epilog).partition(": ")[2])[1:]
    assert " ".join(words) in " ".join(fedrecall(*words[:2], "--help").out.split())
    assert fedrecall(*words).code == 0
    assert (tmp_path / "my-app" / "pyproject.toml").exists()


def test_the_app_is_small_and_complete(made: Path) -> None:
    files = sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file())
    assert files == [
        ".gitignore",
        "README.md",
        "federation/__init__.py",
        "federation/client_app.py",
        "federation/recipe.yaml",
        "federation/samples.json",
        "federation/server_app.py",
        "pyproject.toml",
    ]
    for name in ("server_app", "client_app"):
        assert len((made / "federation" / f"{name}.py").read_text().splitlines()) < 15


def test_flower_finds_nothing_wrong_with_it(made: Path) -> None:
    config = tomllib.loads((made / "pyproject.toml").read_text())
    good, errors, warnings = validate_config(config, check_module=True, project_dir=made)
    assert (good, errors, warnings) == (True, [], [])


def test_it_lists_no_dependencies_and_says_why(made: Path) -> None:
    text = (made / "pyproject.toml").read_text()
    assert tomllib.loads(text)["project"]["dependencies"] == []
    assert "uv sync" in text


def test_what_is_sent_to_the_nodes_is_the_app_and_nothing_that_runs_left(made: Path) -> None:
    for folder in ("run", "state"):
        (made / folder).mkdir()
        (made / folder / "secret.json").write_text("{}")
    fab = build_fab_from_disk(made)
    assert len(fab) < FAB_MAX_SIZE / 100
    assert b"recipe.yaml" in fab
    assert b"samples.json" in fab
    assert b"secret" not in fab


def test_it_has_what_flower_hub_asks_for(made: Path) -> None:
    config = tomllib.loads((made / "pyproject.toml").read_text())
    assert config["project"]["name"] == "my-app"
    assert 0 < len(config["project"]["description"]) < 200
    assert config["project"]["license"] == "Apache-2.0"
    assert config["tool"]["flwr"]["app"]["publisher"]


def test_the_apps_can_be_imported(made: Path) -> None:
    for name in ("server_app", "client_app"):
        assert callable(app_of(made, name))


def test_its_recipe_is_the_one_that_was_named_and_runs_without_flower(
    made: Path, tmp_path: Path, fedrecall: Any
) -> None:
    path = made / "federation" / "recipe.yaml"
    assert load_recipe(str(path)).method_digest() == load_recipe("demo", WORDS).method_digest()
    done = fedrecall("run", path, "--engine", "serial", "--out", tmp_path / "run", "--quiet", "--no-report")
    assert done.code == 0, done.err


@pytest.mark.parametrize(("words", "seconds"), [([], 600.0), (["execution.client_timeout=45"], 45.0)])
def test_the_limit_to_patience_is_the_apps(tmp_path: Path, fedrecall: Any, words: list[str], seconds: float) -> None:
    folder = tmp_path / "app"
    assert fedrecall("flower", "init", folder, "--recipe", "demo", *WORDS, *words).code == 0
    config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["client-timeout"] == seconds
    assert load_recipe(str(folder / "federation" / "recipe.yaml")).execution.client_timeout is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["My App", "--recipe", "demo"], "the folder is called 'My App', which is the app's name"),
        (["full", "--recipe", "demo"], "is not empty; choose another"),
        (["app", "--recipe", "dmeo"], "did you mean 'demo'?"),
        (["app", "--recipe", "demo", "algorithm=centralised"], "a bound for simulations"),
        (["app", "--recipe", "demo", "partition.held_out=2"], "partition.held_out is not 0"),
        (
            ["app", "--recipe", "demo", "evaluation.metrics=[numpy:mean]"],
            "on a federation these stay with the nodes",
        ),
        (["app"], "Missing option '--recipe'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, fedrecall: Any, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    done = fedrecall("flower", "init", *words)
    assert done.code == 2
    assert sentence in done.err
    assert not (tmp_path / "app").exists()
