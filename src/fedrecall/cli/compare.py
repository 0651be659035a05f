"""The command `fedrecall compare`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fedrecall.cli.options import json_option


@click.command(epilog="Example: fedrecall compare runs/plain runs/wsm --accuracy 0.6")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--accuracy", type=float, multiple=True, metavar="A", help="When is this accuracy reached? (0 to 1)")
@json_option
def compare(runs: tuple[Path, ...], accuracy: tuple[float, ...], as_json: bool) -> None:
    """Compare each method with the first one, paired by seeds.

    RUN is the folder of a run, of several runs or of a study. Runs that differ only in their seeds are one method.
    """
    from fedrecall.cli.output import show_table
    from fedrecall.studies.compare import compare as compared

    found = compared(list(runs), accuracy)
    if as_json:
        click.echo(json.dumps(found.records()))
        return
    show_table(found.table())
