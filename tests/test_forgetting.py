"""Forgetting, on matrices small enough to work out by hand and in runs whose models can be trained here."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedrecall import CrossEntropy, Federation, Iid, InputError, Local, Run, federate
from fedrecall.forgetting import client_accuracy, forgetting_matrix, mean_forgetting, mean_learned

BEFORE = np.array([0.5, 0.8, 0.2])
AFTER = np.array([[0.9, 0.6, 0.1], [0.25, 0.3, 0.7]])  # of the models of clients 0 and 1
MODELS = np.array([0, 1])


def test_accuracy_is_of_each_clients_own_samples() -> None:
    correct = np.array([1, 1, 0, 0, 1, 0, 0, 0], bool)
    owners = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    assert client_accuracy(correct, owners, 3) == pytest.approx([2 / 3, 1 / 2, 0])


def test_a_client_without_samples_has_no_accuracy() -> None:
    accuracy = client_accuracy(np.array([True, False, True]), np.array([0, 2, 2]), 4)
    assert np.isnan(accuracy).tolist() == [False, True, False, True]
    assert accuracy[[0, 2]].tolist() == [1.0, 0.5]


def test_the_order_of_the_samples_does_not_matter() -> None:
    correct, owners = np.array([True, False, True, True]), np.array([1, 0, 1, 0])
    assert client_accuracy(correct, owners, 2).tolist() == [0.5, 1.0]


def test_the_matrix_is_before_minus_after() -> None:
    expected = [[-0.4, 0.2, 0.1], [0.25, 0.5, -0.5]]
    np.testing.assert_allclose(forgetting_matrix(BEFORE, AFTER), expected, rtol=0, atol=1e-15)


def test_forgetting_is_the_mean_over_the_others_data() -> None:
    # Model 0 on clients 1 and 2: 0.2, 0.1. Model 1 on clients 0 and 2: 0.25, -0.5. Their sum is 0.05.
    assert mean_forgetting(forgetting_matrix(BEFORE, AFTER), MODELS) == pytest.approx(0.05 / 4)


def test_learned_is_the_mean_gain_on_their_own_data() -> None:
    # Model 0 on client 0: 0.9 - 0.5. Model 1 on client 1: 0.3 - 0.8.
    assert mean_learned(forgetting_matrix(BEFORE, AFTER), MODELS) == pytest.approx((0.4 - 0.5) / 2)


def test_rows_belong_to_the_models_that_are_named() -> None:
    # Models of clients 2 and 0. Others: -0.4 + 0.2 and 0.5 - 0.5. Own: F[0, 2] = 0.1 and F[1, 0] = 0.25.
    matrix, models = forgetting_matrix(BEFORE, AFTER), np.array([2, 0])
    assert mean_forgetting(matrix, models) == pytest.approx(-0.2 / 4)
    assert mean_learned(matrix, models) == pytest.approx(-(0.1 + 0.25) / 2)


def test_clients_without_validation_data_are_left_out_of_the_means() -> None:
    matrix = forgetting_matrix(np.array([0.5, np.nan, 0.2]), np.where([False, True, False], np.nan, AFTER))
    # Others: model 0 on client 2 0.1, model 1 on clients 0 and 2 0.25 and -0.5. Own: model 0 only, 0.4.
    assert mean_forgetting(matrix, MODELS) == pytest.approx(-0.15 / 3)
    assert mean_learned(matrix, MODELS) == pytest.approx(0.4)


def test_a_single_client_forgets_nothing_that_can_be_measured() -> None:
    assert np.isnan(mean_forgetting(np.array([[0.3]]), np.array([0])))


@pytest.mark.filterwarnings("error")
def test_models_without_own_validation_data_learned_nothing_that_can_be_measured() -> None:
    assert np.isnan(mean_learned(np.array([[np.nan, 0.1]]), np.array([0])))


def test_a_model_that_did_not_change_forgets_and_learns_nothing() -> None:
    matrix = forgetting_matrix(BEFORE, np.stack([BEFORE, BEFORE]))
    assert mean_forgetting(matrix, MODELS) == 0.0
    assert mean_learned(matrix, MODELS) == 0.0


RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(120, 6)).astype(np.float32), RANDOM.integers(0, 3, 120)
ONE_STEP = Local(epochs=1, batch_size=64, lr=0.3, weight_decay=0.0)  # on all samples of the client at once


@pytest.fixture(autouse=True)
def files_below_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def six_clients(validation: float = 0.2) -> Federation:
    return Federation.from_arrays(X, Y, num_classes=3, partition=Iid(clients=6, validation=validation))


def network() -> nn.Module:
    """Batch norm and dropout differ between training and evaluation."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def smooth() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def run(out: Path, model: nn.Module, federation: Federation, **settings) -> Run:
    settings = {"local": ONE_STEP, "rounds": 5, "clients_per_round": 3, **settings}
    return federate(model, federation, objective=CrossEntropy(), out=out, **settings)


def accuracies(model: nn.Module, federation: Federation) -> list[float]:
    """On each client's validation data."""
    parts = [federation.validation_indices(k) for k in range(6)]
    with torch.no_grad():
        guesses = [model.eval()(torch.from_numpy(X[rows])).argmax(1).numpy() for rows in parts]
    return [float((guess == Y[rows]).mean()) for guess, rows in zip(guesses, parts)]


@pytest.mark.parametrize(
    ("when", "rounds"), [({"every": 2}, [2, 4]), ({"rounds": [1, 5]}, [1, 5]), ({"every": 0}, []), ({}, [])]
)
def test_forgetting_is_measured_in_the_due_rounds(when: dict, rounds: list[int], tmp_path: Path) -> None:
    made = run(tmp_path / "run", smooth(), six_clients(), forgetting=when)
    assert sorted(made.forgetting) == rounds
    assert [line["round"] for line in made.metrics if "forgetting" in line] == rounds
    assert (made.path / "forgetting").exists() == bool(rounds)


def test_a_file_has_a_row_a_model_and_a_column_a_client(tmp_path: Path) -> None:
    made = run(tmp_path / "run", smooth(), six_clients(), forgetting={"rounds": [3]})
    with np.load(made.path / "forgetting" / "round-00003.npz") as arrays:
        assert (arrays["before"].shape, arrays["after"].shape) == ((6,), (3, 6))
        assert arrays["models"].tolist() == made.metrics[2]["clients"]


def test_forgetting_is_that_of_models_trained_here(tmp_path: Path) -> None:
    federation = six_clients()
    made = run(tmp_path / "run", smooth(), federation, rounds=1, forgetting={"every": 1})
    clients, before, after = made.metrics[0]["clients"], accuracies(smooth(), federation), []
    for client in clients:
        model, rows = smooth(), federation.train_indices(client)
        F.cross_entropy(model(torch.from_numpy(X[rows])), torch.from_numpy(Y[rows])).backward()
        torch.optim.SGD(model.parameters(), lr=0.3).step()
        after.append(accuracies(model, federation))
    assert made.forgetting[1]["before"] == pytest.approx(before)
    assert made.forgetting[1]["after"] == pytest.approx(np.array(after))
    lost = [before[k] - row[k] for i, row in zip(clients, after) for k in range(6) if k != i]
    assert made.metrics[0]["forgetting"] == pytest.approx(sum(lost) / (3 * 5))
    gained = [row[i] - before[i] for i, row in zip(clients, after)]
    assert made.metrics[0]["learned"] == pytest.approx(sum(gained) / 3)


def test_before_is_the_global_model_of_the_round_before(tmp_path: Path) -> None:
    federation = six_clients()
    first = run(tmp_path / "first", network(), federation, rounds=2)
    probed = run(tmp_path / "probed", network(), federation, rounds=3, forgetting={"rounds": [3]})
    assert probed.forgetting[3]["before"] == pytest.approx(accuracies(first.model(), federation))


def test_probing_does_not_change_the_model(tmp_path: Path) -> None:
    models = []
    for name, every in (("without", 0), ("with", 1)):
        made = run(tmp_path / name, network(), six_clients(), forgetting={"every": every})
        models.append((made.path / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_the_summary_is_the_mean_over_the_probed_rounds(tmp_path: Path) -> None:
    made = run(tmp_path / "run", smooth(), six_clients(), forgetting={"every": 2})
    told = json.loads((made.path / "summary.json").read_text())
    for key in ("forgetting", "learned"):
        assert told[key] == pytest.approx((made.metrics[1][key] + made.metrics[3][key]) / 2)


def test_without_validation_data_it_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="forgetting is measured on validation data"):
        run(tmp_path / "run", smooth(), six_clients(validation=0.0), forgetting={"rounds": [5]})
    assert not (tmp_path / "run").exists()


def test_a_round_without_a_value_is_left_out_of_the_summary(tmp_path: Path) -> None:
    # Client 1 has no validation data: its model can forget but not learn, and client 0's cannot forget.
    federation = Federation.from_clients([(X[:40], Y[:40]), (X[40:43], Y[40:43])], num_classes=3)
    made = run(tmp_path / "run", smooth(), federation, clients_per_round=1, forgetting={"every": 1})
    assert {client for line in made.metrics for client in line["clients"]} == {0, 1}
    told = json.loads((made.path / "summary.json").read_text())
    for key in ("forgetting", "learned"):
        values = [line[key] for line in made.metrics if line[key] is not None]
        assert told[key] == pytest.approx(sum(values) / len(values))
