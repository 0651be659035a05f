"""The command `fedrecall reproduce`: tables and figures of the paper, or of any study with published results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedrecall.cli.options import (
    OPEN,
    execution_options,
    jobs_option,
    json_option,
    out_option,
    print_escaped,
    quiet_option,
    words_of,
)
from fedrecall.cli.sweep import tell
from fedrecall.display import count_of
from fedrecall.recipe.files import Tree

if TYPE_CHECKING:
    from fedrecall.studies.reproduce import Reproduction, ReproductionPlan


@click.command(
    context_settings=OPEN,
    epilog="Example: fedrecall reproduce table3 dataset=cifar10 lr=0.01,0.03 seeds=1 --dry-run",
)
@click.argument("what")
@click.argument("part", nargs=-1, type=click.UNPROCESSED, metavar="[KEY=V1,V2..]...")
@click.option("--rounds", type=int, metavar="N", help="A shorter version, never set against published numbers.")
@click.option(
    "--shrink", multiple=True, metavar="KEY=VALUE", help="The same by a setting, such as partition.clients=10."
)
@jobs_option
@click.option("--dry-run", is_flag=True, help="Say what there is to do and how long it takes, and do nothing.")
@out_option
@execution_options
@quiet_option
@json_option
def reproduce(
    what: str,
    part: tuple[str, ...],
    rounds: int | None,
    shrink: tuple[str, ...],
    jobs: int | None,
    dry_run: bool,
    out: Path | None,
    execution: Tree,
    quiet: bool,
    as_json: bool,
) -> None:
    """Reproduce a table or figure of the paper and show it beside the published numbers.

    WHAT is table1 .. table5, table2-readme, fig-forgetting, fig-convergence, fig-ablation-alpha, -fraction or
    -steps, fig-partitions, all, or the file of a study that names published results.

    Prints a plan first: the runs, their progress, and how long the rest takes on this machine. Then runs what is
    not done yet and shows the table or figure. KEY=V1,V2 selects a part by dataset, lr, norm, alpha, seeds, or any
    key of the recipe. The same command resumes a stopped reproduction.
    """
    from fedrecall.studies.design import shipped_studies
    from fedrecall.studies.reproduce import Reproduction

    results = []
    for name in shipped_studies() if what == "all" else [what]:
        inside = out / name if out is not None and what == "all" else out
        made = Reproduction.of(
            name, words_of(part), rounds=rounds, shrink=shrink, out=inside, jobs=jobs, execution=execution
        )
        if not as_json:
            about = made.asked.design.about
            print_escaped(f"{made.name}: {about}" if about else made.name)
        plan = made.plan(tell)
        if not as_json:
            show_reproduction_plan(plan)
        result = {"what": name, **plan_values(plan)}
        if not dry_run:
            study = made.execute(quiet=quiet or as_json)
            result |= show_result(made, study.path, made.draw(study), as_json=as_json)
        results.append(result)
    if as_json:
        click.echo(json.dumps(results if what == "all" else results[0]))


def plan_values(plan: ReproductionPlan) -> dict[str, Any]:
    return {
        "path": str(plan.folder.path),
        "runs": len(plan.states),
        "done": plan.done,
        "seconds": round(plan.seconds, 1),
        "bytes": round(plan.bytes),
    }


def show_reproduction_plan(plan: ReproductionPlan) -> None:
    """Print the cost of each kind of run that is left, then the progress and the total cost."""
    from fedrecall.report.tables import duration

    asked = plan.reproduction.asked
    if not plan.reproduction.trains:
        print_escaped(f"{len(plan.states)} partitions, nothing is trained; {plan.folder.path}")
        return
    for count, words, seconds in plan.kinds():
        print_escaped(f"  {count} x {words}: about {duration(seconds)} each")
    rest = "nothing is left to run"
    if plan.costs:
        rest = f"about {duration(plan.seconds)} with {asked.jobs} at once, {plan.bytes / 1e6:,.0f} MB"
    print_escaped(f"{count_of(len(plan.states), 'run')}, {plan.done} done; {rest}; {plan.folder.path}")


def show_result(made: Reproduction, folder: Path, figures: list[Path], *, as_json: bool) -> dict[str, Any]:
    """Write and print the tables, print the figures' paths, and return both as plain values."""
    from fedrecall.cli.output import show_table
    from fedrecall.studies.published_table import published_tables, write_tables

    tables = published_tables(made) if not made.asked.design.figures else {}
    write_tables(tables, folder)
    if not as_json:
        for table in tables.values():
            show_table(table)
            print_escaped("")
        for path in [*figures, folder]:
            print_escaped(str(path))
    shown = {name: [dict(zip(table.heading, row)) for row in table.rows] for name, table in tables.items()}
    notes = list(dict.fromkeys(note for table in tables.values() for note in table.notes))
    return {**shown, "notes": notes, "figures": [str(path) for path in figures]}
