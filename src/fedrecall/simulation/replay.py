"""One client of a run's round once more, in this process. The run's folder is read, and not changed."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from fedrecall.client.work import Result, Task
from fedrecall.errors import InputError
from fedrecall.runs import checkpoint
from fedrecall.runs.checkpoint import Checkpoint
from fedrecall.runs.client_states import ClientStore
from fedrecall.runs.folder import RunFolder
from fedrecall.simulation.round import Experiment
from fedrecall.vector import Tensors


@dataclass(frozen=True)
class Replayed:
    """What the client's training came to."""

    round: int
    client: int
    loss: float  # the mean over its steps
    steps: int
    update_norm: float | None  # None: the algorithm does not say what an update is


class BesideStore(ClientStore):
    """Reads the clients' states of a run, and writes new ones elsewhere."""

    def __init__(self, folder: Path, run: ClientStore) -> None:
        super().__init__(folder)
        self.run = run

    def get(self, client: int, version: int) -> Tensors:
        mine = self._file(client, version).exists()
        return super().get(client, version) if mine else self.run.get(client, version)


def replay(run: Path, experiment: Experiment, round: int, client: int) -> Replayed:
    """Train a client of a round again, from the newest checkpoint before it. Rounds between are played first."""
    if not 1 <= round <= experiment.recipe.rounds:
        raise InputError(f"the round is {round}; one from 1 to {experiment.recipe.rounds} was expected")
    point = newest_before(run / "checkpoints", round)
    with tempfile.TemporaryDirectory(prefix="fedrecall-replay-") as elsewhere:
        store = BesideStore(Path(elsewhere) / "clients", ClientStore(run / "clients"))
        store.versions = dict(point.versions) if point else {}
        refuse_absent(experiment, store, round, client)
        folder = RunFolder(Path(elsewhere))
        experiment.engine.open(experiment.job, experiment.federation, store)
        try:
            state = experiment.state_before(round, point, folder, store)
            result, sent = trained(experiment, store, state, round, client)
        finally:
            experiment.engine.close()
            folder.close()
    update = experiment.algorithm.update(result.sent, sent)
    norm = None if update is None else float(update.norm())
    return Replayed(round, client, float(result.metrics["loss"]), result.steps, norm)


def newest_before(folder: Path, round: int) -> Checkpoint | None:
    """The newest whole checkpoint of an earlier round; None: start from the beginning."""
    for note in reversed(checkpoint.notes(folder)):
        try:
            point = checkpoint.read(note)
        except InputError:
            continue
        if point.round < round:
            return point
    return None


def refuse_absent(experiment: Experiment, store: ClientStore, round: int, client: int) -> None:
    there = sorted(task.client for task in tasks_of(experiment, store, round))
    if client not in there:
        raise InputError(
            f"client {client} does not train in round {round}; these do: {', '.join(map(str, there))}"
        )


def tasks_of(experiment: Experiment, store: ClientStore, round: int) -> list[Task]:
    return experiment.tasks(round, experiment.recipe.local.rate(round, experiment.recipe.rounds), store)


def trained(
    experiment: Experiment, store: ClientStore, state: Checkpoint, round: int, client: int
) -> tuple[Result, Tensors]:
    """The client's result, and what it was sent."""
    engine, sent = experiment.engine, experiment.algorithm.broadcast(state.server)
    engine.publish(round, sent, state.buffers)
    tasks = tasks_of(experiment, store, round)
    probe = experiment.probes.begin(round, engine, store, tasks)
    (task,) = (task for task in (probe.tasks if probe else tasks) if task.client == client)
    (result,) = engine.run([task])
    return result, sent
