"""The command `fedrecall calibrate`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from fedrecall.cli.options import data_option, json_option, print_escaped, trust_option
from fedrecall.recipe.files import Tree


@click.command(epilog="Example: fedrecall calibrate runs/mine")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--samples", type=int, default=1000, show_default=True, metavar="N", help="Features drawn for a class.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Where the calibrated model is written.")
@data_option
@trust_option
@json_option
def calibrate(run: Path, samples: int, out: Path | None, execution: Tree, trust: bool, as_json: bool) -> None:
    """Refit the last layer of the model of a finished RUN on the classes' Gaussian features (CCVR).

    Each client would send the number of its samples of each class with the mean and covariance of their features. The
    run's own files are not changed; the calibrated model is written beside them.
    """
    from fedrecall.api.calibration import calibrate as calibrate_run

    found = calibrate_run(run, samples, out=out, execution=execution, trust=trust)
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    print_escaped(
        f"test accuracy {100 * found.before:.2f} % -> {100 * found.after:.2f} %, mean over classes "
        f"{100 * found.by_class_before:.2f} % -> {100 * found.by_class_after:.2f} %\n{found.model}"
    )
