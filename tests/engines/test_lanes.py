"""`step: lanes` on the engines: the same bits on `serial` and `processes`, and with any number of threads."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrecall import (
    WSM,
    CrossEntropy,
    FedAvg,
    Federation,
    FedNTD,
    Images,
    Local,
    LocalOnly,
    Scaffold,
    federate,
)
from fedrecall.client.lanes.cohort import why_not
from fedrecall.client.work import Job

SIZES = [20, 30, 9, 40, 8] * 8  # of forty clients: three sixteens


def federation(images: bool | str = False) -> Federation:
    random = np.random.default_rng(0)
    clients = []
    for n in SIZES:
        y = random.integers(0, 4, n)
        x = random.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8) if images else random.normal(size=(n, 20))
        clients.append((x if images else x.astype(np.float32), y))
    augment = {} if images == "as they lie" else {"crop_padding": 2, "flip": True}
    transform = Images((0.5,) * 3, (0.25,) * 3, **augment) if images else None
    return Federation.from_clients(clients, num_classes=4, validation=0.1, transform=transform, layout="nhwc")


def model(images: bool | str = False) -> nn.Module:
    torch.manual_seed(2)
    if not images:
        return nn.Sequential(nn.Linear(20, 17), nn.ReLU(), nn.Linear(17, 4))
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(45, 4))


def run(folder, engine: str, step: str = "lanes", workers: int = 1, images: bool | str = False, **more):
    """The weights at the end, and the run's warnings."""
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


@pytest.mark.parametrize("images", [False, True, "as they lie"])
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
    assert note == "clients train by a mapped step and not in lanes: the algorithm changes gradients or the loss"


@pytest.mark.slow
def test_what_is_mapped_comes_to_what_exact_steps_come_to(tmp_path) -> None:
    lanes, _ = run(tmp_path, "vectorised", algorithm=Scaffold())
    exact, _ = run(tmp_path, "vectorised", "exact", algorithm=Scaffold())
    assert distance(exact, lanes) < 1e-5


class Own(WSM):
    """A loss of the user's own, which only looks like one that is in the kernels."""


@pytest.mark.parametrize("objective", [FedNTD(), WSM(distill=0.1), Own()])
def test_other_losses_than_those_of_the_kernels_are_not_taken_for_them(objective) -> None:
    reason = why_not(Job(model, FedAvg(), objective, Local(step="lanes"), 0))
    assert reason == "the objective is neither cross-entropy nor WSM without distillation"


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
