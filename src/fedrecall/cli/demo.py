"""The command `fedrecall demo`: the same recipe with cross-entropy and with WSM, side by side."""

from __future__ import annotations

from pathlib import Path

import click

from fedrecall.cli.options import (
    OPEN,
    engine_options,
    execution,
    json_option,
    out_option,
    quiet_option,
    settings_argument,
    words_of,
)

TITLES = {"cross_entropy": "FedAvg", "wsm": "FedAvg + WSM"}


@click.command(context_settings=OPEN, epilog="Example: fedrecall demo seed=3 partition.alpha=0.05")
@settings_argument
@out_option
@engine_options
@quiet_option
@json_option
def demo(
    settings: tuple[str, ...],
    out: Path | None,
    engine: str | None,
    workers: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Cross-entropy against WSM on embedded data, ending in a report.

    Settings over the recipe `demo` may follow as KEY=VALUE.
    """
    from fedrecall.cli.output import show_results
    from fedrecall.front.federate import load_federation, recipe_experiment
    from fedrecall.recipe.layers import load
    from fedrecall.recipe.recipe import Recipe
    from fedrecall.report.page import write_report
    from fedrecall.runs.folder import RunFolder
    from fedrecall.simulation.loop import carry_out
    from fedrecall.simulation.progress import ProgressLine

    recipe = load("demo", words_of(settings), execution(engine=engine, workers=workers))
    # Both runs have the same partition, initial weights and sampled clients.
    federation = load_federation(recipe)
    recipes = {name: Recipe(**{**recipe.tree(), "objective": name}) for name in TITLES}
    experiments = {name: recipe_experiment(chosen, federation) for name, chosen in recipes.items()}
    parent = RunFolder.create(out) if out else RunFolder.create_new(Path("runs"), "demo")
    summaries = {}
    for name, title in TITLES.items():
        with ProgressLine(title, recipe.rounds, quiet=quiet or as_json) as progress:
            summaries[title] = carry_out(experiments[name], RunFolder.create(parent.path / name), progress)
    report = write_report([parent.path / name for name in TITLES], parent.path / "report.html")
    show_results(summaries, report, as_json=as_json)
