"""What is said of clients with one class: the truth for this objective and this model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedrecall import WSM, Federation, FedLC, FedVLS, Objective, federate

ALONE = [(np.ones((12, 3), np.float32), np.zeros(12, np.int64)), (np.ones((12, 3), np.float32), np.arange(12) % 2)]


def warnings(out: Path, objective: Objective, model: nn.Module) -> list[str]:
    federation = Federation.from_clients(ALONE, num_classes=2, validation=0)
    run = federate(model, federation, objective=objective, rounds=1, clients_per_round=2, out=out)
    said: list[str] = json.loads((run.path / "summary.json").read_text())["warnings"]
    return [text for text in said if "one class only" in text]


def test_wsm_is_told_of_its_smoothing_and_fedlc_is_not(tmp_path: Path) -> None:
    (wsm,) = warnings(tmp_path / "wsm", WSM(), nn.Linear(3, 2))
    (fedlc,) = warnings(tmp_path / "fedlc", FedLC(), nn.Linear(3, 2))
    assert "objective.smoothing above 0" in wsm
    assert "smoothing" not in fedlc


@pytest.mark.parametrize("objective", [FedVLS(), WSM(distill=0.1)], ids=["fedvls", "wsm with distill"])
@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(3)], ids=["dropout", "batch norm"])
def test_a_model_that_trains_otherwise_than_its_teacher_learns(objective, layer, tmp_path: Path) -> None:
    assert warnings(tmp_path / "with", objective, nn.Sequential(layer, nn.Linear(3, 2))) == []
    assert len(warnings(tmp_path / "without", objective, nn.Linear(3, 2))) == 1
