"""Probes where not everybody counts: clients that are left out, and clients without validation data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedrecall import FedAvg, Federation, Run, federate

SIZES = (20, 30, 40, 50)


def clients(sizes: tuple[int, ...] = SIZES) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    return [(random.normal(size=(n, 3)).astype(np.float32), np.arange(n) % 3) for n in sizes]


@dataclass(frozen=True)
class NoNumbersOfOne(FedAvg):
    """The client with 27 training samples sends no numbers."""

    def finish(self, y, server, client, local, extra):  # type: ignore[no-untyped-def]
        return {"w": y * float("nan") if local.samples == 27 else y}, {}


def run(out: Path, federation: Federation, **settings: object) -> Run:
    return federate(lambda: nn.Linear(3, 3), federation, rounds=1, participation=1.0, out=out, **settings)  # type: ignore[arg-type]


def test_a_client_that_is_left_out_of_the_round_is_left_out_of_its_matrix(tmp_path: Path) -> None:
    federation = Federation.from_clients(clients(), num_classes=3, validation=0.1)
    made = run(tmp_path / "run", federation, algorithm=NoNumbersOfOne(), forgetting={"rounds": [1]})
    probe, line = made.forgetting[1], made.metrics[0]
    assert sorted(line["clients"]) == sorted(probe["models"].tolist()) == [0, 2, 3]
    others = [
        probe["before"][k] - probe["after"][i, k]
        for i, model in enumerate(probe["models"])
        for k in range(4)
        if k != model
    ]
    assert line["forgetting"] == pytest.approx(np.mean(others))
    lost = probe["after"].mean(0) - probe["after_aggregation"]
    assert line["lost_by_aggregation"] == pytest.approx(lost.mean())


def test_with_all_measurable_clients_in_the_sample_nothing_is_left_to_chance(tmp_path: Path) -> None:
    # Two of the five are too small for validation data.
    federation = Federation.from_clients(clients((20, 30, 40, 3, 2)), num_classes=3, validation=0.1)
    made = run(tmp_path / "run", federation, forgetting={"rounds": [1], "sample": 3})
    assert made.forgetting[1]["data"].tolist() == [0, 1, 2]
    assert made.metrics[0]["forgetting_se"] == 0
