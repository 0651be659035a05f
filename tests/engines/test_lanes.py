"""`step: lanes` on the engines: the same bits on `serial` and `processes`, and with any number of threads."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrecall import (
    WSM,
    CrossEntropy,
    FedAvg,
    Federation,
    Images,
    InputError,
    Local,
    LocalOnly,
    Scaffold,
    federate,
)
from fedrecall.client.forward_calls import LOOKS_EVERY
from fedrecall.models.lenet import lenet

SIZES = [20, 30, 9, 40, 8] * 8  # of forty clients: three sixteens


def federation(images: bool | str = False) -> Federation:
    random = np.random.default_rng(0)
    clients = []
    for n in SIZES:
        y = random.integers(0, 4, n)
        x = random.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8) if images else random.normal(size=(n, 20))
        clients.append((x if images else x.astype(np.float32), y))
    augment = {} if images == "not augmented" else {"crop_padding": 2, "flip": True}
    transform = Images((0.5,) * 3, (0.25,) * 3, **augment) if images else None
    return Federation.from_clients(clients, num_classes=4, validation=0.1, transform=transform, layout="nhwc")


def model(images: bool | str = False) -> nn.Module:
    torch.manual_seed(2)
    if not images:
        return nn.Sequential(nn.Linear(20, 17), nn.ReLU(), nn.Linear(17, 4))
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(45, 4))


def run(folder, engine: str, step: str = "lanes", workers: int = 1, images: bool | str = False, **more):
    """The weights at the end, and what the run notes about lanes."""
    local = {"epochs": 2, "batch_size": 10, "lr": 0.1, "momentum": 0.5, "step": step} | more.pop("local", {})
    settings = {"algorithm": FedAvg(), "objective": WSM(smoothing=0.1), "participation": 1.0} | more
    done = federate(
        model(images), federation(images), rounds=2, local=Local(**local), engine=engine, workers=workers,
        evaluation={"every": 10, "test_last": 0}, out=folder / f"{engine}-{step}-{workers}", **settings,
    )  # fmt: skip
    events = (done.path / "events.jsonl").read_text().splitlines() if (done.path / "events.jsonl").exists() else []
    notes = [event["message"] for event in map(json.loads, events) if "lanes" in event.get("message", "")]
    return torch.cat([p.detach().reshape(-1) for p in done.model().parameters()]), notes


def distance(a: Tensor, b: Tensor, images: bool | str = False) -> float:
    """Of two ends, beside the way there."""
    start = torch.cat([p.detach().reshape(-1) for p in model(images).parameters()])
    return float((a - b).norm() / (a - start).norm())


@pytest.mark.parametrize("images", [False, True, "not augmented"])
def test_clients_in_lanes_come_to_what_they_come_to_one_by_one(tmp_path, monkeypatch, images) -> None:
    """Also with augmentation, which each client draws for itself."""
    monkeypatch.setattr("fedrecall.engines.vectorised.LEAST_WORK", 1)  # so that there is work for several threads
    exact, _ = run(tmp_path, "serial", "exact", images=images)
    samples, notes = run(tmp_path, "serial", images=images)
    clients, more_notes = run(tmp_path, "vectorised", images=images)
    threads, _ = run(tmp_path, "vectorised", workers=2, images=images)
    assert notes == more_notes == []
    assert distance(exact, samples, images) < 1e-4
    assert distance(exact, clients, images) < 1e-4
    assert torch.equal(clients, threads)


@pytest.mark.slow
def test_partial_batches_train_in_lanes(tmp_path) -> None:
    exact, _ = run(tmp_path, "serial", "exact", local={"partial_batch": "keep"})
    clients, notes = run(tmp_path, "vectorised", local={"partial_batch": "keep"})
    assert notes == []
    assert distance(exact, clients) < 1e-5


@pytest.mark.slow
def test_models_of_clients_own_train_in_lanes(tmp_path) -> None:
    losses = [
        federate(
            model(), federation(), algorithm=LocalOnly(), rounds=2, participation=1.0, engine=engine,
            local=Local(epochs=2, batch_size=10, lr=0.1, step=step), out=tmp_path / engine,
        ).metrics[-1]["train_loss"]
        for engine, step in (("serial", "exact"), ("vectorised", "lanes"))
    ]  # fmt: skip
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_client_that_diverges_is_left_out_of_the_sum(tmp_path) -> None:
    """Kernels add the models up; where the sum is not finite, the others' is made again."""
    random = np.random.default_rng(0)
    clients = [(random.normal(size=(20, 20)).astype(np.float32), random.integers(0, 4, 20)) for _ in range(20)]
    wild = [*clients[:7], (clients[7][0] * np.float32(1e38), clients[7][1]), *clients[8:]]
    ends, left_out = [], []
    for engine, step in (("serial", "exact"), ("vectorised", "lanes")):
        done = federate(
            model(), Federation.from_clients(wild, num_classes=4, validation=0), algorithm=FedAvg(), rounds=2,
            participation=1.0, local=Local(epochs=1, batch_size=10, lr=0.1, step=step), engine=engine,
            out=tmp_path / engine,
        )  # fmt: skip
        ends.append(torch.cat([p.detach().reshape(-1) for p in done.model().parameters()]))
        left_out.append([sorted(set(range(20)) - set(line["clients"])) for line in done.metrics])
    assert left_out == [[[7], [7]]] * 2
    assert distance(*ends) < 1e-5


def test_what_is_not_in_the_kernels_is_mapped_and_said(tmp_path) -> None:
    _, (note,) = run(tmp_path, "vectorised", algorithm=Scaffold(), local={"epochs": 1})
    assert note == "clients train by a mapped step and not in lanes: the algorithm changes gradients"


@pytest.mark.slow
def test_what_is_mapped_comes_to_what_exact_steps_come_to(tmp_path) -> None:
    lanes, _ = run(tmp_path, "vectorised", algorithm=Scaffold())
    exact, _ = run(tmp_path, "vectorised", "exact", algorithm=Scaffold())
    assert distance(exact, lanes) < 1e-5


@pytest.mark.slow
def test_every_algorithm_steps_in_lanes_on_serial(tmp_path) -> None:
    settings = {"algorithm": Scaffold(), "objective": CrossEntropy()}
    lanes, notes = run(tmp_path, "serial", **settings)
    exact, _ = run(tmp_path, "serial", "exact", **settings)
    assert notes == []
    assert distance(exact, lanes) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_processes_have_the_bits_of_serial(tmp_path, workers) -> None:
    serial, _ = run(tmp_path, "serial", images=True)
    processes, notes = run(tmp_path, "processes", workers=workers, images=True)
    assert notes == []
    assert torch.equal(serial, processes)


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_rate_of_zero_reports_the_loss_of_the_first_model(tmp_path, engine) -> None:
    """Whether a client takes a step is not told by its rate."""
    losses = [
        federate(
            model(), federation(), algorithm=FedAvg(), objective=CrossEntropy(), rounds=1, participation=1.0,
            local=Local(epochs=1, batch_size=10, lr=0.0, step=step), engine=engine, out=tmp_path / step,
        ).metrics[0]["train_loss"]
        for step in ("exact", "lanes")
    ]  # fmt: skip
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] > 1


@pytest.mark.parametrize("engine", ["auto", "serial", "vectorised", "processes"])
@pytest.mark.usefixtures("warm_workers")
def test_a_model_of_float64_takes_exact_steps_on_every_engine_with_a_note(tmp_path, engine) -> None:
    done = federate(
        model().double(), federation(), rounds=1, clients_per_round=3, engine=engine, out=tmp_path / "run",
        local=Local(epochs=1, batch_size=8, lr=0.1, step="lanes"), workers=1 if engine == "processes" else "auto",
    )  # fmt: skip
    note = "steps are exact and not in lanes: there is no kernel for a precision other than float32"
    assert [text for text in done.summary["warnings"] if text.startswith(note)]
    assert {p.dtype for p in done.model().parameters()} == {torch.float64}


def noise(clients: int) -> Federation:
    """Images of floats, in whose windows rounding decides which value is the largest."""
    random = np.random.default_rng(1)
    pairs = [(random.normal(size=(20, 3, 32, 32)).astype(np.float32), np.arange(20) % 4) for _ in range(clients)]
    return Federation.from_clients(pairs, num_classes=4, validation=0)


@pytest.mark.parametrize(
    ("clients", "workers"),
    [(8, 2), *(pytest.param(100, workers, marks=pytest.mark.slow) for workers in (1, 2, 3))],
)
@pytest.mark.usefixtures("warm_workers")
def test_noise_has_the_bits_of_serial_with_any_number_of_workers(tmp_path, clients, workers) -> None:
    ends = [
        federate(
            partial(lenet, (3, 32, 32), 4), noise(clients), rounds=3, participation=1.0, engine=engine,
            workers=count, local=Local(epochs=1, batch_size=10, lr=0.05, step="lanes"),
            evaluation={"every": 10}, out=tmp_path / engine,
        ).path
        for engine, count in (("serial", 1), ("processes", workers))
    ]  # fmt: skip
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (ends[0] / name).read_bytes() == (ends[1] / name).read_bytes()


SCHEDULE = {"relu": True}


class Scheduled(nn.Sequential):
    """Reads a variable that somebody else changes."""

    def forward(self, x: Tensor) -> Tensor:
        x = self[0](x)
        return self[1](torch.relu(x) if SCHEDULE["relu"] else x)


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_forward_that_changes_ends_the_run_before_the_round_that_looks_at_it(tmp_path, monkeypatch, engine) -> None:
    monkeypatch.setitem(SCHEDULE, "relu", True)

    def change(line: dict[str, object]) -> None:
        SCHEDULE["relu"] = line["round"] < LOOKS_EVERY - 1

    with pytest.raises(InputError, match=f"before round {LOOKS_EVERY} the model's forward is not the one of"):
        federate(
            Scheduled(nn.Linear(20, 17), nn.Linear(17, 4)), federation(), rounds=LOOKS_EVERY + 2,
            clients_per_round=2, engine=engine, callbacks=[change], evaluation={"every": 100, "test_last": 0},
            local=Local(steps=1, batch_size=8, lr=0.1, step="lanes"), out=tmp_path / "run",
        )  # fmt: skip
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == LOOKS_EVERY - 1
