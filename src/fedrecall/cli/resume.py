"""The command `fedrecall resume`."""

from __future__ import annotations

from pathlib import Path

import click

from fedrecall.cli.options import (
    OPEN,
    execution_options,
    json_option,
    quiet_option,
    report_option,
    settings_argument,
    trust_option,
    words_of,
)
from fedrecall.errors import InputError
from fedrecall.recipe.files import Tree
from fedrecall.runs import files

MAY_CHANGE = ("rounds", "checkpoint.seconds", "checkpoint.every", "execution.client_timeout")


@click.command(context_settings=OPEN, epilog="Example: fedrecall resume runs/demo rounds=200")
@click.argument("run", type=click.Path(path_type=Path))
@settings_argument
@execution_options
@click.option("--force", is_flag=True, help="Go on with another recipe or another version of fedrecall.")
@trust_option
@click.option("--other-device", is_flag=True, help="Go on with another device, whose bits are others.")
@report_option
@quiet_option
@json_option
def resume(
    run: Path,
    settings: tuple[str, ...],
    execution: Tree,
    force: bool,
    trust: bool,
    other_device: bool,
    report: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Resume the run in the folder RUN from its last checkpoint; rounds=N makes it longer."""
    from fedrecall.api.execute import RunPlan, execute, load_federation
    from fedrecall.api.run_recipe import load_run_recipe
    from fedrecall.cli.output import show_results
    from fedrecall.recipe.display_titles import titles
    from fedrecall.runs.folder import RunFolder
    from fedrecall.simulation.experiment import build

    folder, words = RunFolder.reopen(run), words_of(settings)
    for word in words:
        if word.partition("=")[0] not in MAY_CHANGE:
            raise InputError(f"{word!r} is given, but a resumed run may change {', '.join(MAY_CHANGE)} only")
    # The recorded number of workers was chosen for the recorded engine.
    if "engine" in execution:
        execution.setdefault("workers", "auto")
    loaded = load_run_recipe(run, words, {"execution": execution}, trust=trust)
    experiment = build(loaded, load_federation(loaded), run=run)
    plan = RunPlan(experiment, folder, run.name, resume=True, force=force, other_device=other_device)
    page = run / files.REPORT if report else None
    (summary,) = execute([plan], report=page, quiet=quiet or as_json)
    title = titles().method(loaded.tree())
    show_results({title: {"path": str(run), **summary}}, page, as_json=as_json)
