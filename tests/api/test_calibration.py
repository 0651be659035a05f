"""`fedrecall calibrate` on a finished run: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedrecall.api.calibration import calibrate

SHORT = ["rounds=3", "local.steps=3", "model=mlp", "local.step=exact", "--quiet", "--no-report"]


@pytest.fixture
def finished(fedrecall, tmp_path) -> Path:
    folder = tmp_path / "run"
    assert fedrecall("run", "demo", *SHORT, "objective=cross_entropy", "--out", str(folder)).code == 0
    return folder


def test_only_the_last_layer_changes_and_the_accuracies_are_those_of_the_two_models(finished, fedrecall) -> None:
    done = fedrecall("calibrate", str(finished), "--samples", "200", "--json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    before, after = load_file(finished / "model.safetensors"), load_file(finished / "calibrated.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"5.weight", "5.bias"}
    summary = json.loads((finished / "metrics.jsonl").read_text().splitlines()[-1])
    assert said["before"] == pytest.approx(summary["test_accuracy"])
    assert said["after"] > said["before"]  # a model of three rounds is far from the best layer on its features
    assert calibrate(finished, 200).after == said["after"]  # draws follow from the run's seed


def test_a_model_without_a_last_layer_of_logits_is_refused(fedrecall, tmp_path) -> None:
    run = tmp_path / "run"
    assert fedrecall("run", "demo", *SHORT, "model.head=etf", "--out", str(run)).code == 0
    done = fedrecall("calibrate", str(run))
    assert done.code == 2
    assert "the model's logits are not the output of its last nn.Linear" in done.err


def test_a_number_of_samples_below_one_is_refused(finished, fedrecall) -> None:
    done = fedrecall("calibrate", str(finished), "--samples", "0")
    assert (done.code, "expected a number of at least 1" in done.err) == (2, True)
