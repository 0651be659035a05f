"""Probes in runs whose models can be trained here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedrecall import CrossEntropy, Federation, Iid, InputError, Local, Run, Scaffold, Shards, federate
from fedrecall.core.rng import stream

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(120, 6)).astype(np.float32), RANDOM.integers(0, 3, 120)
ONE_STEP = Local(epochs=1, batch_size=64, lr=0.3, weight_decay=0.0)  # on all samples of the client at once


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


PROBE_KEYS = ("forg", "learned", "lost_by")  # how the names of a probe's metrics begin


@pytest.mark.parametrize("settings", [{}, {"algorithm": Scaffold()}, {"batch_norm": "local"}])
@pytest.mark.parametrize("sample", [{}, {"sample": 2}])
def test_probing_does_not_change_the_training(settings: dict, sample: dict, tmp_path: Path) -> None:
    runs = {
        name: run(tmp_path / name, network(), six_clients(), forgetting=probed, evaluation={"every": 1}, **settings)
        for name, probed in (("without", {}), ("with", {"every": 1, **sample}))
    }
    without, probed = runs["without"], runs["with"]
    assert (probed.path / "model.safetensors").read_bytes() == (without.path / "model.safetensors").read_bytes()
    assert len(probed.forgetting) == 5
    lines = [{k: v for k, v in line.items() if not k.startswith(PROBE_KEYS)} for line in probed.metrics]
    assert lines == without.metrics
    assert (probed.path / "clients.jsonl").read_bytes() == (without.path / "clients.jsonl").read_bytes()


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


def skewed() -> Federation:
    """Six clients of whom each has samples of one or two of the three classes."""
    partition = Shards(clients=6, validation=0.2, shards_per_client=1)
    return Federation.from_arrays(X, Y, num_classes=3, partition=partition)


def trained_here(model: nn.Module, federation: Federation, client: int) -> nn.Module:
    """After the one local step of ONE_STEP."""
    rows = federation.train_indices(client)
    F.cross_entropy(model.train()(torch.from_numpy(X[rows])), torch.from_numpy(Y[rows])).backward()
    torch.optim.SGD(model.parameters(), lr=0.3).step()
    return model


def class_accuracies(model: nn.Module, rows: np.ndarray) -> list[float]:
    with torch.no_grad():
        right = model.eval()(torch.from_numpy(X[rows])).argmax(1).numpy() == Y[rows]
    return [float(right[Y[rows] == c].mean()) for c in range(3)]


def test_a_file_has_the_named_arrays(tmp_path: Path) -> None:
    made = run(tmp_path / "run", smooth(), six_clients(), forgetting={"rounds": [3]})
    found = {name: (array.shape, str(array.dtype)) for name, array in made.forgetting[3].items()}
    assert found == {
        "models": ((3,), "int64"),
        "data": ((6,), "int64"),
        "before": ((6,), "float64"),
        "after": ((3, 6), "float64"),
        "samples": ((6,), "int64"),
        "class_before": ((3,), "float64"),
        "class_after": ((3, 3), "float64"),
        "class_samples": ((3,), "int64"),
        "present": ((3, 3), "bool"),
        "after_aggregation": ((6,), "float64"),
    }
    assert made.forgetting[3]["data"].tolist() == [0, 1, 2, 3, 4, 5]
    assert made.forgetting[3]["samples"].tolist() == [4] * 6


def test_classes_are_those_of_models_trained_here(tmp_path: Path) -> None:
    federation = skewed()
    made = run(tmp_path / "run", smooth(), federation, rounds=1, forgetting={"every": 1})
    arrays, clients = made.forgetting[1], made.metrics[0]["clients"]
    rows = np.concatenate([federation.validation_indices(k) for k in range(6)])
    assert arrays["class_samples"].tolist() == [int((Y[rows] == c).sum()) for c in range(3)]
    before = class_accuracies(smooth(), rows)
    after = [class_accuracies(trained_here(smooth(), federation, i), rows) for i in clients]
    assert arrays["class_before"] == pytest.approx(before)
    assert arrays["class_after"] == pytest.approx(np.array(after))
    has = [set(Y[federation.train_indices(i)].tolist()) for i in clients]
    assert arrays["present"].tolist() == [[c in classes for c in range(3)] for classes in has]
    lost = {
        there: [before[c] - row[c] for row, classes in zip(after, has) for c in range(3) if (c in classes) == there]
        for there in (True, False)
    }
    assert made.metrics[0]["forgotten_present"] == pytest.approx(np.mean(lost[True]))
    assert made.metrics[0]["forgotten_absent"] == pytest.approx(np.mean(lost[False]))


def test_after_aggregation_is_the_new_global_model(tmp_path: Path) -> None:
    federation = six_clients()
    made = run(tmp_path / "run", network(), federation, forgetting={"rounds": [5]})
    after = accuracies(made.model(), federation)
    assert made.forgetting[5]["after_aggregation"] == pytest.approx(after)
    lost = made.forgetting[5]["after"].mean(0) - after
    assert made.metrics[4]["lost_by_aggregation"] == pytest.approx(lost.mean())


def test_with_batch_norm_f_is_also_that_of_the_weights_alone(tmp_path: Path) -> None:
    federation, normed = (six_clients(), nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)))
    start = {name: tensor.clone() for name, tensor in normed.state_dict().items()}
    # A rate and a momentum of the statistics at which both matter.
    normed[1].momentum = 0.9
    made = run(tmp_path / "run", normed, federation, rounds=1, forgetting={"every": 1})
    expected = {"after": [], "after_global_statistics": []}
    for client in made.metrics[0]["clients"]:
        normed.zero_grad()
        normed.load_state_dict(start)
        trained_here(normed, federation, client)
        expected["after"].append(accuracies(normed, federation))
        statistics = {name: tensor for name, tensor in start.items() if "running" in name}
        normed.load_state_dict({**normed.state_dict(), **statistics})
        expected["after_global_statistics"].append(accuracies(normed, federation))
    for name, rows in expected.items():
        assert made.forgetting[1][name] == pytest.approx(np.array(rows))
    assert expected["after"] != expected["after_global_statistics"]
    lost = [
        made.forgetting[1]["before"][k] - row[k]
        for i, row in zip(made.metrics[0]["clients"], expected["after_global_statistics"])
        for k in range(6)
        if k != i
    ]
    assert made.metrics[0]["forgetting_global_statistics"] == pytest.approx(np.mean(lost))


def test_statistics_that_stay_with_the_clients_are_not_told_twice(tmp_path: Path) -> None:
    made = run(tmp_path / "run", network(), six_clients(), batch_norm="local", forgetting={"rounds": [5]})
    assert "after_global_statistics" not in made.forgetting[5]
    assert "forgetting_global_statistics" not in made.metrics[4]


def test_a_sample_is_drawn_by_the_seed_and_the_round(tmp_path: Path) -> None:
    made = run(tmp_path / "run", smooth(), six_clients(), forgetting={"every": 1, "sample": 3})
    for t, arrays in made.forgetting.items():
        drawn = stream(0, "probe", t).choice(np.arange(6), size=3, replace=False)
        assert arrays["data"].tolist() == sorted(drawn.tolist())
    assert len({tuple(arrays["data"]) for arrays in made.forgetting.values()}) > 1


def test_a_sample_has_the_columns_of_the_whole(tmp_path: Path) -> None:
    whole, part = (
        run(tmp_path / name, network(), skewed(), forgetting={"every": 1, **sample})
        for name, sample in (("whole", {}), ("part", {"sample": 3}))
    )
    for t, arrays in part.forgetting.items():
        data, models, full = arrays["data"], arrays["models"], whole.forgetting[t]
        for name in ("before", "samples", "after_aggregation"):
            assert arrays[name].tolist() == full[name][data].tolist()
        for name in ("after", "after_global_statistics"):
            assert arrays[name].tolist() == full[name][:, data].tolist()
        assert arrays["own_before"].tolist() == full["before"][models].tolist()
        assert arrays["own_after"].tolist() == full["after"][np.arange(3), models].tolist()
        assert part.metrics[t - 1]["learned"] == pytest.approx(whole.metrics[t - 1]["learned"])
        assert part.metrics[t - 1]["forgetting_se"] >= 0
    assert any(set(arrays["models"]) - set(arrays["data"]) for arrays in part.forgetting.values())


def test_a_sample_of_everyone_is_everyone_without_an_error(tmp_path: Path) -> None:
    made = run(tmp_path / "run", smooth(), six_clients(), rounds=1, forgetting={"every": 1, "sample": 50})
    assert made.forgetting[1]["data"].tolist() == [0, 1, 2, 3, 4, 5]
    assert made.metrics[0]["forgetting_se"] == 0


def test_only_clients_with_validation_data_are_drawn(tmp_path: Path) -> None:
    clients = [(X[:40], Y[:40]), (X[40:43], Y[40:43]), (X[43:83], Y[43:83])]
    federation = Federation.from_clients(clients, num_classes=3)
    made = run(tmp_path / "run", smooth(), federation, clients_per_round=2, forgetting={"every": 1, "sample": 2})
    assert all(arrays["data"].tolist() == [0, 2] for arrays in made.forgetting.values())


@pytest.mark.parametrize("batch_norm", ["average", "local"])
@pytest.mark.usefixtures("warm_workers")
def test_probes_have_the_same_bits_on_both_engines(tmp_path: Path, batch_norm: str) -> None:
    settings = {"rounds": 2, "forgetting": {"every": 1, "sample": 4}, "batch_norm": batch_norm}
    files = []
    for engine in ("serial", "processes"):
        made = run(tmp_path / engine, network(), six_clients(), engine=engine, **settings)
        names = ("metrics.jsonl", "clients.jsonl", "forgetting/round-00001.npz", "forgetting/round-00002.npz")
        files.append([(made.path / name).read_bytes() for name in names])
    assert files[0] == files[1]
