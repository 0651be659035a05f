"""What carries out runs of a study on a node of a cluster: an actor, one run at a time.

Where the node reaches the study's folder the run is written there as it goes. Where it does not, the run is in a
folder of the node's own until it ends, and is then sent back whole.
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
from fedrecall.scratch import ScratchFolder
from fedrecall.studies.packed_folder import pack, unpack
from fedrecall.studies.serving import Order, carry_out, printing_to

FREED = 60.0  # seconds in which the process that was at a run before has to be gone
PAUSE = 0.5


class Setup(NamedTuple):
    """What every actor of a study is told once."""

    path: list[str]  # where the driver looks for modules
    working_folder: Path  # the driver's, by which names of files are meant
    token: FolderToken  # in the study's folder


class Ended(NamedTuple):
    """How a run ended and, if it was not in the study's folder, what it has left."""

    kind: str
    words: str
    log: str = ""
    folder: np.ndarray | None = None


class Followed(Watcher):
    """Notes how far the run is, and ends it after a round if it is to stop."""

    def __init__(self) -> None:
        self.round, self.stopping = 0, False

    def after(self, round: Round) -> None:
        self.round = round.number
        if self.stopping:
            raise KeyboardInterrupt


class RunActor:
    """Ray makes one of these in a process on some node. It is asked and stopped in a second thread."""

    def __init__(self) -> None:
        self._followed = Followed()

    def begin(self, setup: Setup) -> bool:
        """Does this node reach the study's folder?"""
        sys.path += [folder for folder in setup.path if folder not in sys.path]
        with contextlib.suppress(OSError):  # it need not be here
            os.chdir(setup.working_folder)
        return setup.token.is_seen()

    def progress(self) -> int:
        """The last round that is done of this run here; 0 before the first."""
        return self._followed.round

    def stop(self) -> None:
        self._followed.stopping = True

    def carry_out(self, order: Order) -> Ended:
        """In the study's folder."""
        if order.folder.is_dir():
            wait_until_free(order.folder)
        return self._through(order)

    def carry_out_apart(self, order: Order, begun: np.ndarray | None) -> Ended:
        """In a folder of this node's, from what there is of it."""
        with ScratchFolder("run") as scratch:
            here, there = str(scratch.path), str(order.folder.parent)
            inside = [scratch.path / path.name for path in (order.folder, order.log)]
            order = replace(order, folder=inside[0], log=inside[1])
            if begun is not None:
                unpack(begun, order.folder)
            ended = self._through(order)
            log = order.log.read_text(encoding="utf-8", errors="replace") if order.log.exists() else ""
            # What is said to the user names the place where the run will be.
            told = Ended(ended.kind, ended.words.replace(here, there), log.replace(here, there))
            return told._replace(folder=pack(order.folder)) if order.folder.is_dir() else told

    def _through(self, order: Order) -> Ended:
        if self._followed.stopping:
            return Ended("interrupted", "")
        try:
            with printing_to(order.log):
                return Ended(*carry_out(order, self._followed))
        finally:
            self._followed.round = 0


def wait_until_free(folder: Path) -> None:
    """The run's process before this one may live on for a moment, after its node or its study is gone."""
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
