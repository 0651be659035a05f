"""Advice when user code ends a run: where it failed, how to reproduce it, how to resume."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedrecall.client.tasks import Task, TrainTask
from fedrecall.engines.engine import Engine
from fedrecall.errors import ClientError
from fedrecall.recipe.recipe import FROM_PYTHON, SECTIONS, Recipe


def add_advice(error: BaseException, round: int, engine: Engine, run: Path, recipe: Recipe) -> None:
    """Add the advice to the exception as a note."""
    task = engine.failed  # None: the main process failed
    lines = [""]
    if not isinstance(error, ClientError):  # its message names it
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
            lines.append(f"    {retry_advice(task, shlex.quote(str(run)), recipe)}")
        lines.append("The rounds before it are saved. When it is mended, go on with:")
        lines.append(f"    {how_to_resume(recipe, run, engine)}")
    error.add_note("\n".join(lines))


def is_from_python(recipe: Recipe) -> bool:
    """Whether the recipe has a component that only a Python script can rebuild."""
    return any(getattr(recipe, section)["name"] == FROM_PYTHON["name"] for section in SECTIONS)


def how_to_resume(recipe: Recipe, run: Path, engine: Engine) -> str:
    if engine.resume_command:
        return engine.resume_command
    if is_from_python(recipe):
        return f"federate(.., out={str(run)!r}, resume=True)"
    return f"fedrecall resume {shlex.quote(str(run))}"


def retry_advice(task: Task, folder: str, recipe: Recipe) -> str:
    if isinstance(task, TrainTask):
        return f"fedrecall replay {folder} --round {task.round} --client {task.client}"
    patient = "" if recipe.execution.client_timeout is None else " execution.client_timeout=null"
    return f"fedrecall resume {folder} --engine serial{patient}"
