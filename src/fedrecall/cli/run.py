"""The command `fedrecall run`."""

from __future__ import annotations

from pathlib import Path

import click

from fedrecall.cli.options import (
    OPEN,
    execution_options,
    json_option,
    out_option,
    quiet_option,
    recipe_argument,
    report_option,
    settings_argument,
    words_of,
)
from fedrecall.recipe.files import Tree
from fedrecall.runs import files


@click.command(
    context_settings=OPEN,
    epilog="Example: fedrecall run demo objective=cross_entropy --seed 1 --out runs/a",
)
@recipe_argument
@settings_argument
@out_option
@execution_options
@report_option
@quiet_option
@json_option
def run(
    recipe: str,
    settings: tuple[str, ...],
    out: Path | None,
    execution: Tree,
    report: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run RECIPE, a shipped recipe's name or a YAML file.

    KEY=VALUE or --KEY VALUE overrides a setting of the recipe; nested keys have dots: local.lr=0.05.
    """
    from fedrecall.api.execute import RunPlan, execute, load_federation, new_folder
    from fedrecall.cli.output import show_results
    from fedrecall.recipe.display_titles import titles
    from fedrecall.recipe.layers import load_recipe
    from fedrecall.simulation.experiment import build

    loaded = load_recipe(recipe, words_of(settings), {"execution": execution})
    experiment = build(loaded, load_federation(loaded))
    name = Path(recipe).stem
    folder = new_folder(out, name)
    page = folder.path / files.REPORT if report else None
    (summary,) = execute([RunPlan(experiment, folder, name)], report=page, quiet=quiet or as_json)
    title = titles().method(loaded.tree())
    show_results({title: {"path": str(folder.path), **summary}}, page, as_json=as_json)
