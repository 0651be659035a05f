"""Every block of docs/algorithms.md runs as it stands, and its tables are true."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from server_data import at_the_server

from fedrecall import CrossEntropy, Federation, Local, federate
from fedrecall.algorithms import ALGORITHMS
from fedrecall.objectives import OBJECTIVES

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(
    "text", [PAGE.split("\n## ")[0], *(SECTIONS[f"An {kind} of your own"] for kind in ("algorithm", "objective"))]
)
def test_every_block_runs(text, fedrecall, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    commands = 0
    for kind, block in BLOCK.findall(text):
        if kind == "python":
            assert len(block.splitlines()) < 30
            Path("mine.py").write_text(block, encoding="utf-8")
        for line in block.splitlines() if kind == "console" else ():
            program, *words = shlex.split(line)
            assert program == "fedrecall"
            done = fedrecall(*words, "--quiet")
            assert (done.code, done.err) == (0, "")
            commands += 1
    sys.modules.pop("mine", None)
    assert commands


def test_the_tables_name_everything_there_is() -> None:
    assert [row[0].strip("`") for row in rows("The algorithms")] == list(ALGORITHMS)
    assert [row[0].strip("`") for row in rows("The objectives")] == list(OBJECTIVES)


@pytest.mark.parametrize("row", rows("The algorithms"), ids=lambda row: row[0])
def test_the_table_of_algorithms_is_true(row, tmp_path) -> None:
    name, _, server_state, client_state, down, up, _ = row
    random = np.random.default_rng(0)
    clients = [(random.normal(size=(8, 63)).astype("float32"), np.arange(8) % 16) for _ in range(2)]
    federation = Federation.from_clients(clients, num_classes=16, validation=0)
    algorithm = ALGORITHMS[name.strip("`")]()
    # 64 x 16 weights without padding: a vector of 4096 bytes.
    model = torch.nn.Sequential(torch.nn.Linear(63, 16, bias=False), torch.nn.Linear(16, 1 * 16, bias=False))
    size = 4 * (63 * 16 + 16 * 16)
    run = federate(
        model, federation, algorithm=algorithm, **at_the_server(name.strip("`"), federation),
        objective=CrossEntropy(), rounds=1, participation=1.0, local=Local(steps=1, batch_size=8, lr=0.1),
        out=tmp_path / "run", engine="serial",
    )  # fmt: skip
    line = run.metrics[0]
    # fednova and fedexp send one number more, of 8 bytes
    assert line["bytes_down"] == 2 * float(down) * size
    assert line["bytes_up"] - 2 * float(up) * size in (0, 16)
    assert list(algorithm.init(torch.zeros(16))) == server_state.split(", ")
    kept = list(algorithm.init_client(torch.zeros(16)))
    if algorithm.personal:
        kept = {"ditto": ["v"], "fedper": ["own"], "fedbn": ["own"]}.get(name.strip("`"), ["w"])
    assert kept == [part for part in client_state.split(", ") if part not in ("", "statistics")]


@pytest.mark.parametrize("row", rows("The objectives"), ids=lambda row: row[0])
def test_the_table_of_objectives_says_who_learns_nothing(row) -> None:
    objective = OBJECTIVES[row[0].strip("`")]()
    assert (objective.note(1, 2) is not None) == row[3].startswith("learns nothing")
