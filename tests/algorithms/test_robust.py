"""Robust aggregation, beside NumPy and numbers worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrecall import CoordinateMedian, Federation, Iid, InputError, Krum, Run, TrimmedMean, federate
from fedrecall.algorithms.robust import CHUNK


@dataclass
class Sent:
    """A client's update, as far as these algorithms look at it."""

    sent: dict[str, Tensor]
    client: int = 0
    samples: int = 1
    steps: int = 1
    loss: float = 0.0
    weights: dict[str, float] = field(default_factory=dict)


def aggregated(algorithm: Any, models: np.ndarray) -> np.ndarray:
    updates = [Sent({"w": torch.from_numpy(model)}) for model in models]
    found: np.ndarray = algorithm.aggregate_updates({"w": torch.zeros(models.shape[1])}, updates, None)["w"].numpy()
    return found


@pytest.mark.parametrize("clients", [1, 2, 5, 6])
def test_the_median_is_that_of_numpy(clients: int) -> None:
    models = np.random.default_rng(clients).normal(size=(clients, CHUNK + 5)).astype(np.float32)
    np.testing.assert_allclose(aggregated(CoordinateMedian(), models), np.median(models.astype(float), 0), rtol=1e-15)


def test_the_trimmed_mean_by_hand() -> None:
    models = np.array([[1.0, -50.0], [2.0, 3.0], [9.0, 4.0], [3.0, 5.0], [-9.0, 90.0]])
    np.testing.assert_allclose(aggregated(TrimmedMean(trim=0.2), models), [2.0, 4.0])  # of 1, 2, 3 and 3, 4, 5
    np.testing.assert_allclose(aggregated(TrimmedMean(trim=0.19), models), models.mean(0))  # less than one of five
    np.testing.assert_allclose(aggregated(TrimmedMean(trim=0.49), models), [2.0, 4.0])  # two at each end: the medians


def test_a_share_of_a_hundred_is_not_rounded_down_by_binary_fractions() -> None:
    models = np.arange(100.0)[:, None] ** 2
    assert 0.29 * 100 < 29
    np.testing.assert_allclose(aggregated(TrimmedMean(trim=0.29), models), [(np.arange(29.0, 71.0) ** 2).mean()])


def test_krum_by_hand() -> None:
    """Points 0, 1, 3, 7 and 100 on a line, one of them malicious: the score counts the two closest others."""
    models = np.array([[0.0], [1.0], [3.0], [7.0], [100.0]])
    # scores: 1 + 9, 1 + 4, 4 + 9, 16 + 36, 93^2 + 97^2
    assert aggregated(Krum(byzantine=1), models).tolist() == [1.0]
    assert aggregated(Krum(byzantine=1, selected=3), models).tolist() == [pytest.approx(4 / 3)]
    assert aggregated(Krum(byzantine=1), models[:1]).tolist() == [0.0]  # the only client that answered


def test_krum_beside_numpy() -> None:
    models = np.random.default_rng(0).normal(size=(9, 50)).astype(np.float32)
    distances = ((models[:, None].astype(float) - models[None]) ** 2).sum(2)
    scores = np.sort(distances, 1)[:, 1 : 1 + 9 - 2 - 2].sum(1)
    expected = models[np.argsort(scores)[:4]].astype(float).mean(0)
    np.testing.assert_allclose(aggregated(Krum(byzantine=2, selected=4), models), expected, rtol=1e-12)


@pytest.mark.parametrize("algorithm", [CoordinateMedian(), TrimmedMean(trim=0.3), Krum(byzantine=2)])
def test_two_malicious_clients_of_seven_do_not_move_it_far(algorithm: Any) -> None:
    models = np.random.default_rng(0).normal(size=(7, 40))
    models[[1, 4]] = 1e9
    found = aggregated(algorithm, models)
    good = np.delete(models, [1, 4], 0)
    assert np.all(found >= good.min(0) - 1e-9)
    assert np.all(found <= good.max(0) + 1e-9)


def run(out: Path, algorithm: Any, engine: str = "serial", **given: Any) -> Run:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(80, 5)).astype("float32"), np.arange(80) % 4
    partition = Iid(clients=8, validation=0.2, seed=0)
    workers = {"workers": 2} if engine == "processes" else {}
    return federate(
        lambda: nn.Linear(5, 4), Federation.from_arrays(x, y, partition=partition), algorithm=algorithm,
        out=out, engine=engine, progress=False, rounds=2, local={"lr": 0.1, "batch_size": 4, "epochs": 1},
        **{"participation": 0.7, **workers, **given},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["median", {"name": "trimmed_mean", "trim": 0.25}, "krum"])
@pytest.mark.usefixtures("warm_workers")
def test_a_run_has_the_same_bits_in_processes(name: Any, tmp_path: Path) -> None:
    serial, processes = (run(tmp_path / engine, name, engine) for engine in ("serial", "processes"))
    for file in ("metrics.jsonl", "model.safetensors"):
        assert (serial.path / file).read_bytes() == (processes.path / file).read_bytes()


def test_krum_refuses_rounds_that_are_too_small(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        run(tmp_path / "run", {"name": "krum", "byzantine": 2}, participation=0.5)
    assert str(refused.value) == (
        "a round has 4 clients, but algorithm 'krum' with these options needs 7: set clients_per_round or participation"
    )
