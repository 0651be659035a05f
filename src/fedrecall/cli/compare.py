"""The command `fedrecall compare`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fedrecall.cli.options import json_option
from fedrecall.errors import InputError

KINDS = {"tex": "latex", "md": "markdown", "csv": "csv"}  # methods of a table, by ending


@click.command(epilog="Example: fedrecall compare runs/plain runs/wsm --accuracy 0.6")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--accuracy", type=float, multiple=True, metavar="A", help="When is this accuracy reached? (0 to 1)")
@click.option("--baseline", multiple=True, metavar="KEY=VALUE,..", help="What differences are to (default: the first).")
@click.option("--holm", is_flag=True, help="Also correct the p-values for all rows (Holm).")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Also write the table to a file: .tex, .md or .csv."
)
@json_option
def compare(
    runs: tuple[Path, ...],
    accuracy: tuple[float, ...],
    baseline: tuple[str, ...],
    holm: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare each method with the first one or a baseline, paired by seeds: one table of several studies.

    RUN is the folder of a run, of several runs or of a study. Runs that differ only in their seeds are one method.
    """
    from fedrecall.cli.output import show_table
    from fedrecall.storage.atomic_files import write_text
    from fedrecall.studies.compare import compare as compared
    from fedrecall.studies.design import baseline_of

    kind = "" if out is None else out.suffix.lower().lstrip(".")
    if kind not in ("", *KINDS) or (out is not None and not kind):
        raise InputError(f"--out is {str(out)!r}; a file ending in .tex, .md or .csv was expected")
    found = compared(list(runs), accuracy, baseline_of(baseline), holm=holm)
    if out is not None:
        write_text(out, getattr(found.table(), KINDS[kind])())
    if as_json:
        click.echo(json.dumps(found.records()))
        return
    show_table(found.table())
