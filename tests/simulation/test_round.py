"""The round loop, on runs small enough to check from outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torch.nn import functional as F

from fedrecall import CrossEntropy, FedAvg, Federation, Iid, Images, InputError, Local, Population, Run, federate
from fedrecall.core.rng import stream
from fedrecall.engines import Serial
from fedrecall.participation import UniformSampling
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs.records import Records

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(120, 6)).astype(np.float32), RANDOM.integers(0, 3, 120)
TEST = (RANDOM.normal(size=(30, 6)).astype(np.float32), RANDOM.integers(0, 3, 30))
UNEQUAL = [(X[:50], Y[:50]), (X[50:75], Y[50:75])]  # with a fifth for validation: 40 and 20 to train on

SETTINGS = {
    "objective": CrossEntropy(),
    "local": Local(epochs=2, batch_size=8, lr=0.3),
    "rounds": 5,
    "clients_per_round": 3,
    "evaluation": {"every": 2, "test_last": 3},
    "forgetting": {"rounds": [2, 5]},
}
ONE_STEP = Local(epochs=1, batch_size=64, lr=0.3, weight_decay=0.0)  # on all samples of the client at once


def six_clients(**options) -> Federation:
    partition = Iid(**{"clients": 6, "validation": 0.2, **options})
    return Federation.from_arrays(X, Y, test=TEST, num_classes=3, partition=partition)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Runs `SETTINGS` with some of them changed; each run has a folder of its own."""

    def run(federation: Federation | None = None, model: nn.Module | None = None, **changed) -> Run:
        out = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
        return federate(model or network(), federation or six_clients(), **{**SETTINGS, **changed, "out": out})

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return federate(network(), six_clients(), **SETTINGS, out=tmp_path_factory.mktemp("experiment") / "run")


def summary(run: Run) -> dict[str, object]:
    return json.loads((run.path / "summary.json").read_text())


def content(run: Run, name: str) -> bytes:
    return (run.path / name).read_bytes()


def accuracy(model: nn.Module, x: np.ndarray, y: np.ndarray) -> float:
    with torch.no_grad():
        return float((model.eval()(torch.from_numpy(np.array(x))).argmax(1).numpy() == y).mean())


def test_clients_are_drawn_without_repeats_as_a_function_of_seed_and_round() -> None:
    for t in range(1, 50):
        clients = UniformSampling(clients=7).sample(t, 10, stream(0, "sample", t))
        assert len(set(clients)) == 7
        assert set(clients) <= set(range(10))
    five, both = UniformSampling(clients=5), [(s, t) for s in (0, 1) for t in (1, 2)]
    draws = {(s, t): five.sample(t, 1000, stream(s, "sample", t)) for s, t in both}
    assert draws == {(s, t): five.sample(t, 1000, stream(s, "sample", t)) for s, t in both}
    assert len({tuple(clients) for clients in draws.values()}) == 4


@pytest.mark.parametrize(
    ("population", "share", "count"),
    [(100, 0.1, 10), (100, 0.02, 2), (100, 0.29, 29), (28, 0.1, 3), (3, 0.1, 1), (7, 1.0, 7)],
)
def test_a_share_of_the_clients_is_rounded_and_at_least_one(population: int, share: float, count: int) -> None:
    assert Recipe(participation=share).create_participation().expected(population) == count


def test_more_clients_than_may_train_are_refused(start: Start) -> None:
    with pytest.raises(InputError, match="clients_per_round is 5, but only 4 clients may train"):
        start(six_clients(held_out=2), clients_per_round=5)


def test_held_out_clients_never_train_and_are_evaluated_apart(start: Start) -> None:
    federation = six_clients(held_out=2)
    run = start(federation, rounds=8, clients_per_round=3, forgetting={"every": 8})
    assert {client for line in run.metrics for client in line["clients"]} == {0, 1, 2, 3}
    assert run.forgetting[8]["after"].shape == (3, 4)
    rows = np.concatenate([federation.train_indices(4), federation.train_indices(5)])
    assert len(rows) == 40
    assert run.metrics[-1]["held_out_accuracy"] == pytest.approx(accuracy(run.model(), X[rows], Y[rows]))


class Only(FedAvg):
    """The model of the clients with so many samples alone."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def weight(self, name: str, samples: int, steps: int) -> float:
        return float(samples == self.samples)


def test_the_global_model_is_the_mean_weighted_by_samples_to_the_bit(start: Start) -> None:
    both = {"federation": Federation.from_clients(UNEQUAL, num_classes=3, validation=0.2), "rounds": 1}
    both |= {"clients_per_round": 2, "forgetting": {"every": 0}}
    y0, y1 = (start(algorithm=Only(n), **both).model().state_dict() for n in (40, 20))
    for name, tensor in start(**both).model().state_dict().items():
        a, b = (y[name].numpy().astype(np.float64) for y in (y0, y1))
        assert (tensor.numpy() == ((40 * a + 20 * b) / 60).astype(np.float32)).all(), name
        assert (a != b).any()


def test_batch_statistics_are_the_mean_weighted_by_samples(start: Start) -> None:
    federation = Federation.from_clients(UNEQUAL, num_classes=3, validation=0.2)
    run = start(federation, normed(), rounds=1, clients_per_round=2, local=ONE_STEP, forgetting={"every": 0})
    parts = [X[federation.train_indices(k)].astype(np.float64) for k in (0, 1)]
    mean, variance = ((40 * a + 20 * b) / 60 for a, b in zip(*[(part.mean(0), part.var(0, ddof=1)) for part in parts]))
    norm = run.model()[0]
    np.testing.assert_allclose(norm.running_mean.numpy(), 0.1 * mean, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(norm.running_var.numpy(), 0.9 + 0.1 * variance, rtol=1e-5)


def test_batch_counters_are_the_largest(start: Start) -> None:
    federation = Federation.from_clients(UNEQUAL, num_classes=3, validation=0.2)
    local = Local(epochs=3, batch_size=10)  # 12 steps at client 0 and 6 at client 1
    run = start(federation, normed(), rounds=2, clients_per_round=2, local=local, forgetting={"every": 0})
    assert run.model()[0].num_batches_tracked == 12 + 12


def test_the_training_loss_is_the_mean_weighted_by_samples(start: Start) -> None:
    federation = Federation.from_clients(UNEQUAL, num_classes=3, validation=0.2)
    run = start(federation, rounds=1, clients_per_round=2, local=ONE_STEP, forgetting={"every": 0})
    rows = np.concatenate([federation.train_indices(0), federation.train_indices(1)])
    expected = F.cross_entropy(network()(torch.from_numpy(X[rows])), torch.from_numpy(Y[rows])).item()
    assert run.metrics[0]["train_loss"] == pytest.approx(expected, rel=1e-5)


class Counting(FedAvg):
    """Clients count their rounds and send the count twice, once with each weight."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict, dict, int]] = []
        self.asked: set[tuple[str, int, int]] = set()

    def init_client(self, x):
        return {"rounds": torch.zeros(1)}

    def finish(self, y, server, client, local, extra):
        count = client["rounds"] + 1
        return {"w": y, "alike": count, "by_steps": count}, {"rounds": count}

    def weight(self, name: str, samples: int, steps: int) -> float:
        self.asked.add((name, samples, steps))
        return {"w": float(samples), "alike": 1.0, "by_steps": float(steps)}[name]

    def aggregate(self, server, sums, totals, population):
        self.seen.append((sums, totals, population))
        return super().aggregate(server, sums, totals, population)


def test_aggregate_is_given_float64_sums_by_weight_and_their_totals(start: Start) -> None:
    algorithm = Counting()
    start(Federation.from_clients([*UNEQUAL, (X, Y)], num_classes=3, validation=0.2, held_out=1),
          algorithm=algorithm, rounds=2, clients_per_round=2)  # fmt: skip
    # 40 and 20 samples: 2 epochs of 5 and of 2 batches of 8. In round 2 both clients count 2.
    assert algorithm.asked == {(name, n, k) for name in ("w", "alike", "by_steps") for n, k in ((40, 10), (20, 4))}
    sums, totals, population = algorithm.seen[1]
    assert (sums["alike"].item(), sums["by_steps"].item()) == (2 + 2, 10 * 2 + 4 * 2)
    assert (totals["w"], totals["alike"], totals["by_steps"], population) == (60, 2, 14, Population(2, 60))
    assert sums["w"].dtype == sums["alike"].dtype == torch.float64


def test_a_run_leaves_its_files(finished: Run) -> None:
    files = {path.name for path in finished.path.iterdir() if path.is_file()}
    assert files >= {"recipe.yaml", "environment.json", "partition.npz", "partition.json", "metrics.jsonl"}
    assert files >= {"timings.jsonl", "model.safetensors", "summary.json"}
    with np.load(finished.path / "partition.npz") as arrays:
        assert (arrays["client"] == six_clients().assignment.client).all()
        assert (arrays["validation"] == six_clients().assignment.validation).all()
    recipe = yaml.safe_load(content(finished, "recipe.yaml"))
    assert (recipe["rounds"], recipe["clients_per_round"], recipe["local"]["lr"]) == (5, 3, 0.3)
    assert recipe["objective"] == {"name": "cross_entropy"}
    assert [line["round"] for line in finished.metrics] == [1, 2, 3, 4, 5]
    timings = content(finished, "timings.jsonl").splitlines()
    assert [json.loads(line)["round"] for line in timings] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["metrics.jsonl", "model.safetensors", "partition.npz", "recipe.yaml"])
def test_equal_runs_are_equal_files(finished: Run, start: Start, name: str) -> None:
    assert content(start(), name) == content(finished, name)


def test_the_seeds_of_a_run_and_of_its_partition_are_apart(finished: Run, start: Start) -> None:
    other = start(seed=1)
    assert content(other, "metrics.jsonl") != content(finished, "metrics.jsonl")
    assert content(other, "model.safetensors") != content(finished, "model.safetensors")
    assert content(other, "partition.npz") == content(finished, "partition.npz")
    other = start(six_clients(seed=1))
    assert content(other, "partition.npz") != content(finished, "partition.npz")
    assert [line["clients"] for line in other.metrics] == [line["clients"] for line in finished.metrics]


def test_the_last_accuracies_are_those_of_the_saved_model_and_the_final_one_is_their_mean(finished: Run) -> None:
    assert [line["round"] for line in finished.metrics if "val_accuracy" in line] == [2, 4, 5]
    assert [line["round"] for line in finished.metrics if "test_accuracy" in line] == [3, 4, 5]
    last, federation = finished.metrics[-1], six_clients()
    rows = np.concatenate([federation.validation_indices(k) for k in range(6)])
    assert last["test_accuracy"] == pytest.approx(accuracy(finished.model(), *TEST))
    assert last["val_accuracy"] == pytest.approx(accuracy(finished.model(), X[rows], Y[rows]))
    tested = [line["test_accuracy"] for line in finished.metrics[-3:]]
    assert summary(finished)["final_accuracy"] == pytest.approx(sum(tested) / 3)
    assert summary(finished)["final_accuracy_rounds"] == 3


@pytest.mark.parametrize(
    ("rounds", "test_last", "expected"), [(2, None, 1), (20, None, 2), (21, None, 3), (2, 100, 1), (4, 3, 3), (4, 4, 4)]
)
def test_the_final_accuracy_is_over_the_last_tenth_unless_said_otherwise(start, rounds, test_last, expected) -> None:
    given = {} if test_last is None else {"test_last": test_last}
    run = start(rounds=rounds, evaluation=given, forgetting={"every": 0})
    tested = [line["round"] for line in run.metrics if "test_accuracy" in line]
    assert tested == list(range(rounds - expected + 1, rounds + 1))
    assert summary(run)["final_accuracy_rounds"] == expected
    noted = any("evaluation.test_last is 100, but the run has 2 rounds" in text for text in summary(run)["warnings"])
    assert noted == (test_last == 100)


def test_a_long_run_is_tested_in_its_last_hundred_rounds() -> None:
    assert Recipe(rounds=4000).tested_rounds == Recipe(rounds=1000).tested_rounds == 100


def test_one_client_a_round_is_warned_of(start: Start) -> None:
    told = "each round has one of 6 clients, so nothing is averaged: set clients_per_round or participation"
    assert told in summary(start(rounds=1, clients_per_round=1))["warnings"]
    assert told not in summary(start(rounds=1, clients_per_round=2))["warnings"]


def test_there_is_no_accuracy_without_its_data(start: Start) -> None:
    run = start(Federation.from_clients(UNEQUAL, num_classes=3), clients_per_round=1)
    assert (summary(run)["final_accuracy"], summary(run)["final_accuracy_rounds"]) == (None, 0)
    run = start(six_clients(validation=0.0), forgetting={"every": 0})
    assert not any("val_accuracy" in line for line in run.metrics)
    assert summary(run)["last_val_accuracy"] is None


def test_the_rate_of_each_round_is_in_the_metrics_and_is_the_one_that_is_taken(start: Start) -> None:
    run = start(local={"lr": 0.4, "batch_size": 8, "schedule": {"name": "exponential", "factor": 0.5}})
    assert [line["lr"] for line in run.metrics] == pytest.approx([0.4, 0.2, 0.1, 0.05, 0.025])
    slow, fast = {"lr": 0.15, "batch_size": 8}, {"lr": 0.3, "batch_size": 8}
    warming = content(start(rounds=1, local={**fast, "schedule": {"warmup": 2}}), "model.safetensors")
    assert warming == content(start(rounds=1, local=slow), "model.safetensors")
    assert warming != content(start(rounds=1, local=fast), "model.safetensors")


def images() -> Federation:
    x, y = RANDOM.integers(0, 256, (40, 28, 28), dtype=np.uint8), np.arange(40) % 3
    partition = Iid(clients=4, validation=0.2)
    return Federation.from_arrays(x, y, num_classes=3, partition=partition, transform=Images((0.5,), (0.25,)))


@pytest.mark.parametrize(
    ("federation", "model", "step", "advised"),
    [
        (images, "lenet", "exact", True),
        (images, "lenet", "lanes", False),
        (six_clients, {"name": "mlp", "hidden": [8]}, "exact", False),  # six features are too few for kernels
        (six_clients, normed(), "exact", False),
    ],
    ids=["lenet", "lenet in lanes", "small mlp", "batch norm"],
)
def test_lanes_are_advised_in_the_summary_of_a_run_that_they_would_make_faster(
    start, federation, model, step, advised
) -> None:
    local = Local(epochs=1, batch_size=8, lr=0.05, step=step)
    run = start(federation(), model, rounds=2, clients_per_round=2, local=local, forgetting={"every": 0})
    advice = "local.step=lanes would train this model several times as fast (docs/engines.md)"
    assert summary(run).get("advice") == (advice if advised else None)
    assert not any("lanes" in text for text in summary(run)["warnings"])


def test_an_error_before_the_first_round_closes_the_engine(tmp_path, monkeypatch) -> None:
    closed = []
    right = Serial.close
    monkeypatch.setattr(Serial, "close", lambda self: (closed.append(True), right(self)))
    monkeypatch.setattr(Records, "recall", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        federate(network(), six_clients(), rounds=1, engine="serial", out=tmp_path / "run")
    assert closed == [True]
