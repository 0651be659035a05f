"""The command `fedrecall report`: the page about runs, and figures for a paper."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fedrecall.cli.options import json_option, print_escaped
from fedrecall.errors import InputError
from fedrecall.runs import files

# The command imports the plotting code itself: the import would delay --help by a second.


@click.command(epilog="Example: fedrecall report runs/a runs/b --out comparison --figures")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A folder, or the page's name ending in .html (default: report.html in the one folder given, else here).",
)
@click.option("--figures", is_flag=True, help="Also write figures/ beside it: PNG, SVG and PDF.")
@click.option("--rounds", metavar="N,N..", help="The probed rounds of the figures' matrices (default: the last).")
@click.option(
    "--method", "chosen", multiple=True, metavar="LABEL", help="Figures of this method only; may be repeated."
)
@click.option("--band", metavar="BAND", help="Of figures: deviation, interval, range or none (default: deviation).")
@click.option("--size", metavar="SIZE", help="Of figures: inches as 3.5x2.4 or 3.5 (width), or column, or page.")
@click.option("--font-size", type=float, metavar="PT", help="Of figures (default: 9).")
@json_option
def report(
    runs: tuple[Path, ...],
    out: Path | None,
    figures: bool,
    rounds: str | None,
    chosen: tuple[str, ...],
    band: str | None,
    size: str | None,
    font_size: float | None,
    as_json: bool,
) -> None:
    """Write report.html about one or more runs: one file that works offline.

    RUN is the folder of a run or of several runs. Runs that differ only in their seeds are one method.
    """
    from fedrecall.recipe.display_titles import titles
    from fedrecall.report.comparison import group_methods
    from fedrecall.report.page import write_page
    from fedrecall.runs.reader import find_runs, load_run

    wanted = _round_numbers(rounds) if rounds else ()
    if wanted and not figures:
        raise InputError(f"--rounds is {rounds!r}, but it is for the figures: say --figures too")
    given = {"methods": chosen or None, "band": band, "size": size, "font_size": font_size}
    given = {key: value for key, value in given.items() if value is not None}
    if given and not figures:
        raise InputError(f"{_option(next(iter(given)))} is given, but it is for the figures: say --figures too")
    methods = group_methods([load_run(path) for path in find_runs(list(runs))], titles())
    if figures:
        from fedrecall.report.figures.options import FigureOptions

        options = FigureOptions(**given)  # type: ignore[arg-type]
        options.choose(methods)  # before anything is written
    page = write_page(methods, _page_path(runs, out))
    written: list[Path] = []
    if figures:
        from fedrecall.report.figures.write import write_figures

        written = write_figures(methods, page.parent / "figures", wanted, options=options)
    if as_json:
        click.echo(json.dumps({"report": str(page), "figures": [str(path) for path in written]}))
        return
    for path in written:
        print_escaped(str(path))
    print_escaped(str(page))


def _option(key: str) -> str:
    return {"methods": "--method", "font_size": "--font-size"}.get(key, f"--{key}")


def _page_path(runs: tuple[Path, ...], out: Path | None) -> Path:
    if out is None:
        return (runs[0] if len(runs) == 1 else Path()) / files.REPORT
    return out if out.suffix.lower() in (".html", ".htm") and not out.is_dir() else out / files.REPORT


def _round_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise InputError(f"--rounds is {text!r}; numbers of rounds were expected, as in 1200,3600") from None
