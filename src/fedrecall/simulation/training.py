"""The training of a round: collect the clients' updates and sum them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from fedrecall.client.partial_sums import Contribution
from fedrecall.client.predictions import EvaluateResult
from fedrecall.client.sums import Sums, SumTree
from fedrecall.client.update import MissingClient, Update
from fedrecall.errors import DivergedError
from fedrecall.measure.live_round import LiveRound, Observer
from fedrecall.simulation.experiment import Experiment
from fedrecall.updates.base import DecodeError
from fedrecall.updates.pipeline import STATISTICS


@dataclass
class Collected:
    """The sums of a round's updates and, if the algorithm needs them, the single updates."""

    sums: Sums
    updates: list[Update] = field(default_factory=list)
    states: dict[int, int] = field(default_factory=dict)  # versions of new states, by client
    bytes_up: int = 0


def train_clients(experiment: Experiment, live: LiveRound, observers: Sequence[Observer]) -> Collected:
    """Train the round's clients and collect their updates, without those that are not finite."""
    evaluated = experiment.recipe.evaluates(live.number)
    tree, collected = SumTree(live.sent if evaluated else None), Collected(Sums())
    for contribution in contributions(experiment, live, observers, track_updates=evaluated):
        if isinstance(contribution, MissingClient):
            reason = f"client {contribution.client} is left out of round {live.number}: {contribution.reason}"
            live.events.append(("missing", reason))
            live.missing.append(contribution.client)
            continue
        good, dropped = contribution.finite_part()
        drop(experiment, live, dropped)
        versions = contribution.states()
        for client in dropped:
            live.states.discard(client, versions.pop(client, 0))
        if good is None:
            continue
        good.add_to(tree, experiment.algorithm)
        collected.bytes_up += good.wire_bytes
        collected.states |= versions
        if "clients" in experiment.algorithm.needs and isinstance(good, Update):
            collected.updates.append(good)
        for observer in (*experiment.measures, *observers):
            observer.result(live, good)
    collected.sums = tree.total()
    return collected


def contributions(
    experiment: Experiment, live: LiveRound, observers: Sequence[Observer], *, track_updates: bool
) -> Iterator[Contribution | MissingClient]:
    """Yield the clients' updates: one by one if something needs that, else as the engine groups them."""
    single = experiment.job.needs_single_updates or any(observer.wants_each for observer in observers)
    if not live.tasks:
        return
    if not single:
        yield from experiment.engine.train(live.tasks, track_updates=track_updates)
        return
    for result in experiment.engine.run(live.tasks):
        assert not isinstance(result, EvaluateResult)
        yield after_server_stages(experiment, live, result) if isinstance(result, Update) else result


def after_server_stages(experiment: Experiment, live: LiveRound, update: Update) -> Update | MissingClient:
    """Return an update after the server's side of its stages; its client is missing if it cannot be decoded."""
    pipeline, task = experiment.job.pipeline, update.task
    if not pipeline:
        return update
    origin = {**live.sent, STATISTICS: live.buffers["b"]} if update.buffers else live.sent
    try:
        whole = pipeline.receive(update.sent, origin, live.number, task.client, task.cohort)
    except DecodeError as error:
        return MissingClient(task, str(error))
    buffers = {"b": whole.pop(STATISTICS), "i": update.buffers["i"]} if update.buffers else {}
    weights = dict.fromkeys(update.weights, 1.0) if pipeline.equal_weights else update.weights
    return replace(update, sent=whole, buffers=buffers, weights=weights)


def drop(experiment: Experiment, live: LiveRound, clients: list[int]) -> None:
    """Record clients whose updates are not finite; with `bad_updates: stop`, raise a `DivergedError`."""
    for client in clients:
        message = f"the update of client {client} in round {live.number} is not finite"
        if experiment.recipe.bad_updates == "stop":
            raise DivergedError(f"{message} (bad_updates is 'stop')")
        live.events.append(("dropped", message))
    live.dropped += clients
