"""The commands of `fedrecall flower`."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

import click

from fedrecall.cli.options import OPEN, data_option, print_escaped, settings_argument, words_of
from fedrecall.errors import InputError
from fedrecall.recipe.files import Tree


@click.group()
def flower() -> None:
    """Run a recipe on real clients with Flower."""


@flower.command(context_settings=OPEN, epilog="Example: fedrecall flower init my-app --recipe demo partition.clients=3")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@settings_argument
@click.option("--recipe", required=True, metavar="RECIPE", help="A shipped recipe's name or a YAML file.")
@click.option("--nodes", type=click.Path(path_type=Path), metavar="DIR", help="For simulations: files of the clients.")
@data_option
def init(folder: Path, settings: tuple[str, ...], recipe: str, nodes: Path | None, execution: Tree) -> None:
    """Write a Flower app around a recipe into the new folder DIR, and print the commands that run it.

    KEY=VALUE overrides a setting of the recipe. The recipe's data are read here for the shape, type and classes
    of a sample; the nodes have their own. With --nodes, simulated clients read the files that `fedrecall partition
    --export` wrote there.
    """
    if find_spec("flwr") is None:
        raise InputError("fedrecall flower needs the extra flower: pip install 'fedrecall[flower]'")
    from fedrecall.flower.app import RECIPE
    from fedrecall.flower.init import PACKAGE, write_app
    from fedrecall.recipe.layers import load_recipe

    loaded = load_recipe(recipe, words_of(settings), {"execution": execution})
    clients = write_app(folder, loaded, nodes)
    place = shlex.quote(str(folder))
    print_escaped(f"an app for {clients} clients is in {place}; its README.md says how to run it on real nodes")
    print_escaped("all on this machine, simulated:")
    print_escaped(f"    flwr run {place} local --stream --federation-config 'num-supernodes={clients}'")
    print_escaped("the same without Flower, to the bit if the nodes' data are those of the recipe:")
    print_escaped(f"    fedrecall run {shlex.quote(str(folder / PACKAGE / RECIPE))} --engine serial")
    print_escaped("on a federation that is set up as the README says:")
    print_escaped(f"    flwr run {place} real --stream")
