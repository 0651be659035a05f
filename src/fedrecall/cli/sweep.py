"""The command `fedrecall sweep`: a recipe with several settings and seeds, or a study from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from fedrecall.cli.options import (
    OPEN,
    complete_recipe,
    execution_options,
    jobs_option,
    json_option,
    out_option,
    print_escaped,
    quiet_option,
    report_option,
    words_of,
)
from fedrecall.display import count_of, printable
from fedrecall.errors import InputError
from fedrecall.recipe.files import Tree

if TYPE_CHECKING:
    from fedrecall.studies.folder import State
    from fedrecall.studies.sweep import PlannedStudy, Study


def complete_study(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return the shipped studies and recipes whose names begin with `typed`; without such recipes, also files."""
    from fedrecall.studies.design import shipped_studies

    names = [CompletionItem(name) for name in shipped_studies() if name.startswith(typed)]
    return names + complete_recipe(context, parameter, typed)


@click.command(
    context_settings=OPEN,
    epilog="Example: fedrecall sweep demo objective=cross_entropy,wsm partition.alpha=0.1,0.5 --seeds 5",
)
@click.argument("recipe", shell_complete=complete_study)
@click.argument("settings", nargs=-1, type=click.UNPROCESSED, metavar="[KEY=V1,V2..]...")
@click.option("--seeds", metavar="N", help="How many seeds, or which: 5, or [3,4,9] (default: 1).")
@click.option("--same-partition", is_flag=True, default=None, help="Seeds leave the partition as it is.")
@click.option("--baseline", multiple=True, metavar="KEY=VALUE,..", help="What differences are to, paired by seeds.")
@click.option("--holm", is_flag=True, default=None, help="Also correct the p-values for all rows (Holm).")
@click.option("--choose", multiple=True, metavar="KEY", help="Take the value that is best on validation data.")
@jobs_option
@click.option("--dry-run", is_flag=True, help="List the runs, and how far they are, and do nothing.")
@click.option("--time", "timed", is_flag=True, help="With --dry-run: try some rounds, and say how long it will take.")
@out_option
@execution_options
@report_option
@quiet_option
@json_option
def sweep(
    recipe: str,
    settings: tuple[str, ...],
    seeds: str | None,
    same_partition: bool | None,
    baseline: tuple[str, ...],
    holm: bool | None,
    choose: tuple[str, ...],
    jobs: int | None,
    dry_run: bool,
    timed: bool,
    out: Path | None,
    execution: Tree,
    report: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run RECIPE with every combination of values and every seed; the same command resumes a stopped sweep.

    RECIPE is a shipped recipe or study, or a YAML file of either. KEY=V1,V2,.. gives the values of a key.
    With --engine ray, the runs are spread over the nodes of a Ray cluster.
    The exit code is 0 if every run finished, 3 if some diverged, 1 if some failed.
    """
    from fedrecall.studies.design import baseline_of, grid_of, load_design
    from fedrecall.studies.sweep import PlannedStudy, run_study

    given = {
        "seeds": None if seeds is None else one_value("--seeds", seeds),
        "same_partition": same_partition,
        "baseline": baseline_of(baseline) or None,
        "holm": holm,
        "choose": [key for word in choose for key in word.split(",")] or None,
    }
    design = load_design(recipe, grid_of(words_of(settings)), **given)
    asked = PlannedStudy.of(recipe, design, out, jobs, execution)
    if timed and not dry_run:
        raise InputError("--time is given, but it is for --dry-run: say that too")
    if dry_run:
        show_study_plan(asked, timed=timed, as_json=as_json)
        return
    study = run_study(asked, quiet=quiet or as_json, report=report)
    show_study(study, as_json=as_json)
    kinds = {state.kind for state in study.states.values()}
    if kinds != {"finished"}:
        raise SystemExit(3 if kinds <= {"finished", "diverged"} else 1)


def one_value(option: str, text: str) -> Any:
    """Return a number or a list, given with or without brackets."""
    from fedrecall.storage.safe_parsing import yaml_value

    try:
        return yaml_value(f"[{text}]" if "," in text and "[" not in text else text)
    except InputError as error:
        raise InputError(f"{option} is {text!r}, which is not a value: {error}") from None


def show_study_plan(asked: PlannedStudy, *, timed: bool, as_json: bool) -> None:
    """Print the runs with the progress of each, or everything as JSON."""
    from fedrecall.report.tables import duration
    from fedrecall.studies.estimate import costs, planned_seconds_left
    from fedrecall.studies.folder import OVER

    states = asked.states()
    left = [run for run in asked.runs if states[run.slot].kind not in OVER]
    seconds = planned_seconds_left(costs(left, tell), states, asked.jobs) if timed else None
    if as_json:
        runs = [
            {"cell": slot.cell, "seed": slot.seed, "state": state.kind, "rounds_done": state.rounds}
            for slot, state in states.items()
        ]
        click.echo(json.dumps({"path": str(asked.path), "jobs": asked.jobs, "seconds": seconds, "runs": runs}))
        return
    for run in asked.runs:
        state = states[run.slot]
        print_escaped(f"{run.slot.title}: {state_text(state)} of {run.recipe.rounds} rounds{place_text(state)}")
    done = sum(state.kind == "finished" for state in states.values())
    print_escaped(f"{count_of(len(states), 'run')}, {done} done, {asked.jobs} at once; {asked.path}")
    if seconds is not None:
        print_escaped(f"about {duration(seconds)} for what is left, if nothing else keeps this machine busy")


def tell(words: str) -> None:
    """Print what is about to be timed to stderr, at once."""
    click.echo(printable(words), err=True)


def state_text(state: State) -> str:
    return f"{state.kind}, {state.rounds}" if state.kind != "finished" else "finished, all"


def place_text(state: State) -> str:
    """Return where a finished run of another study is, which this one takes over."""
    return f", {state.words}" if state.kind == "finished" and state.words else ""


def show_study(study: Study, *, as_json: bool) -> None:
    """Print the table and the path of the report or study, or everything as JSON."""
    from fedrecall.cli.output import show_table
    from fedrecall.runs import files
    from fedrecall.studies.table_texts import study_text_table

    table, page = study.result(), study.path / files.REPORT
    if as_json:
        where = {"path": str(study.path), "report": str(page) if page.exists() else None}
        click.echo(json.dumps({**where, "table": table.records(), "notes": table.notes}))
        return
    show_table(study_text_table(table))
    print_escaped(str(page if page.exists() else study.path))
