"""What a user is told when something of theirs ended a run: where it was, how to see it again, how to go on."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedrecall.client.tasks import Task, TrainTask
from fedrecall.engines.engine import Engine
from fedrecall.errors import ClientError
from fedrecall.recipe.recipe import FROM_PYTHON, SECTIONS, Recipe


def add_advice(error: BaseException, round: int, engine: Engine, run: Path, recipe: Recipe) -> None:
    """Note it on the exception."""
    task = engine.failed  # None: it was the main process's own part of the round
    lines = [""]
    if not isinstance(error, ClientError):  # which says it itself
        lines.append(f"Where: {task if task else f'the main process, in round {round}'}.")
    if is_from_python(recipe):
        if task and not engine.in_this_process:
            lines.append('With engine="serial" all of it runs in the main process, where breakpoint() works.')
        lines.append(
            f"The rounds before it are saved. When it is mended, go on with: {how_to_resume(recipe, run, engine)}"
        )
    else:
        if task and (isinstance(task, TrainTask) or not engine.in_this_process):
            lines.append("Once more in the main process, where breakpoint() works:")
            lines.append(f"    {once_more(task, shlex.quote(str(run)), recipe)}")
        lines.append("The rounds before it are saved. When it is mended, go on with:")
        lines.append(f"    {how_to_resume(recipe, run, engine)}")
    error.add_note("\n".join(lines))


def is_from_python(recipe: Recipe) -> bool:
    """Does it name something that only a Python script can build again?"""
    return any(getattr(recipe, section)["name"] == FROM_PYTHON["name"] for section in SECTIONS)


def how_to_resume(recipe: Recipe, run: Path, engine: Engine) -> str:
    if engine.resume_command:
        return engine.resume_command
    if is_from_python(recipe):
        return f"federate(.., out={str(run)!r}, resume=True)"
    return f"fedrecall resume {shlex.quote(str(run))}"


def once_more(task: Task, folder: str, recipe: Recipe) -> str:
    if isinstance(task, TrainTask):
        return f"fedrecall replay {folder} --round {task.round} --client {task.client}"
    patient = "" if recipe.execution.client_timeout is None else " execution.client_timeout=null"
    return f"fedrecall resume {folder} --engine serial{patient}"
