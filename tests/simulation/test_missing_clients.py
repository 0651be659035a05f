"""A round goes on without clients that gave nothing back, by an engine that loses some of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedrecall import Federation, Iid
from fedrecall.algorithms import Scaffold
from fedrecall.api.execute import RunPlan, execute
from fedrecall.client.partial_sums import Result
from fedrecall.client.tasks import Task, TrainTask
from fedrecall.client.update import MissingClient
from fedrecall.data.card import card
from fedrecall.engines import Serial
from fedrecall.errors import InputError
from fedrecall.objectives import CrossEntropy
from fedrecall.recipe.recipe import FROM_PYTHON, Recipe
from fedrecall.runs import files
from fedrecall.runs.folder import RunFolder
from fedrecall.simulation.experiment import Parts, build


class Losing(Serial):
    """Loses client 2 in round 2, before it trains."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        for task in tasks:
            if isinstance(task, TrainTask) and (task.round, task.client) == (2, 2):
                yield MissingClient(task, "it was lost on the way")
            else:
                yield from super().run([task])


def play(folder: Path, **execution: Any) -> dict[str, Any]:
    """Three rounds of four clients, all in each."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(80, 5)).astype("float32"), random.integers(0, 3, 80)
    federation = Federation.from_arrays(x, y, test=(x, y), partition=Iid(clients=4, validation=0.2))
    sections = dict.fromkeys(("data", "partition", "model", "objective", "algorithm"), FROM_PYTHON)
    recipe = Recipe(**sections, rounds=3, clients_per_round=4, local={"lr": 0.1}, execution=execution)
    engine, parts = Losing.create(1, recipe.execution), {"algorithm": Scaffold(), "objective": CrossEntropy()}
    experiment = build(recipe, federation, Parts(model=lambda: nn.Linear(5, 3), engine=engine, **parts))
    (summary,) = execute([RunPlan(experiment, RunFolder.create(folder), "run")], report=None, quiet=True)
    return summary


def test_it_is_left_out_named_and_counted(tmp_path: Path) -> None:
    summary = play(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / files.METRICS).read_text().splitlines()]
    assert [sorted(line["clients"]) for line in lines] == [[0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3]]
    (event,) = (json.loads(line) for line in (tmp_path / "run" / files.EVENTS).read_text().splitlines())
    assert event == {
        "event": "missing",
        "round": 2,
        "message": "client 2 is left out of round 2: it was lost on the way",
    }
    assert summary["missing_clients"] == 1
    assert "clients were left out 1 times because nothing came from them: see events.jsonl" in summary["warnings"]


def test_with_fewer_than_the_recipe_asks_for_the_run_stops_and_can_go_on(tmp_path: Path) -> None:
    with pytest.raises(InputError) as stopped:
        play(tmp_path / "run", min_clients=4)
    assert str(stopped.value) == (
        "3 of 4 clients answered in round 2, and execution.min_clients is 4; when they are back, go on with: "
        f"federate(.., out={str(tmp_path / 'run')!r}, resume=True)"
    )
    assert (tmp_path / "run" / files.CHECKPOINTS / "round-000001.json").exists()


def test_a_card_without_labels_says_nothing_of_classes() -> None:
    labels = np.arange(60) % 3
    assignment = Iid(clients=4, validation=0.2).assign(labels, 3)
    full, without = card(assignment, labels, 3), card(assignment, None, 3)
    secret = {"classes_missing", "one_class_clients", "label_skew", "class_sharing", "class_counts"}
    assert without == {key: value for key, value in full.items() if key not in secret}
