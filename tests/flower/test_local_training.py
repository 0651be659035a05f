"""Local optimisers, clients that fail and the simulated clock, on a federation's messages: the bits of `serial`."""

from __future__ import annotations

from pathlib import Path

import pytest
from flower_grid import LocalGrid, grid_of, lines, made_app, model, run_app, serial
from flwr.app import Message

from fedrecall.runs import files

FAILING = "participation={name: poisson, fraction: 0.8, dropout: 0.2, stragglers: 0.6}"
CASES = {
    "adamw kept": ["local.optimiser={name: adamw, state: keep}", "local.momentum=0", "local.clip_norm=0.5"],
    "adam averaged": ["local.optimiser={name: adam, state: average}", "local.momentum=0"],
    "momentum kept": ["local.optimiser.state=keep"],
    "stragglers": ["algorithm=fednova", FAILING],
    "a deadline": ["algorithm=fedprox", FAILING, "clock={speed: 1e5, spread: 1.0, deadline: 30}"],
}


@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_those_of_serial(case: str, tmp_path: Path, recipe_file: str) -> None:
    words = [*CASES[case], "evaluation.every=3"]
    config = made_app(tmp_path / "app", recipe_file, *words)
    run_app(tmp_path / "app", config, grid_of(tmp_path / "app", config, state=tmp_path / "state"))
    here, there = serial(tmp_path / "serial", recipe_file, *words), tmp_path / "app" / "run"
    assert model(here) == model(there)
    keys = ("clients", "asked", "stragglers", "train_loss", "bytes_up", "bytes_down", "flops", "simulated_seconds")
    measured = [[{key: line.get(key) for key in keys} for line in lines(run, files.METRICS)] for run in (here, there)]
    assert measured[0] == measured[1]


def test_a_node_takes_no_more_steps_than_its_recipe_has(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, "rounds=1", "clients_per_round=4")
    grid = grid_of(tmp_path / "app", config, state=tmp_path / "state")
    plain = grid._answer

    def asking_more(message: Message) -> Message:
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 101:
            message.content["task"]["steps"] = 10**6
        return plain(message)

    grid._answer = asking_more  # type: ignore[method-assign]
    run_app(tmp_path / "app", config, grid)
    assert refusals(grid) == ["its 'steps' is 1000000; a whole number from 0 was expected"]


def refusals(grid: LocalGrid) -> list[str]:
    return [message.error.reason for message in grid.log if message.has_error()]
