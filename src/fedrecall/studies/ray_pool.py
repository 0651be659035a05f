"""Execute a study's runs in parallel with Ray, on a cluster or this machine, with the bits of `serial`.

A run whose actor or node dies is resumed by another actor from its last checkpoint in the study's folder.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrecall.engines.pool import MOST_DEATHS, START
from fedrecall.engines.ray.cluster import Cluster
from fedrecall.engines.ray.states import FolderToken
from fedrecall.errors import ClientError, ClusterLostError, InputError
from fedrecall.recipe.code_keys import names_code
from fedrecall.runs import ledger
from fedrecall.runs.reader import is_run
from fedrecall.storage.atomic_files import explain_write_errors
from fedrecall.studies.cells import PlannedRun
from fedrecall.studies.folder import StudyFolder
from fedrecall.studies.packed_folder import pack_folder, unpack_folder
from fedrecall.studies.placement import Placement
from fedrecall.studies.pool import GRACE, PAUSE, RunPool, RunWorker, Seen
from fedrecall.studies.ray_actor import ActorSetup, RunActor
from fedrecall.studies.serving import Ended, RunOrder

MOST_MOVES = 3  # times that a run is given to another actor before it fails


@dataclass(eq=False)
class StudyActor(RunWorker):
    """A member that is an actor on some node."""

    handle: Any
    answer: Any  # the reference to the end of its run; at first, to whether it can access the study's folder
    progress: Any = None  # the reference to a pending request for its progress
    has_folder: bool = True  # it can access the study's folder


class RayPool(RunPool[StudyActor]):
    """Executes runs in actors that Ray places."""

    def __init__(self, folder: StudyFolder, jobs: int, seen: Seen, spread: Placement) -> None:
        super().__init__(StudyFolder(folder.path.resolve()), jobs, seen)
        self.spread = spread
        self._moves: Counter[PlannedRun] = Counter()
        self._stillborn = 0

    def execute(self, runs: Sequence[PlannedRun], tick: Callable[[], None]) -> None:
        if not runs:
            return
        self._cluster = Cluster(self.spread.address, after="; the same command goes on with the study")
        self._ray = self._cluster.ray
        self._token = FolderToken(self.folder.path)
        self._alive_at = time.monotonic()
        try:
            self._token.leave()
            self._setup = self._ray.put(ActorSetup(sys.path, Path.cwd(), self._token))
            super().execute(runs, tick)
        except ClusterLostError as error:
            again = "finished runs are kept, and the same command goes on with the others on a cluster that is there"
            raise ClusterLostError(f"{error}; {again}") from None
        finally:
            self._token.remove()
            self._cluster.close()

    def _start(self) -> StudyActor:
        """Create an actor, which waits in the cluster's queue until there is room."""
        handle = self._cluster.actor(RunActor, self.spread.asked, max_concurrency=2)
        return StudyActor(handle, handle.begin.remote(self._setup), ready=False)

    def _send(self, member: StudyActor, run: PlannedRun) -> None:
        place = self.folder.run(run.slot)
        order, member.progress = RunOrder(run.recipe.tree(), place, self.folder.log(run.slot)), None
        if member.has_folder:
            member.answer = member.handle.execute.remote(order)
        else:
            begun = pack_folder(place) if is_run(place) else None
            member.answer = member.handle.execute_apart.remote(order, begun)

    def _wait(self) -> list[StudyActor]:
        self._ask()
        if any(member.ready for member in self.members):
            self._alive_at = time.monotonic()
        elif time.monotonic() - self._alive_at > START:
            raise self._cluster.silence(self.spread.asked, self.jobs, START)
        return self._answering([member for member in self.members if member.run or not member.ready], PAUSE)

    def _answering(self, members: Sequence[StudyActor], seconds: float) -> list[StudyActor]:
        """Wait until one of the members has answered; return all that have."""
        by_answer = {member.answer: member for member in members}
        return [by_answer[answer] for answer in self._cluster.wait(list(by_answer), seconds)]

    def _ask(self) -> None:
        """Ask the actors for their progress; report what they have answered since the last time."""
        busy = [member for member in self.members if member.run]
        for member in busy:
            member.progress = member.progress or member.handle.progress.remote()
        asked = {member.progress: member for member in busy}
        there, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=0) if asked else ([], [])
        for answer in there:
            member = asked[answer]
            member.progress = None
            with contextlib.suppress(self._ray.exceptions.RayError):  # a dead actor is handled by `_receive`
                round = self._ray.get(answer)
                if round and member.run:
                    self.seen(member.run.slot, "round", round)

    def _receive(self, member: StudyActor) -> None:
        try:
            answer = self._cluster.get(member.answer)
        except self._ray.exceptions.RayTaskError as error:
            if not member.ready:
                raise ClientError(f"a worker could not begin:\n\n{error}") from None
            words = str(error.cause) if isinstance(error.cause, InputError) else str(error).splitlines()[-1]
            self._run_ended(member, "failed", words)
        except self._ray.exceptions.RayError:
            self._cluster.wait_for_head()
            self._gone(member)
        else:
            if not member.ready:
                member.ready, member.has_folder = True, answer
                return
            self._run_ended(member, *self._store(member, answer))

    def _store(self, member: StudyActor, ended: Ended) -> tuple[str, str]:
        """Write the files that came with an answer to the study's folder; return how the run ended and why."""
        assert member.run is not None
        slot, recipe = member.run.slot, member.run.recipe
        place, log = self.folder.run(slot), self.folder.log(slot)
        try:
            if ended.folder is not None:
                unpack_folder(ended.folder, place)
            if ended.log:
                with explain_write_errors(log), log.open("a", encoding="utf-8") as file:
                    file.write(ended.log)
            if is_run(place):  # the run may come from another machine, on this user's order
                ledger.record(place, names_code(recipe.tree()))
        except InputError as error:
            return "failed", str(error)
        return ended.kind, ended.words

    def _gone(self, member: StudyActor) -> None:
        """Give the run of a dead actor to another, unless it was moved too often."""
        run = member.run
        self._end([member])
        if run is None:
            self._stillborn += 1
            if self._stillborn == MOST_DEATHS * self.jobs:
                raise ClientError("workers ended before they began; Ray's own logs say more (`ray logs`)")
            return
        self._moves[run] += 1
        if self._moves[run] <= MOST_MOVES:
            self.waiting.append(run)
        else:
            self._record_end(run, "failed", f"its worker died, or the node that it was on, {self._moves[run]} times")

    def _end(self, members: Sequence[StudyActor]) -> None:
        for member in members:
            with contextlib.suppress(Exception):  # its node may be gone too
                self._ray.kill(member.handle)
            self.members.remove(member)

    def _stop(self) -> None:
        """End each run after its current round, which writes a checkpoint."""
        busy = [member for member in self.members if member.run]
        for member in busy:
            member.handle.stop.remote()
        deadline = time.monotonic() + GRACE
        while busy and time.monotonic() < deadline:
            for member in self._answering(busy, deadline - time.monotonic()):
                busy.remove(member)
                with contextlib.suppress(self._ray.exceptions.RayError):
                    self._store(member, self._ray.get(member.answer))

    def _close(self) -> None:
        if not self._cluster.lost:  # to end them, Ray would wait for its head
            self._end(list(self.members))
