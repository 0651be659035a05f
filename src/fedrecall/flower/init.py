"""Write a small Flower app around a recipe."""

from __future__ import annotations

import json
import re
from importlib.resources import files as package_files
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from fedrecall.api.execute import load_federation
from fedrecall.display import count_of
from fedrecall.errors import InputError
from fedrecall.flower.app import RECIPE
from fedrecall.flower.samples import SampleKind
from fedrecall.flower.server import OF_RECIPE, refuse_what_needs_data
from fedrecall.recipe.display_titles import titles
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs.folder import explain_folder_errors

PATIENCE = 600.0  # seconds for an answer: without a limit, a lost node would block the run
PACKAGE = "federation"
OF_APP = ("pyproject.toml", "README.md")
OF_PACKAGE = ("server_app.py", "client_app.py")
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")  # app names that Flower accepts


def write_app(folder: Path, recipe: Recipe, nodes: Path | None = None) -> int:
    """Write the app to a new folder and return its number of clients. It contains no samples, only their kind."""
    name = folder.resolve().name
    if not NAME.fullmatch(name):
        raise InputError(
            f"the folder is called {name!r}, which is the app's name; small letters, digits and - were expected"
        )
    refuse_what_needs_data(recipe)
    with explain_folder_errors(folder):
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"the folder {str(folder)!r} is not empty; choose another")
        federation = load_federation(recipe)
        (folder / PACKAGE).mkdir(parents=True)
    recipe, timeout = with_whole_paths(recipe), recipe.execution.client_timeout or PATIENCE
    method = titles().method(recipe.tree()).replace('"', "'")
    size = f"{count_of(len(federation), 'client')}, {count_of(recipe.rounds, 'round')}"
    values = {
        "name": name,
        "package": PACKAGE,
        "description": f"{method} on {size}, by fedrecall.",
        "clients": len(federation),
        "timeout": float(timeout),
        "out": quoted(folder / "run"),
        "state": quoted(folder / "state"),
        "nodes": quoted(nodes) if nodes else '""',
        "test": json.dumps(OF_RECIPE if recipe.tested_rounds else ""),
    }
    for template in (*OF_APP, *OF_PACKAGE):
        place = folder / template if template in OF_APP else folder / PACKAGE / template
        place.write_text(rendered(template, values), encoding="utf-8")
    (folder / PACKAGE / "__init__.py").write_text(f'"""{values["description"]}"""\n', encoding="utf-8")
    # Keep the files of runs out of the app: Flower does not pack files that git ignores.
    (folder / ".gitignore").write_text("/run*/\n/state/\n", encoding="utf-8")
    (folder / PACKAGE / RECIPE).write_text(recipe.yaml(), encoding="utf-8")
    SampleKind.of(federation).write(folder / PACKAGE)
    return len(federation)


def with_whole_paths(recipe: Recipe) -> Recipe:
    """Return the recipe with absolute paths, because Flower runs an app in another folder.

    The client timeout goes to the app's configuration, so that the recipe also runs on an engine without one.
    """
    tree = recipe.tree()
    tree["execution"].pop("client_timeout", None)
    for group, key in (
        (tree["data"], "path"),
        (tree["data"], "test"),
        (tree["execution"], "data"),
        (tree, "init"),
    ):
        if isinstance(group.get(key), str) and Path(group[key]).expanduser().exists():
            group[key] = str(Path(group[key]).expanduser().resolve())
    return Recipe(**tree)


def quoted(path: Path) -> str:
    return json.dumps(str(path.resolve()))


def rendered(template: str, values: dict[str, object]) -> str:
    text = (package_files("fedrecall.flower") / "template" / f"{template}.jinja").read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    return environment.from_string(text).render(values)
