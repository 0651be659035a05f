"""The command `fedrecall replay`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from fedrecall import config
from fedrecall.cli_options import data_option, execution, json_option


@click.command(epilog="Example: fedrecall replay runs/mine --round 3 --client 7")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--round", "round_", type=int, required=True, metavar="R", help="The round, counted from 1.")
@click.option("--client", type=int, required=True, metavar="C", help="One of that round's clients.")
@data_option
@json_option
def replay(run: Path, round_: int, client: int, data: str | None, as_json: bool) -> None:
    """Train one client of a round of RUN again in this process, where breakpoint() works.

    It starts from the newest checkpoint before the round. Nothing in the folder RUN is changed.
    """
    from fedrecall.record import RunFolder
    from fedrecall.replaying import newest_before
    from fedrecall.replaying import replay as train_again
    from fedrecall.run import load_federation, recipe_experiment

    RunFolder.reopen(run)
    here = execution(engine="serial", workers="auto", data=data)
    here["execution"]["client_timeout"] = None
    loaded = config.load(str(run / "recipe.yaml"), (), here)
    later = newest_before(run / "checkpoints", round_) is not None
    experiment = recipe_experiment(loaded, load_federation(loaded), resumed=later)
    replayed = train_again(run, experiment, round_, client)
    if as_json:
        click.echo(json.dumps(asdict(replayed)))
        return
    text = f"client {client} in round {round_}: loss {replayed.loss:.6g}, {replayed.steps} steps"
    norm = "" if replayed.update_norm is None else f", update norm {replayed.update_norm:.6g}"
    click.echo(text + norm)
