"""The metrics, against a few lines of NumPy on numbers and on the models of runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedrecall import (
    Centralised,
    CrossEntropy,
    FedAvg,
    Federation,
    FedNova,
    Iid,
    InputError,
    Local,
    LocalOnly,
    Run,
    federate,
)
from fedrecall.client.batches import LocalPlan
from fedrecall.client.predictions import Predictions
from fedrecall.client.sums import UpdateGeometry
from fedrecall.measure import evaluator as evaluation
from fedrecall.measure.metrics import METRICS, SUMMARY, calibration_error, client_metrics, metric_of, pooled_metrics
from fedrecall.measure.training_cost import Operations
from fedrecall.simulation.summary import to_target

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(240, 6)).astype(np.float32), RANDOM.integers(0, 3, 240)
TEST = (RANDOM.normal(size=(50, 6)).astype(np.float32), RANDOM.integers(0, 3, 50))


def twelve_clients(**options) -> Federation:
    partition = Iid(**{"clients": 12, "validation": 0.2, **options})
    return Federation.from_arrays(X, Y, test=TEST, num_classes=3, partition=partition)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def run(out: Path, federation: Federation | None = None, model: nn.Module | None = None, **settings) -> Run:
    settings = {"rounds": 4, "clients_per_round": 3, "evaluation": {"every": 2, "test_last": 2}, **settings}
    settings = {"objective": CrossEntropy(), "local": Local(epochs=2, batch_size=8, lr=0.5), **settings}
    return federate(model or network(), federation or twelve_clients(), out=out, **settings)


# The arithmetic.


def bin_by_bin(confidence: np.ndarray, correct: np.ndarray) -> float:
    error = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            error += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    return error


@pytest.mark.filterwarnings("error")
def test_calibration_error_is_the_gap_of_each_bin() -> None:
    # Both in the last bin: mean confidence 0.96, accuracy 1/2. The third alone: confidence 0.5, accuracy 1.
    value = calibration_error(np.array([0.95, 0.97, 0.5]), np.array([True, False, True]))
    assert value == pytest.approx(2 / 3 * (0.96 - 0.5) + 1 / 3 * 0.5)
    random = np.random.default_rng(1)
    confidence, correct = random.uniform(0.1, 1, 500), random.random(500) < 0.6
    assert calibration_error(confidence, correct) == pytest.approx(bin_by_bin(confidence, correct))
    edges = np.array([2.0, 5.0, 15.0]) / 15
    assert calibration_error(edges, np.ones(3, bool)) == pytest.approx(bin_by_bin(edges, np.ones(3)))
    # A diverged model has none.
    assert np.isnan(calibration_error(np.array([0.5, np.nan]), np.array([True, False])))


def test_macro_accuracy_weighs_classes_alike() -> None:
    predictions = Predictions(np.array([1, 1, 1, 0], bool), nll=np.ones(4), confidence=np.full(4, 0.5))
    found = pooled_metrics(predictions, labels=np.array([0, 0, 0, 1]), classes=3)
    assert (found["accuracy"], found["accuracy_macro"]) == (0.75, 0.5)  # class 2 has no sample


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (9, 1), (10, 1), (11, 2), (30, 3), (70, 7)])
def test_the_worst_tenth_is_rounded_up(clients: int, worst: int) -> None:
    accuracy = np.arange(clients)[::-1] / 100  # 0, 0.01, 0.02, ..
    assert client_metrics(accuracy)["accuracy_worst"] == pytest.approx(sum(range(worst)) / worst / 100)


def test_mean_and_deviation_are_over_clients_with_data() -> None:
    found = client_metrics(np.array([0.2, np.nan, 0.6]))
    assert (found["accuracy_mean"], found["accuracy_sd"]) == pytest.approx((0.4, 0.2))


def test_cosines_come_from_the_sum_of_unit_vectors() -> None:
    updates = UpdateGeometry()
    vectors = np.random.default_rng(2).normal(size=(4, 7))
    for vector in (*vectors, np.zeros(7)):  # the last has no direction
        updates.add(torch.from_numpy(vector))
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for i, a in enumerate(vectors) for b in vectors[i + 1 :]]
    assert updates.metrics()["update_cosine"] == pytest.approx(np.mean(cosines))
    assert updates.metrics()["update_norm"] == pytest.approx(np.linalg.norm(vectors, axis=1).sum() / 5)
    alone = UpdateGeometry()
    alone.add(torch.tensor([3.0, 4.0]))
    assert alone.metrics() == {"update_norm": 5.0}


@pytest.mark.parametrize(
    ("samples", "steps", "partial", "seen"),
    [(450, 21, "drop", 21 * 64), (450, 24, "keep", 3 * 450), (30, 3, "drop", 90), (450, 10, "keep", 450 + 128)],
)
def test_samples_of_local_steps(samples: int, steps: int, partial: str, seen: int) -> None:
    assert LocalPlan.of(Local(partial_batch=partial), samples, steps=steps).samples_seen == seen


LINES = [
    {"round": 1, "bytes_up": 1, "bytes_down": 10, "flops": 100},
    {"round": 2, "bytes_up": 1, "bytes_down": 10, "flops": 100, "val_accuracy": 0.5},
    {"round": 3, "bytes_up": 1, "bytes_down": 10, "flops": 100, "val_accuracy": 0.4},
]


def test_the_target_is_reached_when_it_is_first() -> None:
    reached = {"rounds_to_target": 2, "bytes_to_target": 22, "flops_to_target": 200}
    assert to_target(LINES, 0.4) == {"target": 0.4, **reached}
    assert set(to_target(LINES, 0.6).values()) == {0.6, None}


# Runs.


def answers(model: nn.Module, x: np.ndarray) -> np.ndarray:
    """Probabilities in float64."""
    with torch.no_grad():
        logits = model.eval()(torch.from_numpy(x)).double().numpy()
    shares = np.exp(logits - logits.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def expected(model: nn.Module, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    shares = answers(model, x)
    right = shares.argmax(1) == y
    return {
        "accuracy": right.mean(),
        "accuracy_macro": np.mean([right[y == c].mean() for c in set(y)]),
        "nll": -np.log(shares[np.arange(len(y)), y]).mean(),
        "ece": bin_by_bin(shares.max(1), right),
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("metrics") / "run", evaluation={"every": 2, "test_last": 2, "target": 0.01})


def test_the_last_line_is_that_of_the_final_model(finished: Run) -> None:
    federation = twelve_clients()
    parts = [federation.validation_indices(k) for k in range(12)]
    rows = np.concatenate(parts)
    last, model = finished.metrics[-1], finished.model()
    for prefix, (x, y) in (("val", (X[rows], Y[rows])), ("test", TEST)):
        for name, value in expected(model, x, y).items():
            assert last[f"{prefix}_{name}"] == pytest.approx(value, abs=1e-6), name
    each = [expected(model, X[part], Y[part])["accuracy"] for part in parts]
    assert last["val_accuracy_mean"] == pytest.approx(np.mean(each))
    assert last["val_accuracy_worst"] == pytest.approx(np.mean(sorted(each)[:2]))
    assert last["val_accuracy_sd"] == pytest.approx(np.std(each))


def by_client(run: Run) -> list[dict]:
    return [json.loads(line) for line in (run.path / "clients.jsonl").read_text().splitlines()]


def test_clients_have_a_line_at_each_evaluated_round(finished: Run) -> None:
    federation, lines = twelve_clients(), by_client(finished)
    assert [line["round"] for line in lines] == [2, 4]
    assert (lines[1]["client"], lines[1]["samples"]) == (list(range(12)), [4] * 12)
    for k in range(12):
        rows = federation.validation_indices(k)
        shares = answers(finished.model(), X[rows])
        assert lines[1]["val_accuracy"][k] == pytest.approx((shares.argmax(1) == Y[rows]).mean())
        assert lines[1]["val_nll"][k] == pytest.approx(-np.log(shares[np.arange(4), Y[rows]]).mean(), abs=1e-5)


def test_of_very_many_clients_some_are_on_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MOST_CLIENTS", 5)
    lines = by_client(run(tmp_path / "run"))
    assert len(set(lines[0]["client"])) == len(lines[0]["val_nll"]) == len(lines[0]["samples"]) == 5
    assert lines[0]["client"] == lines[1]["client"]


def test_global_forgetting_is_against_the_evaluated_rounds_before(tmp_path: Path) -> None:
    made = run(tmp_path / "run", evaluation={"every": 1, "test_last": 0}, rounds=6)
    classes = np.array([line["val_class_accuracy"] for line in by_client(made)])
    assert "global_forgetting" not in made.metrics[0]
    for t in range(1, 6):
        falls = [max(0.0, classes[t - 1][c] - classes[t][c]) for c in range(3)]
        assert made.metrics[t]["global_forgetting"] == pytest.approx(sum(falls) / 3)
        worst = [max(classes[s][c] - classes[t][c] for s in range(t)) for c in range(3)]
        assert made.metrics[t]["global_forgetting_from_best"] == pytest.approx(sum(worst) / 3)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedNova()])
def test_the_norm_of_one_clients_update_is_how_far_the_model_moved(algorithm: FedAvg, tmp_path: Path) -> None:
    made = run(tmp_path / "run", algorithm=algorithm, rounds=1, clients_per_round=1)
    pairs = zip(network().parameters(), made.model().parameters())
    moved = sum(float((a - b).detach().double().square().sum()) for a, b in pairs) ** 0.5
    assert made.metrics[0]["update_norm"] == pytest.approx(moved, rel=1e-4)
    assert "update_cosine" not in made.metrics[0]


def test_updates_are_measured_at_evaluated_rounds(finished: Run) -> None:
    for key in ("update_norm", "update_cosine"):
        assert [key in line for line in finished.metrics] == [False, True, False, True]
    assert -1 <= finished.metrics[-1]["update_cosine"] <= 1


def test_flops_are_those_of_the_matrix_products(finished: Run) -> None:
    # A sample: forward 2 (6 * 8 + 8 * 3); backward as much for the weights, and 2 * 8 * 3 for the hidden layer.
    # A round: 3 clients with 16 training samples, 2 epochs.
    assert [line["flops"] for line in finished.metrics] == [(144 + 144 + 48) * 3 * 2 * 16] * 4


def test_operations_are_counted_as_torch_counts_them() -> None:
    torch.manual_seed(0)
    convolution = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 5))
    attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    for model, x in ((convolution, torch.randn(2, 3, 8, 8)), (attention, torch.randn(2, 6, 8))):
        with FlopCounterMode(display=False) as theirs:
            model(x).sum().backward()
        with Operations() as ours:
            model(x).sum().backward()
        assert ours.total == theirs.get_total_flops() > 1000


def test_the_summary_has_the_deviation_and_the_way_to_the_target(finished: Run) -> None:
    summary = json.loads((finished.path / "summary.json").read_text())
    assert summary["final_accuracy_sd"] == pytest.approx(
        np.std([line["test_accuracy"] for line in finished.metrics[2:]])
    )
    tested = [line["test_accuracy"] for line in finished.metrics[2:]]
    assert summary["final_accuracy_best"] == max(tested)
    for kept in (60, 90):
        shares = [(1 - kept / 100) * (kept / 100) ** age for age in range(len(tested))]
        shares[-1] = (kept / 100) ** (len(tested) - 1)  # of the first round, with which it starts
        expected = np.dot(shares, tested[::-1])
        assert summary[f"final_accuracy_ema_{kept}"] == pytest.approx(expected)
    best = finished.metrics[-1]["global_forgetting_from_best"]
    assert summary["forgetting_from_best"] == best
    assert (summary["rounds_to_target"], summary["flops_to_target"]) == (2, 2 * finished.metrics[0]["flops"])
    assert summary["bytes_to_target"] == sum(sum(line[f"bytes_{way}"] for way in ("up", "down"))
                                             for line in finished.metrics[:2])  # fmt: skip


def test_a_target_needs_validation_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"evaluation\.target is measured on validation data"):
        run(tmp_path / "run", twelve_clients(validation=0.0), evaluation={"target": 0.5})


def test_every_metric_of_a_line_has_a_meaning(tmp_path: Path) -> None:
    made = run(tmp_path / "run", twelve_clients(held_out=2), forgetting={"every": 1, "sample": 3})
    assert {key for line in made.metrics for key in line} == set(METRICS) - {"simulated_seconds"}  # there is no clock


def test_the_bounds_have_pooled_metrics(tmp_path: Path) -> None:
    keys = {"val_accuracy", "val_accuracy_macro", "val_nll", "val_ece", "test_nll"}
    for algorithm in (Centralised(), LocalOnly()):
        made = run(tmp_path / type(algorithm).__name__, algorithm=algorithm, rounds=2)
        assert keys <= set(made.metrics[-1])
    assert "val_accuracy_mean" not in made.metrics[-1]  # there is no one model to hold against each client
    assert not (made.path / "clients.jsonl").exists()


# Counts, sizes, losses and rates: no shares of samples.
WITHOUT_UNIT = {
    *("round", "clients", "lr", "train_loss", "bytes_up", "bytes_down", "flops", "val_nll", "test_nll"),
    *("update_norm", "update_cosine", "final_accuracy_rounds"),
    *("rounds_to_target", "bytes_to_target", "flops_to_target"),
    *("simulated_seconds", "simulated_seconds_to_target"),
}


def test_every_share_of_samples_has_a_unit_and_nothing_else() -> None:
    for metric in [*METRICS.values(), *SUMMARY.values()]:
        assert bool(metric.unit) == (metric.name not in WITHOUT_UNIT), metric.name
        assert not metric.signed or metric.unit == "points", metric.name
    shown = [metric_of(name) for name in ("test_accuracy", "forgetting", "val_mine")]
    assert [(metric.unit, metric.factor) for metric in shown] == [("%", 100), ("points", 100), ("", 1)]
    assert metric_of("forgetting").heading("lost") == "lost, points"
    for name in METRICS.keys() & SUMMARY.keys():
        first, second = METRICS[name], SUMMARY[name]
        assert (first.unit, first.signed, first.better) == (second.unit, second.signed, second.better)
