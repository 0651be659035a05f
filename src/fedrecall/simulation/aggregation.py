"""The server update: from the clients' updates to the server's new state and a line of metrics."""

from __future__ import annotations

from typing import Any

from torch import Tensor, float64, zeros_like

from fedrecall.algorithms.base import Population
from fedrecall.algorithms.context import ServerContext
from fedrecall.client.moments import PREFIX
from fedrecall.client.sums import Sums
from fedrecall.core.rng import stream
from fedrecall.core.vector import Tensors
from fedrecall.data.federation import EVERYONE
from fedrecall.errors import DivergedError, InputError, TooFewClientsError
from fedrecall.measure.live_round import LiveRound
from fedrecall.simulation.experiment import Experiment
from fedrecall.simulation.training import Collected
from fedrecall.updates.base import SERVER, StageContext
from fedrecall.updates.pipeline import STATISTICS


def aggregate(experiment: Experiment, live: LiveRound, collected: Collected) -> None:
    """Compute the server's new state and begin the round's line of metrics; without clients the state stays."""
    refuse_few(experiment, live)
    sums = collected.sums
    if not sums.samples and live.tasks:
        raise DivergedError(f"no client's update of round {live.number} was finite")
    live.updates, live.line = sums.updates, first_entries(experiment, live, collected)
    silent = not sums.samples and experiment.job.pipeline.needs_every_round
    if silent:
        sums.tensors = sums_of_nobody(experiment, live)
        sums.totals = dict.fromkeys(sums.tensors, 0.0)
    if sums.samples or silent:
        live.server = new_server_state(experiment, live, collected)
        live.buffers = mean_buffers(live.buffers, sums)
    live.states.propose(collected.states)
    if not all(bool(tensor.isfinite().all()) for tensor in live.server.values()):
        raise DivergedError(f"the global model was no longer finite after round {live.number}")


def rounded_once(new: Tensors, before: Tensors) -> Tensors:
    """Return a server's new state rounded once to the model's precision."""
    dtype = before["w"].dtype
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in new.items()}


def mean_buffers(before: Tensors, sums: Sums) -> Tensors:
    """Return the mean float buffers and the largest counters; `before` if the clients keep their buffers."""
    if sums.floats is None or sums.counters is None:
        return before
    return {"b": (sums.floats / sums.samples).to(before["b"].dtype), "i": sums.counters}


def server_context(experiment: Experiment, t: int, buffers: Tensors) -> ServerContext:
    """Return the context for an algorithm that aggregates single updates."""
    federation, job, algorithm = experiment.federation, experiment.job, experiment.algorithm

    def class_counts(client: int) -> Tensor:
        if "class_counts" not in algorithm.discloses:
            name = type(algorithm).__name__
            raise InputError(f"{name} asks for class counts, which leave a client only if it discloses them")
        return federation.class_counts(client)

    return ServerContext(
        round=t,
        clients=federation.population,
        buffers=buffers,
        build_model=lambda: job.build_model(federation),
        stream=lambda: stream(experiment.recipe.seed, "aggregate", t),
        class_counts=class_counts,
        server_data=experiment.server_data,
    )


def new_server_state(experiment: Experiment, live: LiveRound, collected: Collected) -> Tensors:
    """Return the algorithm's new server state, from sums or from single updates."""
    job, sums = experiment.job, collected.sums
    if "clients" in job.algorithm.needs:
        context = server_context(experiment, live.number, mean_buffers(live.buffers, sums))
        new = job.algorithm.aggregate_updates(live.server, collected.updates, context)
        return rounded_once({**new, **mean_moments(sums)}, live.server)
    if job.pipeline.works_on_sums:
        origin = {**live.sent, STATISTICS: live.buffers["b"]}
        floats = {} if sums.floats is None else {STATISTICS: sums.floats}
        totals = {**sums.totals, STATISTICS: float(sums.samples)}
        at = StageContext(experiment.recipe.seed, live.number, SERVER, len(live.asked), 0, experiment.count)
        named, totals = job.pipeline.aggregate(sums.tensors | floats, totals, origin, at)
        sums.floats, sums.tensors, sums.totals = named.pop(STATISTICS, None), named, totals
    population = experiment.population
    if job.pipeline.equal_weights:
        population = Population(population.clients, population.clients)  # each of weight 1
    new = job.algorithm.aggregate(live.server, sums.tensors, sums.totals, population)
    return rounded_once({**new, **mean_moments(sums)}, live.server)


def mean_moments(sums: Sums) -> Tensors:
    """Return the means of the moments that clients have sent, weighted by samples."""
    return {name: total / sums.totals[name] for name, total in sums.tensors.items() if name.startswith(PREFIX)}


def sums_of_nobody(experiment: Experiment, live: LiveRound) -> Tensors:
    """Return the sums of a round without clients: zeros, under the names that a client's tensors have."""
    sent = experiment.job.unmoved(live.server["w"])
    return {name: zeros_like(tensor, dtype=float64) for name, tensor in sent.items()}


def first_entries(experiment: Experiment, live: LiveRound, collected: Collected) -> dict[str, Any]:
    """Return the first entries of the round's line of metrics."""
    left_out, sums = {EVERYONE, *live.dropped, *live.missing}, collected.sums
    clients = [task.client for task in live.tasks if task.client not in left_out]
    asked = {"asked": len(live.asked)} if live.silent else {}
    slow = {"stragglers": live.stragglers} if live.stragglers else {}
    seconds = {} if live.simulated_seconds is None else {"simulated_seconds": live.simulated_seconds}
    return {
        "round": live.number,
        "clients": clients,
        **asked,
        **slow,
        "lr": live.lr,
        "train_loss": sums.mean_loss() if sums.samples else None,
        **traffic(experiment, live, collected.bytes_up),
        **seconds,
    }


def traffic(experiment: Experiment, live: LiveRound, up: int) -> dict[str, int]:
    """Return the bytes of the tensors sent in a round, over all clients."""
    if not experiment.algorithm.exchanges:
        return {"bytes_up": 0, "bytes_down": 0}
    down = experiment.payload.bytes(live.sent, {} if experiment.job.own_buffers else live.buffers)
    return {"bytes_up": up, "bytes_down": len(live.asked) * down}


def refuse_few(experiment: Experiment, live: LiveRound) -> None:
    """Raise a `TooFewClientsError` if clients are missing and fewer than `execution.min_clients` answered."""
    answered, least = len(live.tasks) - len(live.missing), experiment.recipe.execution.min_clients
    if live.missing and answered < least:
        raise TooFewClientsError(
            f"{answered} of {len(live.tasks)} clients answered in round {live.number}, and "
            f"execution.min_clients is {least}"
        )
