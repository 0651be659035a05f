"""A random case on an engine: what the run leaves behind, or the sentence by which it is refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from random_cases import Case, case_of
from torch import Tensor, nn
from warm_processes import run_warm

from fedrecall import InputError, Watcher, federate
from fedrecall.errors import DivergedError, Interrupted
from fedrecall.measure.watcher import Round

FILES = ["metrics.jsonl", "clients.jsonl", "model.safetensors", "forgetting/*.npz"]
TOO_LONG = 60.0  # seconds for a run that takes one


@dataclass
class Outcome:
    """What a run left behind."""

    refusal: str | None = None  # the sentence that ended it
    files: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    first: FirstRound | None = None

    @property
    def diverged(self) -> bool:
        return self.refusal is not None and self.refusal.startswith("DivergedError")

    def differences(self, other: Outcome) -> list[str]:
        """Describe where two runs that should be equal are not."""
        if self.refusal != other.refusal:
            return [f"one ended with {self.refusal!r}, the other with {other.refusal!r}"]
        names = sorted(self.files | other.files)
        return [f"{name} differs" for name in names if self.files.get(name) != other.files.get(name)]


class FirstRound(Watcher):
    """Keeps the server's vector and the loss of round 1."""

    def __init__(self) -> None:
        self.w: Tensor | None = None
        self.loss = 0.0

    def after(self, round: Round) -> None:
        if round.number == 1:
            self.w, self.loss = round.server["w"].double(), round.line["train_loss"]


class Stop(Watcher):
    """Ends the run in the middle of a round: by an exception, or by killing the process."""

    def __init__(self, round: int, end: Callable[[], object], *, late: bool) -> None:
        self.round, self.end, self.late = round, end, late

    def before(self, round: Round) -> None:
        if round.number == self.round and not self.late:
            self.end()

    def after(self, round: Round) -> None:
        if round.number == self.round and self.late:
            self.end()


def interrupt() -> None:
    raise KeyboardInterrupt


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(case: Case, folder: Path, engine: str, workers: int = 1, **options: Any) -> Outcome:
    """Run a case on an engine. An exception that is not meant for users is passed on."""
    first = FirstRound()
    callbacks = [first, *options.pop("callbacks", [])]
    try:
        done = federate(
            options.pop("model", case.model), case.federation(), algorithm=case.algorithm,
            objective=case.objective, local=case.local, engine=engine, workers=workers, out=folder,
            callbacks=callbacks, progress=False, **case.settings, **options,
        )  # fmt: skip
    except (InputError, DivergedError) as error:
        return Outcome(f"{type(error).__name__}: {error}".replace(str(folder), "FOLDER"), files_of(folder))
    notes = [note for note in done.summary["warnings"] if not note.startswith("resumed")]
    return Outcome(None, files_of(folder), notes, first)


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for pattern in FILES for path in folder.glob(pattern)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def run_and_stop(number: int, folder: Path, engine: str, workers: int, end: Callable[[], object]) -> None:
    """Begin a case whose run ends in the middle."""
    torch.set_num_threads(1)
    use_warm_workers()
    case = case_of(number)
    stop = Stop(1 + case.settings["rounds"] // 2, end, late=number % 2 == 0)
    try:
        run(case, folder, engine, workers, callbacks=[stop])
    except Interrupted:
        return


def run_in_two_parts(
    case: Case, folder: Path, first: tuple[str, int], then: tuple[str, int], *, killed: bool
) -> Outcome:
    """Stop a run in the middle and resume it, perhaps on another engine."""
    if killed:
        code = run_warm(run_and_stop, case.number, folder, *first, kill, seconds=TOO_LONG)
        assert code in (0, -signal.SIGKILL), f"the process that was to be killed ended with {code}"
    else:
        run_and_stop(case.number, folder, *first, interrupt)
    return run(case, folder, *then, resume=True)


def use_warm_workers() -> None:
    """Let the engine `processes` start its workers by forks, in this process for good."""
    from warm_processes import start_worker

    from fedrecall.engines.processes import connection

    connection.start = start_worker


def nudged(module: nn.Module, share: float) -> nn.Module:
    """Change every weight by a random small part of it, in place."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=random, dtype=parameter.dtype)
            parameter.mul_(1 + share * noise)
    return module
