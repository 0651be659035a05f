"""Real CIFAR-10, from its unpacked binary files, through the shipped recipe."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

HERE = os.environ.get("FEDRECALL_DATA", "")

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path(HERE, "cifar-10-batches-bin").is_dir(), reason="FEDRECALL_DATA has no folder cifar-10-batches-bin"
    ),
]


def test_the_papers_lenet_runs_on_cifar10_with_the_same_bits_on_both_engines(fedrecall, tmp_path) -> None:
    words = ["run", "lenet-cifar10", "rounds=2", "evaluation.test_last=1", "--json", "--data", HERE]
    for engine in ("serial", "processes"):
        finished = fedrecall(*words, "--engine", engine, "--out", tmp_path / engine)
        assert finished.code == 0, finished.err
    card = json.loads((tmp_path / "serial" / "partition.json").read_text())
    assert card["train_size"] == {"min": 450, "median": 450.0, "max": 450}
    assert card["validation_size"] == {"min": 50, "median": 50.0, "max": 50}
    lines = [json.loads(line) for line in (tmp_path / "serial" / "metrics.jsonl").open()]
    assert [len(line["clients"]) for line in lines] == [10, 10]
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "serial" / name).read_bytes() == (tmp_path / "processes" / name).read_bytes()
