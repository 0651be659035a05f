"""The commands `fedrecall recipes`: list, show and copy."""

from __future__ import annotations

from pathlib import Path

import click

from fedrecall.cli.options import OPEN, print_escaped, recipe_argument, settings_argument, words_of
from fedrecall.errors import InputError, nearest
from fedrecall.recipe.files import place_of, shipped_recipes, text_of


@click.group(invoke_without_command=True)
@click.pass_context
def recipes(context: click.Context) -> None:
    """List, show and copy the shipped recipes."""
    if context.invoked_subcommand is None:
        context.invoke(list_recipes)


@recipes.command("list")
def list_recipes() -> None:
    """List the shipped recipes, one per line."""
    known = shipped_recipes()
    for name, path in known.items():
        first = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()
        print_escaped(f"{name:{max(map(len, known))}}  {first}")


@recipes.command("show", context_settings=OPEN)
@click.argument("recipe", required=False)
@settings_argument
@click.option("--defaults", is_flag=True, help="Every key there is, with its default and its meaning.")
def show_recipe(recipe: str | None, settings: tuple[str, ...], defaults: bool) -> None:
    """Print RECIPE with every key spelled out, after its file as a comment."""
    from fedrecall.recipe.layers import load_recipe
    from fedrecall.recipe.reference import reference

    if defaults:
        print_escaped(reference())
    elif recipe is None:
        raise InputError(f"a recipe's name is missing; {nearest('', shipped_recipes())}")
    else:
        loaded = load_recipe(recipe, words_of(settings))
        print_escaped("\n".join(f"# {line}".rstrip() for line in text_of(place_of(recipe)).splitlines()))
        print_escaped("#\n# This comes to:")
        click.echo(loaded.yaml(), nl=False)


@recipes.command("copy")
@recipe_argument
@click.argument("target", required=False, type=click.Path(path_type=Path))
def copy_recipe(recipe: str, target: Path | None) -> None:
    """Copy the shipped RECIPE to TARGET (default: RECIPE.yaml) for editing."""
    known = shipped_recipes()
    if recipe not in known:
        raise InputError(f"there is no shipped recipe {recipe!r}; {nearest(recipe, known)}")
    target = target or Path(f"{recipe}.yaml")
    if target.is_dir():
        target = target / f"{recipe}.yaml"
    if target.exists():
        raise InputError(f"the file {str(target)!r} is there already")
    try:
        target.write_text(known[recipe].read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise InputError(f"the file {str(target)!r} cannot be written: {error.strerror}") from None
    print_escaped(str(target))
