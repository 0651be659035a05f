"""What several commands share: their options, and the settings of a recipe that may follow them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from fedrecall.display import printable_lines
from fedrecall.errors import InputError
from fedrecall.recipe.files import shipped

# Settings of the recipe may follow as key=value, --key value or --key=value, so unknown options are let through.
OPEN = {"ignore_unknown_options": True}


def complete_recipe(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """The shipped recipes that begin so, or else files."""
    names = [CompletionItem(name) for name in shipped() if name.startswith(typed)]
    return names or [CompletionItem(typed, type="file")]


recipe_argument = click.argument("recipe", shell_complete=complete_recipe)
settings_argument = click.argument("settings", nargs=-1, type=click.UNPROCESSED, metavar="[KEY=VALUE]...")
out_option = click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="The folder to write to.")
data_option = click.option(
    "--data", metavar="DIR", help="Where data sets lie (default: the variable FEDRECALL_DATA)."
)
quiet_option = click.option("--quiet", is_flag=True, help="Show no progress.")
trust_option = click.option(
    "--trust", is_flag=True, help="Import the code that the run names, though it is not known as made by you here."
)
report_option = click.option(
    "--report/--no-report", default=True, help="Write report.html at the end (default), or not."
)
jobs_option = click.option(
    "--jobs",
    type=int,
    metavar="N",
    help="Runs at once (default: as many as there are CPUs, or room on the cluster).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def say(text: str, *, err: bool = False) -> None:
    """Print it, with nothing in it that a terminal obeys, whatever names and values it has from files."""
    click.echo(printable_lines(text), err=err)


device_option = click.option(
    "--device", metavar="NAME", help="Where clients train: auto, cpu, cuda, cuda:N, mps or xpu."
)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = device_option(command)
    command = click.option("--workers", metavar="N", help="Worker processes: a number, or auto.")(command)
    command = click.option(
        "--ray-address", metavar="HOST:PORT", help="A Ray cluster to train on, by the engine ray."
    )(command)
    return click.option("--engine", metavar="NAME", help="auto, serial, processes, vectorised or ray.")(command)


def words_of(settings: tuple[str, ...]) -> list[str]:
    """`--key value` and `--key=value` as `key=value`."""
    found, left = [], list(settings)
    while left:
        word = left.pop(0)
        if not word.startswith("--"):
            found.append(word)
        elif "=" in word:
            found.append(word[2:])
        elif left and not left[0].startswith("--"):
            found.append(f"{word[2:]}={left.pop(0)}")
        else:
            raise InputError(f"the setting {word!r} has no value; '{word} VALUE' was expected")
    return found


def execution(**given: str | None) -> dict[str, Any]:
    return {"execution": {key: value for key, value in given.items() if value is not None}}
