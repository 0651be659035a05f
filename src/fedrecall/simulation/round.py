"""A round: sample clients, train them, aggregate, evaluate. `recorder` writes it down."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fedrecall.core.vector import Tensors
from fedrecall.measure.live_round import LiveRound, Observer
from fedrecall.runs.checkpoint import Checkpoint
from fedrecall.runs.client_states import StateFiles, StateTable
from fedrecall.simulation.aggregation import aggregate
from fedrecall.simulation.experiment import Experiment
from fedrecall.simulation.sampling import attendance, tasks_of
from fedrecall.simulation.training import train_clients


@dataclass(frozen=True)
class RoundState:
    """The server's state between two rounds."""

    round: int  # the last completed one
    server: Tensors
    buffers: Tensors


def first_state(experiment: Experiment, start: Checkpoint | None = None) -> RoundState:
    """Return the state to start from: that of a checkpoint, or the initial one."""
    if start:
        return RoundState(start.round, start.server, start.buffers)
    experiment.load_init()
    flat = experiment.flat
    return RoundState(0, experiment.job.init_server(flat.w.clone()), flat.buffers())


@contextmanager
def playing(experiment: Experiment, files: StateFiles) -> Iterator[StateTable]:
    """Open the experiment's engine for rounds without a run's folder; `files` stores the client states."""
    experiment.engine.open(experiment.job, experiment.federation, files)
    try:
        yield StateTable(files)
    finally:
        experiment.engine.close()


def play_round(
    experiment: Experiment, state: RoundState, states: StateTable, observers: Sequence[Observer] = ()
) -> tuple[RoundState, LiveRound]:
    """Play the round after `state`; return the new state and the record of the round."""
    times = [time.perf_counter()]
    live = begin_round(experiment, state, states, observers)  # sample and publish
    collected = train_clients(experiment, live, observers)
    times.append(time.perf_counter())
    aggregate(experiment, live, collected)
    times.append(time.perf_counter())
    for measure in experiment.measures:
        measure.after(live)
    times.append(time.perf_counter())
    parts = zip(("train", "aggregate", "evaluate"), np.diff(times).tolist())
    live.seconds = {"seconds": times[-1] - times[0], **dict(parts)}
    live.events += [("warning", note) for note in experiment.engine.notes]
    return RoundState(live.number, live.server, live.buffers), live


def begin_round(
    experiment: Experiment, state: RoundState, states: StateTable, observers: Sequence[Observer]
) -> LiveRound:
    """Return the next round with its tasks made and its model published, before its clients train."""
    t, recipe, engine = state.round + 1, experiment.recipe, experiment.engine
    if experiment.forward:
        experiment.forward.check(t)
    lr = recipe.local.rate(t, recipe.rounds)
    sent = experiment.job.broadcast(state.server)
    there = attendance(experiment, t)
    tasks = tasks_of(experiment, t, there, lr, states)
    silent = len(there.asked) - len(there.steps)
    live = LiveRound(t, lr, there.asked, silent, tasks, engine, states, sent, state.server, state.buffers)
    live.stragglers, live.simulated_seconds = there.stragglers, there.seconds
    engine.publish(t, sent, state.buffers)
    for observer in (*experiment.measures, *observers):
        observer.before(live)
    return live
