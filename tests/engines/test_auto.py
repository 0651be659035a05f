"""Which engine `auto` takes: by the work of the recipe, and nothing else."""

from __future__ import annotations

import pytest
from torch import nn

from fedrecall import WSM, FedAvg, Local
from fedrecall.client.work import Job
from fedrecall.engines.auto import choose
from fedrecall.engines.processes.engine import Processes
from fedrecall.engines.serial import Serial
from fedrecall.front.execute import load_federation, recipe_experiment
from fedrecall.recipe.layers import load
from fedrecall.recipe.settings import Execution

MODEL = nn.Conv2d(1, 1, 1)


def chosen(client_flops: int, rounds: int = 100, clients: int = 10, **execution) -> tuple[type, int | None]:
    job = Job(lambda: MODEL, FedAvg(), WSM(), Local(), 0)
    engine = choose(Execution(**execution), job, MODEL, clients, client_flops, rounds)
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


def test_auto_takes_no_workers_where_a_message_is_more_than_a_clients_work(monkeypatch) -> None:
    monkeypatch.setattr("fedrecall.engines.auto.usable_cpus", lambda: 4)
    assert chosen(10**6, rounds=10**9) == (Serial, 1)


@pytest.mark.parametrize(
    ("words", "expected"), [([], Processes), (["model=mlp", "model.hidden=[32]"], Serial), (["rounds=5"], Serial)]
)
def test_the_demo_is_worth_two_workers_and_with_a_tiny_model_it_is_not(monkeypatch, words, expected) -> None:
    monkeypatch.setattr("fedrecall.engines.auto.usable_cpus", lambda: 2)
    recipe = load("demo", words, {})
    assert type(recipe_experiment(recipe, load_federation(recipe)).engine) is expected
