"""The actor that executes runs of a study on a node of a cluster, one at a time.

The run is written to the study's folder if the node can access it. If not, it is written to a temporary folder of
the node and sent back when it ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedrecall.engines.ray.states import FolderToken
from fedrecall.errors import InputError
from fedrecall.measure.watcher import Round, Watcher
from fedrecall.runs.folder import RunFolder
from fedrecall.storage.scratch import ScratchFolder
from fedrecall.studies.packed_folder import pack_folder, unpack_folder
from fedrecall.studies.serving import Ended, RunOrder, execute_run, printing_to

FREED = 60.0  # seconds to wait for the process that executed the run before
PAUSE = 0.5


class ActorSetup(NamedTuple):
    """The setup that is sent once to every actor of a study."""

    path: list[str]  # the driver's module search path
    working_folder: Path  # the driver's working folder, to which relative paths refer
    token: FolderToken  # in the study's folder


class StoppableProgress(Watcher):
    """Records the progress of a run; interrupts it after the current round on request."""

    def __init__(self) -> None:
        self.round, self.stopping = 0, False

    def after(self, round: Round) -> None:
        self.round = round.number
        if self.stopping:
            raise KeyboardInterrupt


class RunActor:
    """Ray creates one of these in a process on some node. `progress` and `stop` are called in a second thread."""

    def __init__(self) -> None:
        self._progress = StoppableProgress()

    def begin(self, setup: ActorSetup) -> bool:
        """Set up this process; return whether the node can access the study's folder."""
        sys.path += [folder for folder in setup.path if folder not in sys.path]
        with contextlib.suppress(OSError):  # the node may not have this folder
            os.chdir(setup.working_folder)
        return setup.token.is_seen()

    def progress(self) -> int:
        """Return the last round that this actor finished in the current run; 0 before the first."""
        return self._progress.round

    def stop(self) -> None:
        self._progress.stopping = True

    def execute(self, order: RunOrder) -> Ended:
        """Execute a run in the study's folder."""
        if order.folder.is_dir():
            wait_until_free(order.folder)
        return self._execute(order)

    def execute_apart(self, order: RunOrder, begun: np.ndarray | None) -> Ended:
        """Execute a run in a folder of this node, resuming it if its folder was sent."""
        with ScratchFolder("run") as scratch:
            here, there = str(scratch.path), str(order.folder.parent)
            inside = [scratch.path / path.name for path in (order.folder, order.log)]
            order = replace(order, folder=inside[0], log=inside[1])
            if begun is not None:
                unpack_folder(begun, order.folder)
            ended = self._execute(order)
            log = order.log.read_text(encoding="utf-8", errors="replace") if order.log.exists() else ""
            # Messages to the user name the folder that the run is sent back to.
            folder = pack_folder(order.folder) if order.folder.is_dir() else None
            return Ended(ended.kind, ended.words.replace(here, there), log.replace(here, there), folder)

    def _execute(self, order: RunOrder) -> Ended:
        if self._progress.stopping:
            return Ended("interrupted", "")
        try:
            with printing_to(order.log):
                return execute_run(order, self._progress)
        finally:
            self._progress.round = 0


def wait_until_free(folder: Path) -> None:
    """Wait for a run's lock, because its former process may briefly outlive its study or node."""
    deadline = time.monotonic() + FREED
    while time.monotonic() < deadline:
        run = RunFolder(folder)
        try:
            run.lock()
            return
        except InputError:
            time.sleep(PAUSE)
        finally:
            run.close()
