"""A model that keeps something outside of its tensors has the bits of ordinary steps, and a warning."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from fedrecall import Federation, Iid, Local, federate

TEMPERATURE = SimpleNamespace(value=1.0)


class Tempered(nn.Linear):
    """Reads a variable that somebody else changes."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / TEMPERATURE.value


class Scheduled(nn.Linear):
    """Changes its temperature at a step of its own count."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.progress = SimpleNamespace(steps=0)

    def forward(self, x: Tensor) -> Tensor:
        self.progress.steps += self.training
        return super().forward(x) / (1.0 if self.progress.steps < 60 else 4.0)


def run(out: Path, make: Any) -> tuple[bytes, bytes, list[str]]:
    random = np.random.default_rng(0)
    federation = Federation.from_arrays(
        random.normal(size=(90, 6)).astype(np.float32), np.arange(90) % 3, partition=Iid(clients=3, validation=0.1)
    )
    TEMPERATURE.value = 1.0

    def cool(line: dict[str, Any]) -> None:
        TEMPERATURE.value = 2.0 if line["round"] >= 3 else 1.0

    federate(
        make, federation, rounds=5, participation=1.0, engine="serial", out=out, callbacks=[cool],
        local=Local(epochs=2, batch_size=5, lr=0.1),
    )  # fmt: skip
    warnings = json.loads((out / "summary.json").read_text())["warnings"]
    return (out / "metrics.jsonl").read_bytes(), (out / "model.safetensors").read_bytes(), warnings


@pytest.mark.parametrize(
    ("make", "warning"),
    [
        (lambda: Tempered(6, 3), "no longer traced: an attribute or a variable"),
        (Scheduled, "not traced: its forward changes"),
    ],
    ids=["read", "counted"],
)
def test_it_has_the_bits_of_ordinary_steps_and_a_warning(make, warning, tmp_path, monkeypatch) -> None:
    recorded = run(tmp_path / "recorded", make)
    monkeypatch.setattr("fedrecall.client.step.TRACE_AFTER", 10**9)
    eager = run(tmp_path / "eager", make)
    assert recorded[:2] == eager[:2]
    assert any(warning in note and "not shared between processes" in note for note in recorded[2])
