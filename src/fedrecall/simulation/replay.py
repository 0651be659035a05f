"""Replay one client of a round in this process; the run's folder is only read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrecall.backend.torch_state import fixed_torch_state
from fedrecall.client.update import Update
from fedrecall.core.vector import Tensors
from fedrecall.errors import InputError
from fedrecall.measure.live_round import Observer
from fedrecall.runs import checkpoint, files
from fedrecall.runs.client_states import StateFiles, StateTable
from fedrecall.runs.reader import RunRecord
from fedrecall.simulation.experiment import Experiment
from fedrecall.simulation.resume import refuse_other, refuse_other_data
from fedrecall.simulation.round import RoundState, begin_round, first_state, play_round, playing
from fedrecall.simulation.sampling import attendance, tasks_of
from fedrecall.simulation.training import after_server_stages
from fedrecall.storage.scratch import ScratchFolder


@dataclass(frozen=True)
class Replayed:
    """Summary of the client's local training."""

    round: int
    client: int
    loss: float  # the mean over its steps
    steps: int
    update_norm: float | None  # None: the algorithm does not define an update


class StatesBeside(StateFiles):
    """Reads the client states of a run and writes new ones to another folder."""

    def __init__(self, folder: Path, run: StateFiles) -> None:
        super().__init__(folder)
        self.run = run

    def get(self, client: int, version: int) -> Tensors:
        mine = self.path(client, version).exists()
        return super().get(client, version) if mine else self.run.get(client, version)


@fixed_torch_state()
def replay(
    run: Path,
    experiment: Experiment,
    round: int,
    client: int,
    observers: Sequence[Observer] = (),
    *,
    force: bool = False,
) -> Replayed:
    """Train a client of a round again. `observers` see the rounds since the newest checkpoint, played first."""
    if not force:
        refuse_other_run(run, experiment)
    if not 1 <= round <= experiment.recipe.rounds:
        raise InputError(f"the round is {round}; one from 1 to {experiment.recipe.rounds} was expected")
    point, _ = checkpoint.newest(run / files.CHECKPOINTS, before=round)
    with ScratchFolder("replay") as elsewhere:
        beside = StatesBeside(elsewhere.path / files.STATES, StateFiles(run / files.STATES))
        with playing(experiment, beside) as states:
            states.versions = dict(point.versions) if point else {}
            refuse_absent(experiment, states, round, client)
            state = first_state(experiment, point)
            while state.round < round - 1:
                state, live = play_round(experiment, state, states, observers)
                states.settle()
                for observer in observers:
                    observer.after(live)
            result, sent = train_again(experiment, states, state, client)
    update = experiment.algorithm.update(result.sent, sent)
    norm = None if update is None else float(update.norm())
    return Replayed(round, client, result.loss, result.steps, norm)


def refuse_other_run(run: Path, experiment: Experiment) -> None:
    """Raise an `InputError` if the recipe or the data are not the run's."""
    began = RunRecord(run).origin.get("recipe")
    point, _ = checkpoint.newest(run / files.CHECKPOINTS)
    if point is not None:
        refuse_other(point, experiment.recipe, advice="--force replays all the same")
    elif began not in (None, experiment.recipe.method_digest()):
        raise InputError(
            f"the recipe in {str(run)!r} is not the one that the run began with; --force replays all the same"
        )
    refuse_other_data(run, experiment)


def refuse_absent(experiment: Experiment, states: StateTable, round: int, client: int) -> None:
    tasks = tasks_of(experiment, round, attendance(experiment, round), 0.0, states)
    there = sorted(task.client for task in tasks)
    if client not in there:
        raise InputError(f"client {client} does not train in round {round}; these do: {', '.join(map(str, there))}")


def train_again(experiment: Experiment, states: StateTable, state: RoundState, client: int) -> tuple[Update, Tensors]:
    """Return the client's update in the round after `state`, and the tensors that it was sent."""
    live = begin_round(experiment, state, states, ())
    (task,) = (task for task in live.tasks if task.client == client)
    (result,) = experiment.engine.run([task])
    assert isinstance(result, Update)
    update = after_server_stages(experiment, live, result)
    assert isinstance(update, Update)
    return update, live.sent
