"""What a run saves of its state."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from fedrecall import Federation, Iid, federate
from fedrecall.recipe.settings import CheckpointTimes
from fedrecall.runs import checkpoint


def run(out: Path, **settings) -> Path:
    x, y = np.random.default_rng(0).normal(size=(60, 16)).astype("float32"), np.arange(60) % 2
    federation = Federation.from_arrays(x, y, partition=Iid(clients=4, validation=0.2))
    torch.manual_seed(0)
    federate(nn.Linear(16, 2, bias=False), federation, participation=1.0, out=out, **settings)
    return out / "checkpoints"


def test_the_last_two_are_kept_and_the_last_is_the_model(tmp_path) -> None:
    folder = run(tmp_path / "run", rounds=7, checkpoint={"every": 2})
    assert sorted(path.name for path in folder.iterdir()) == [
        "round-000006.json",
        "round-000006.safetensors",
        "round-000007.json",
        "round-000007.safetensors",
    ]
    saved = load_file(folder / "round-000007.safetensors")
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert torch.equal(saved["server.w"], model["weight"].flatten())  # 32 weights need no padding


def test_a_note_has_the_round_and_the_checksum(tmp_path) -> None:
    folder = run(tmp_path / "run", rounds=1)
    note = json.loads((folder / "round-000001.json").read_text())
    assert note["round"] == 1
    assert note["sha256"] == hashlib.sha256((folder / "round-000001.safetensors").read_bytes()).hexdigest()
    assert note["recipe_sha256"] == json.loads((tmp_path / "run" / "summary.json").read_text())["recipe_sha256"]


def test_the_table_of_client_states_is_there(tmp_path) -> None:
    state = {"w": torch.ones(3), "c": torch.zeros(3)}
    point = checkpoint.Checkpoint(5, state, {"b": torch.zeros(0)}, {7: 5, 2: 3, 4: 0}, "digest")
    checkpoint.save(tmp_path / "c", point)
    saved = load_file(tmp_path / "c" / "round-000005.safetensors")
    assert saved["versions"].tolist() == [[2, 3], [7, 5]]
    assert set(saved) == {"server.w", "server.c", "buffers.b", "versions"}


def test_checkpoints_are_due_by_time_or_by_rounds() -> None:
    assert [CheckpointTimes().due(5, seconds) for seconds in (59.0, 60.0)] == [False, True]
    assert [CheckpointTimes(every=3).due(t, 1000.0) for t in (2, 3, 4, 6)] == [False, True, False, True]


def test_how_often_it_is_saved_does_not_change_the_run(tmp_path) -> None:
    run(tmp_path / "often", rounds=3, checkpoint={"every": 1})
    run(tmp_path / "once", rounds=3)
    assert (tmp_path / "often/metrics.jsonl").read_bytes() == (tmp_path / "once/metrics.jsonl").read_bytes()
