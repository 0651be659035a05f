"""The command `fedrecall demo`: the same recipe with cross-entropy and with WSM, side by side."""

from __future__ import annotations

from pathlib import Path

import click

from fedrecall.cli.options import (
    OPEN,
    engine_options,
    json_option,
    out_option,
    quiet_option,
    report_option,
    settings_argument,
    words_of,
)
from fedrecall.recipe.files import Tree
from fedrecall.runs import files


@click.command(context_settings=OPEN, epilog="Example: fedrecall demo seed=3 partition.alpha=0.05")
@settings_argument
@out_option
@engine_options
@report_option
@quiet_option
@json_option
def demo(
    settings: tuple[str, ...],
    out: Path | None,
    execution: Tree,
    report: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare cross-entropy with WSM on embedded data and write a report.

    KEY=VALUE overrides a setting of the recipe `demo`.
    """
    from fedrecall.api.execute import execute, load_federation
    from fedrecall.api.pairing import check_is_wsm, plan_both, with_both_objectives
    from fedrecall.cli.output import show_results
    from fedrecall.recipe.display_titles import titles
    from fedrecall.recipe.layers import load_recipe
    from fedrecall.simulation.experiment import build

    recipe = load_recipe("demo", words_of(settings), {"execution": execution})
    # Both runs have the same partition, initial weights and sampled clients.
    federation = load_federation(recipe)
    check_is_wsm(recipe, "the demo", "; for others: fedrecall run demo objective=NAME")
    recipes = with_both_objectives(recipe, recipe.objective)
    experiments = {name: build(chosen, federation) for name, chosen in recipes.items()}
    methods = {name: titles().method(chosen.tree()) for name, chosen in recipes.items()}
    parent, plans = plan_both(experiments, out, "demo", methods)
    page = parent.path / files.REPORT if report else None
    summaries = execute(plans, report=page, quiet=quiet or as_json)
    show_results({plan.title: summary for plan, summary in zip(plans, summaries)}, page, as_json=as_json)
