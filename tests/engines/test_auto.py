"""Which engine `auto` takes: by the work of the recipe, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from fedrecall import WSM, FedAvg, Federation, FedNTD, Images, Local, Scaffold
from fedrecall.api.execute import load_federation
from fedrecall.client.job import Job
from fedrecall.client.lanes.decision import decide_steps
from fedrecall.core.vector import FlatModel
from fedrecall.engines.auto import choose_engine, clients_fill_lanes
from fedrecall.engines.processes.engine import Processes
from fedrecall.engines.serial import Serial
from fedrecall.engines.vectorised import Vectorised
from fedrecall.errors import Note
from fedrecall.recipe.layers import load_recipe
from fedrecall.recipe.settings import Execution
from fedrecall.simulation.experiment import build

MODEL = nn.Conv2d(1, 1, 1)


def chosen(client_flops: int, rounds: int = 100, clients: int = 10, **execution) -> tuple[type, int | None]:
    job = Job(lambda: MODEL, FedAvg(), WSM(), Local(), 0)
    engine = choose_engine(Execution(**execution), job, MODEL, clients, client_flops, rounds)
    return type(engine), engine.workers


def test_auto_takes_workers_for_much_work_only(monkeypatch) -> None:
    monkeypatch.setattr("fedrecall.engines.auto.usable_cpus", lambda: 4)
    assert chosen(10**7) == (Serial, 1)
    assert chosen(10**9) == (Processes, 4)
    assert chosen(10**9, clients=3, rounds=1000) == (Processes, 3)
    assert chosen(10**9, clients=1, rounds=1000) == (Serial, 1)
    assert chosen(10**9, workers=1) == (Serial, 1)
    assert chosen(10**7, engine="processes", workers=3) == (Processes, 3)
    assert chosen(10**9, engine="serial") == (Serial, 1)


@pytest.mark.parametrize(
    ("clients", "asked", "expected", "why"),
    [
        (10, 100_000, 10, "a round has 10 clients"),
        (1000, 100_000, 32, "8 for each of the 4 CPUs are the most"),
        (1, 5, 4, "a round has 1 client"),  # evaluations have work for all CPUs
    ],
)
def test_workers_that_would_have_no_work_are_not_started(monkeypatch, clients, asked, expected, why) -> None:
    monkeypatch.setattr("fedrecall.engines.auto.usable_cpus", lambda: 4)
    with pytest.warns(Note, match=f"execution.workers is {asked}, of which {expected} are started: {why}"):
        assert chosen(10**9, clients=clients, engine="processes", workers=asked) == (Processes, expected)


def test_workers_that_can_have_work_are_not_fewer(monkeypatch, recwarn) -> None:
    monkeypatch.setattr("fedrecall.engines.auto.usable_cpus", lambda: 4)
    assert chosen(10**9, clients=10, engine="processes", workers=10) == (Processes, 10)
    assert chosen(10**9, clients=1, engine="vectorised", workers=4) == (Vectorised, 4)
    assert not recwarn.list


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"batch_size": 16}, False),  # samples fill the lanes
        ({"step": "exact"}, False),
        ({"algorithm": Scaffold()}, False),  # it corrects gradients, which the kernels do not
        ({"objective": FedNTD()}, False),  # whose loss is torch's
        ({"model": nn.Sequential(nn.Conv2d(3, 4, 8), nn.Tanh(), nn.Flatten())}, False),  # no kernel
    ],
)
def test_auto_lets_clients_fill_lanes_that_small_batches_would_leave_empty(settings, expected) -> None:
    model = settings.pop("model", nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)))
    algorithm, objective = settings.pop("algorithm", FedAvg()), settings.pop("objective", WSM())
    local = Local(**{"batch_size": 15, "step": "lanes"} | settings)
    x, y = np.zeros((40, 8, 8, 3), np.uint8), np.arange(40) % 4
    clients = [(x, y)] * 32
    federation = Federation.from_clients(
        clients, num_classes=4, transform=Images((0.5,) * 3, (0.25,) * 3), layout="nhwc"
    )
    asked = Job(lambda: model, algorithm, objective, local, 0)
    job = decide_steps(asked, federation, FlatModel(model), on_cpu=True).job
    fills = clients_fill_lanes(job)
    assert fills is expected
    engine = choose_engine(Execution(), job, model, 32, 10**9, 1000, fills_lanes=fills)
    assert (type(engine) is Vectorised) is expected
    assert type(choose_engine(Execution(), job, model, 31, 10**9, 1000, fills_lanes=fills)) is not Vectorised


def test_auto_takes_no_workers_where_a_message_is_more_than_a_clients_work(monkeypatch) -> None:
    monkeypatch.setattr("fedrecall.engines.auto.usable_cpus", lambda: 4)
    assert chosen(10**6, rounds=10**9) == (Serial, 1)


@pytest.mark.parametrize(
    ("words", "expected"), [([], Processes), (["model=mlp", "model.hidden=[32]"], Serial), (["rounds=5"], Serial)]
)
def test_the_demo_is_worth_two_workers_and_with_a_tiny_model_it_is_not(monkeypatch, words, expected) -> None:
    monkeypatch.setattr("fedrecall.engines.auto.usable_cpus", lambda: 2)
    recipe = load_recipe("demo", words, {})
    assert type(build(recipe, load_federation(recipe)).engine) is expected


def shares(devices: list[str], **execution) -> tuple[str, int, list[tuple[str, int]]]:
    """The engine, its workers, and how many of them are on each device."""
    job = Job(lambda: MODEL, FedAvg(), WSM(), Local(), 0)
    engine = choose_engine(Execution(**execution), job, MODEL, 10, 1, 1, devices)
    return engine.name, engine.workers, [(device.name, device.workers) for device in engine.devices]


def test_workers_are_spread_evenly_over_devices() -> None:
    both = ["cuda:0", "cuda:1"]
    assert shares(both) == ("processes", 2, [("cuda:0", 1), ("cuda:1", 1)])
    assert shares(both, workers_per_device=3) == ("processes", 6, [("cuda:0", 3), ("cuda:1", 3)])
    assert shares(both, workers=3) == ("processes", 3, [("cuda:0", 2), ("cuda:1", 1)])
    assert shares(["cuda:1"]) == ("serial", 1, [("cuda:1", 1)])
    assert shares(["cuda:1"], workers_per_device=2) == ("processes", 2, [("cuda:1", 2)])
    assert shares(both, engine="serial") == ("serial", 1, [("cuda:0", 1)])
    assert shares(both, engine="vectorised") == ("vectorised", 1, [("cuda:0", 1)])
    assert shares(["cpu"], engine="processes", workers=2) == ("processes", 2, [("cpu", 1)])
