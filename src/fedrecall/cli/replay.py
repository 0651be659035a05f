"""The command `fedrecall replay`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from fedrecall.cli.options import (
    data_option,
    device_option,
    json_option,
    print_escaped,
    quiet_option,
    trust_option,
)
from fedrecall.recipe.files import Tree


@click.command(epilog="Example: fedrecall replay runs/mine --round 3 --client 7")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--round", "round_", type=int, required=True, metavar="R", help="The round, counted from 1.")
@click.option("--client", type=int, required=True, metavar="C", help="One of that round's clients.")
@device_option
@data_option
@click.option("--force", is_flag=True, help="Also with another recipe or other data than the run's.")
@trust_option
@quiet_option
@json_option
def replay(
    run: Path,
    round_: int,
    client: int,
    execution: Tree,
    force: bool,
    trust: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Repeat the training of one client in a round of RUN in this process, where breakpoint() works.

    The replay starts from the newest checkpoint before the round and changes nothing in the folder RUN.
    """
    from fedrecall.api.callbacks import Watching
    from fedrecall.api.execute import load_federation
    from fedrecall.api.run_recipe import load_run_recipe
    from fedrecall.runs.folder import RunFolder
    from fedrecall.simulation.experiment import build
    from fedrecall.simulation.progress import ProgressLine
    from fedrecall.simulation.replay import replay as train_again

    RunFolder.reopen(run)
    here = {**execution, "engine": "serial", "workers": "auto", "client_timeout": None}
    loaded = load_run_recipe(run, (), {"execution": here}, trust=trust)
    experiment = build(loaded, load_federation(loaded), run=run)
    with ProgressLine("the rounds before", round_ - 1, quiet=quiet or as_json) as progress:
        replayed = train_again(run, experiment, round_, client, [Watching(progress)], force=force)
    if as_json:
        click.echo(json.dumps(asdict(replayed)))
        return
    text = f"client {client} in round {round_}: loss {replayed.loss:.6g}, {replayed.steps} steps"
    norm = "" if replayed.update_norm is None else f", update norm {replayed.update_norm:.6g}"
    print_escaped(text + norm)
