"""The command line. Each command reads its words, calls one function of the package, and shows what came out."""

from __future__ import annotations

import contextlib
import errno
import json
import signal
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console

from fedrecall import config
from fedrecall.cli_data import data as data_commands
from fedrecall.cli_diagnose import diagnose as diagnose_command
from fedrecall.cli_options import (
    OPEN,
    data_option,
    engine_options,
    execution,
    json_option,
    out_option,
    quiet_option,
    recipe_argument,
    settings_argument,
    words_of,
)
from fedrecall.cli_replay import replay as replay_command
from fedrecall.cli_report import report as report_command
from fedrecall.cli_resume import resume as resume_command
from fedrecall.errors import ClientError, DivergedError, InputError, Interrupted, nearest
from fedrecall.own_code import their_traceback
from fedrecall.version import __version__

LONGEST = 2000  # characters of an error's sentence


@click.group(epilog="Start with: fedrecall demo")
@click.version_option(__version__, message="%(prog)s %(version)s")
def fedrecall() -> None:
    """Federated learning on clients whose labels differ, without the forgetting."""


@fedrecall.command(context_settings=OPEN, epilog="Example: fedrecall demo seed=3 partition.alpha=0.05")
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
    from fedrecall.demo import run_demo  # torch and matplotlib take a second: not for --help

    recipe = config.load("demo", words_of(settings), execution(engine=engine, workers=workers))
    summaries, report = run_demo(recipe, out, quiet=quiet or as_json)
    show_results(summaries, report, as_json=as_json)


@fedrecall.command(
    context_settings=OPEN,
    epilog="Example: fedrecall run demo objective=cross_entropy --seed 1 --out runs/a",
)
@recipe_argument
@settings_argument
@out_option
@engine_options
@data_option
@quiet_option
@json_option
def run(
    recipe: str,
    settings: tuple[str, ...],
    out: Path | None,
    engine: str | None,
    workers: str | None,
    data: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run RECIPE, a shipped recipe's name or a YAML file.

    Settings over the recipe's may follow as KEY=VALUE or --KEY VALUE, with dots: local.lr=0.05.
    """
    from fedrecall.progress import ProgressLine
    from fedrecall.record import RunFolder
    from fedrecall.report.page import write_report
    from fedrecall.run import load_federation, recipe_experiment
    from fedrecall.running import carry_out

    loaded = config.load(recipe, words_of(settings), execution(engine=engine, workers=workers, data=data))
    experiment = recipe_experiment(loaded, load_federation(loaded))
    name = Path(recipe).stem
    folder = RunFolder.create(out) if out else RunFolder.create_new(Path("runs"), name)
    with ProgressLine(name, loaded.rounds, quiet=quiet or as_json) as progress:
        summary = carry_out(experiment, folder, progress)
    report = write_report([folder.path], folder.path / "report.html")
    title = f"{loaded.algorithm['name']} + {loaded.objective['name']}"
    show_results({title: {"path": str(folder.path), **summary}}, report, as_json=as_json)


def show_results(summaries: dict[str, dict[str, Any]], report: Path, *, as_json: bool) -> None:
    """A table and the path of the report, or all of it as JSON."""
    if as_json:
        click.echo(json.dumps({"report": str(report), "runs": summaries}))
        return
    from fedrecall.report.terminal import result_table

    Console().print(result_table(summaries))
    for name, summary in summaries.items():
        for warning in summary["warnings"]:
            click.echo(f"note: {name}: {warning}")
    engines = dict.fromkeys(f"{summary['engine']} ({summary['workers']})" for summary in summaries.values())
    click.echo(f"engine (workers): {', '.join(engines)}")
    click.echo(str(report))


@fedrecall.command(
    context_settings=OPEN, epilog="Example: fedrecall partition demo partition.alpha=0.5 --out my-partition"
)
@recipe_argument
@settings_argument
@out_option
@click.option("--export", type=click.Path(path_type=Path), metavar="DIR", help="Also write one file per client.")
@data_option
@json_option
def partition(
    recipe: str, settings: tuple[str, ...], out: Path | None, export: Path | None, data: str | None, as_json: bool
) -> None:
    """Show who gets which data in RECIPE: the card and a picture of class shares.

    With --out, partition.npz, partition.json and partition.png are written there. With --export, the samples and
    labels of each client are written as client-N.npz, to be given to the nodes of a deployment.
    """
    from fedrecall.data.card import card
    from fedrecall.data.export import export_clients
    from fedrecall.record import RunFolder
    from fedrecall.report.partition_picture import draw_partition
    from fedrecall.run import load_federation

    loaded = config.load(recipe, words_of(settings), execution(data=data))
    federation = load_federation(loaded)
    described = card(federation.assignment, federation.train.y, federation.num_classes, federation.class_names)
    counts = federation.training_counts()
    if out:
        folder = RunFolder.create(out)
        federation.assignment.save(folder.path, counts)
        folder.write_json("partition.json", described)
        picture = folder.path / "partition.png"
    else:
        Path("runs").mkdir(exist_ok=True)
        picture = Path("runs") / f"partition-{Path(recipe).stem}.png"
    alpha = f", alpha {loaded.partition['alpha']:g}" if "alpha" in loaded.partition else ""
    title = f"{loaded.data['name']}: {loaded.partition['name']}{alpha}"
    draw_partition(counts, list(federation.class_names), picture, title)
    if export:
        export_clients(federation, RunFolder.create(export).path)
    if as_json:
        click.echo(json.dumps({"picture": str(picture), **described}))
        return
    from fedrecall.report.terminal import card_table, share_bars

    console = Console()
    console.print(card_table(described))
    console.print(share_bars(counts, federation.class_names))
    click.echo(str(picture))


@fedrecall.group(invoke_without_command=True)
@click.pass_context
def recipes(context: click.Context) -> None:
    """List, show and copy the shipped recipes."""
    if context.invoked_subcommand is None:
        context.invoke(list_recipes)


@recipes.command("list")
def list_recipes() -> None:
    """The shipped recipes, a line each."""
    for name, path in config.shipped().items():
        first = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()
        click.echo(f"{name:24} {first}")


@recipes.command("show", context_settings=OPEN)
@click.argument("recipe", required=False)
@settings_argument
@click.option("--defaults", is_flag=True, help="Every key there is, with its default and its meaning.")
def show_recipe(recipe: str | None, settings: tuple[str, ...], defaults: bool) -> None:
    """Print RECIPE with every key spelled out."""
    if defaults:
        from fedrecall.reference import reference

        click.echo(reference())
    elif recipe is None:
        raise InputError(f"a recipe's name is missing; {nearest('', config.shipped())}")
    else:
        click.echo(config.load(recipe, words_of(settings)).yaml(), nl=False)


@recipes.command("copy")
@recipe_argument
@click.argument("target", required=False, type=click.Path(path_type=Path))
def copy_recipe(recipe: str, target: Path | None) -> None:
    """Copy the shipped RECIPE to TARGET (default: RECIPE.yaml), to change it."""
    known = config.shipped()
    if recipe not in known:
        raise InputError(f"there is no shipped recipe {recipe!r}; {nearest(recipe, known)}")
    target = target or Path(f"{recipe}.yaml")
    if target.is_dir():
        target = target / f"{recipe}.yaml"
    if target.exists():
        raise InputError(f"the file {str(target)!r} is there already")
    try:
        target.write_text(known[recipe].read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise InputError(f"the file {str(target)!r} cannot be written: {error.strerror}") from None
    click.echo(str(target))


fedrecall.add_command(data_commands)
fedrecall.add_command(resume_command)
fedrecall.add_command(replay_command)
fedrecall.add_command(report_command)
fedrecall.add_command(diagnose_command)


def fail(message: str) -> NoReturn:
    """One line, with nothing in it that a terminal obeys, whatever a file's names and values are."""
    line = " ".join(message.split())
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    if len(shown) > LONGEST:
        shown = f"{shown[: LONGEST // 2]} .. {shown[-LONGEST // 2 :]}"
    click.echo(f"fedrecall: error: {shown}", err=True)
    raise SystemExit(2)


def usage_sentence(error: click.UsageError) -> str:
    """Click's complaint with the nearest right name."""
    command = error.ctx.command if error.ctx else fedrecall
    if isinstance(error, click.NoSuchOption):
        known = [word for parameter in command.params for word in parameter.opts if word.startswith("-")]
        return f"there is no option {error.option_name!r}; {nearest(error.option_name, known)}"
    words = error.format_message()
    if isinstance(command, click.Group) and words.startswith("No such command"):
        wrong = words.split("'")[1]
        return f"there is no command {wrong!r}; {nearest(wrong, command.commands)}"
    where = error.ctx.command_path if error.ctx else "fedrecall"
    return f"{words} See: {where} --help"


def main() -> None:
    """The console script."""
    with contextlib.suppress(ValueError):  # not in the main thread: then whoever has it decides
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: a checkpoint, then the end
    try:
        fedrecall.main(prog_name="fedrecall", standalone_mode=False)
    except InputError as error:
        fail(str(error))
    except DivergedError as error:
        click.echo(f"fedrecall: diverged: {error}", err=True)
        raise SystemExit(3) from None
    except ClientError as error:
        click.echo("\n".join([f"fedrecall: {error}", *getattr(error, "__notes__", ())]), err=True)
        raise SystemExit(1) from None
    except click.UsageError as error:
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            error.show()
            raise SystemExit(2) from None
        fail(usage_sentence(error))
    except (KeyboardInterrupt, click.Abort) as stop:
        reason = stop.__cause__ if isinstance(stop, click.Abort) else stop  # click raises its own instead
        click.echo(f"fedrecall: {reason if isinstance(reason, Interrupted) else 'stopped'}", err=True)
        raise SystemExit(130) from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            fail(f"the disk is full: {error}")  # wherever it was, the user can mend it
        click.echo(their_traceback(error), err=True, nl=False)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
