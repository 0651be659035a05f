"""The command `fedrecall diagnose`: what one round makes a user's model forget, and what WSM changes."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedrecall.cli.options import (
    OPEN,
    execution_options,
    json_option,
    out_option,
    print_escaped,
    quiet_option,
    settings_argument,
    trust_option,
    words_of,
)
from fedrecall.errors import InputError
from fedrecall.recipe.files import Tree, shipped_recipes
from fedrecall.runs import files

if TYPE_CHECKING:
    from rich.table import Table

    from fedrecall.api.diagnose import StartingPoint
    from fedrecall.api.diagnosis import Diagnosis
    from fedrecall.recipe.recipe import Recipe
    from fedrecall.runs.reader import RunRecord

# The command imports the training code itself: the import would delay --help by a second.


@click.command(
    context_settings=OPEN,
    epilog="Example: fedrecall diagnose demo data=npz data.path=my.npz model=mymodel:net --weights my.safetensors",
)
@click.argument("source", metavar="RUN|RECIPE")
@settings_argument
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The weights to start from, a safetensors file (default: those of the run; of a recipe, untrained ones).",
)
@click.option(
    "--clients",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many clients train (default: as in the recipe, but at least ten, or all).",
)
@out_option
@execution_options
@trust_option
@quiet_option
@json_option
def diagnose(
    source: str,
    settings: tuple[str, ...],
    weights: Path | None,
    clients: int | None,
    out: Path | None,
    execution: Tree,
    trust: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Report what one round of local training makes a model forget, and what WSM changes.

    RUN is the folder of a finished run, whose model and data are used. RECIPE is a shipped recipe's name or a YAML
    file; it or the settings name your data and model: data=npz data.path=my.npz model=mymodel:net. One round is
    trained with cross-entropy and one with WSM, from the same weights.
    """
    from fedrecall.api.diagnose import examine, refuse_fixed, start_from_weights
    from fedrecall.api.execute import load_federation
    from fedrecall.api.pairing import check_is_wsm
    from fedrecall.api.run_recipe import load_run_recipe
    from fedrecall.objectives import WSM
    from fedrecall.recipe.layers import from_words
    from fedrecall.recipe.layers import load_recipe as load_recipe

    words = words_of(settings)
    typed = from_words(words)
    refuse_fixed(typed)
    run = run_at(source)
    here = {"execution": execution}
    recipe = load_run_recipe(run.path, words, here, trust=trust) if run else load_recipe(source, words, here)
    refuse_python(recipe, source)
    if "objective" in typed:
        check_is_wsm(recipe, "a diagnosis")
    objective = recipe.create("objective") if recipe.objective["name"] == "wsm" else WSM()
    start = start_from_weights(weights) if weights else start_of(run, recipe)
    if run and not {"data", "partition"} & set(typed):
        start = replace(start, partition=run.card.get("digest"))
    federation = load_federation(recipe)
    make_model = partial(
        recipe.create, "model", sample_shape=federation.sample_shape, num_classes=federation.num_classes
    )
    show(
        examine(recipe, make_model, federation, objective, start, clients, out, quiet=quiet or as_json),
        as_json=as_json,
    )


def run_at(source: str) -> RunRecord | None:
    """Return the run in the folder `source`; None if `source` is a recipe."""
    from fedrecall.runs.reader import is_run, load_run, runs_in

    folder = Path(source)
    if source in shipped_recipes() or not folder.is_dir():
        return None
    inside = [path.name for path in runs_in(folder)]
    if inside and not is_run(folder):
        raise InputError(f"the folder {source!r} holds several runs; choose one: {', '.join(inside)}")
    return load_run(folder)


def refuse_python(recipe: Recipe, source: str) -> None:
    from fedrecall.recipe.recipe import FROM_PYTHON

    for section in ("data", "partition", "model"):
        if getattr(recipe, section)["name"] == FROM_PYTHON["name"]:
            raise InputError(
                f"the recipe of {source!r} cannot build its {section} again (name: python); from Python, "
                "fedrecall.diagnose(model, federation, weights=...) can"
            )


def start_of(run: RunRecord | None, recipe: Recipe) -> StartingPoint:
    """Return the final weights of the run; without a run, an untrained start."""
    from fedrecall.api.diagnose import StartingPoint
    from fedrecall.models.weights import read_weights

    if run is None:
        return StartingPoint("a new model", untrained=True)
    path = run.path / files.MODEL
    if not path.is_file():
        reason = "it is not finished, or the file was deleted"
        if recipe.algorithm["name"] == "local_only":
            reason = "with algorithm 'local_only' every client has its own"
        raise InputError(f"the run {str(run.path)!r} has no model.safetensors: {reason}; give weights with --weights")
    return StartingPoint(f"the model of {str(run.path)!r}", read_weights(path), of_run=True)


def show(diagnosis: Diagnosis, *, as_json: bool) -> None:
    """Print the sentences, a table, the notes and the report's path, or everything as JSON."""
    if as_json:
        click.echo(json.dumps(diagnosis.tree()))
        return
    for sentence in diagnosis.sentences:
        print_escaped(f"{sentence}\n")
    from rich.console import Console

    Console().print(table(diagnosis))
    for note in diagnosis.notes:
        print_escaped(f"note: {note}")
    print_escaped(str(diagnosis.report))


def table(diagnosis: Diagnosis) -> Table:
    from rich.table import Table

    from fedrecall.api.diagnosis import HEAD

    shown = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for title in HEAD:
        shown.add_column(title, justify="left" if title is HEAD[0] else "right")
    for row in diagnosis.table():
        shown.add_row(*row)
    return shown
