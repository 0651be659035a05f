"""Options that several commands share, and parsing of the settings among the arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from fedrecall.display import printable_lines
from fedrecall.errors import InputError
from fedrecall.recipe.files import shipped_recipes

Command = TypeVar("Command", bound=Callable[..., object])

# Settings may be given as key=value, --key value or --key=value, so unknown options are let through.
OPEN = {"ignore_unknown_options": True}


def complete_recipe(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return the shipped recipes whose names begin with `typed`; if there are none, complete files."""
    names = [CompletionItem(name) for name in shipped_recipes() if name.startswith(typed)]
    return names or [CompletionItem(typed, type="file")]


recipe_argument = click.argument("recipe", shell_complete=complete_recipe)
settings_argument = click.argument("settings", nargs=-1, type=click.UNPROCESSED, metavar="[KEY=VALUE]...")
out_option = click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="The folder to write to.")
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
    help="Runs at once (default: as many as there are CPUs, or fit on the cluster).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def print_escaped(text: str, *, err: bool = False) -> None:
    """Print a text, with control characters escaped: names and values from files may contain them."""
    click.echo(printable_lines(text), err=err)


def execution_option(name: str, metavar: str, text: str) -> Callable[[Command], Command]:
    """Declare an option for a key of `execution`; the command receives all given ones as one dict."""
    return click.option(name, metavar=metavar, help=text, expose_value=False, callback=_collect)


def _collect(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    execution = context.params.setdefault("execution", {})
    if value is not None:
        execution[parameter.name] = value


device_option = execution_option("--device", "NAME", "Where clients train: auto, cpu, cuda, cuda:N, mps or xpu.")
data_option = execution_option("--data", "DIR", "Where data sets lie (default: the variable FEDRECALL_DATA).")
ENGINE_OPTIONS = (
    execution_option("--engine", "NAME", "auto, serial, processes, vectorised or ray."),
    execution_option("--ray-address", "HOST:PORT", "A Ray cluster to train on, by the engine ray."),
    execution_option("--workers", "N", "Worker processes: a number, or auto."),
    device_option,
)


def engine_options(command: Command) -> Command:
    """Declare the options that choose the engine and the device."""
    for option in reversed(ENGINE_OPTIONS):
        command = option(command)
    return command


def execution_options(command: Command) -> Command:
    """Declare every option of `execution`."""
    return engine_options(data_option(command))


def words_of(settings: tuple[str, ...]) -> list[str]:
    """Return settings as `key=value`, including those given as `--key value` or `--key=value`."""
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
