"""Bytes up and down in the metrics, from the number of parameters and buffers by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from server_data import at_the_server
from torch import nn

from fedrecall import CrossEntropy, FedAvg, Federation, Iid, Local, federate
from fedrecall.algorithms import ALGORITHMS

# Bytes of the parameters, without what pads them to 64 in memory: batch norm 6 and 6 floats, the head 18 and 3.
W = 4 * (6 + 6 + 18 + 3)
BUFFERS = 4 * (6 + 6) + 8  # running mean and variance of 6 floats, and an int64 counter
COORDINATES = W // 4
CLIENTS = 3  # of 5 in a round

# What one client sends and is sent, without buffers.
TRAFFIC = {
    "fedavg": (W, W),
    "fedprox": (W, W),
    "scaffold": (2 * W, 2 * W),  # control variates both ways
    "fednova": (W + 8, W),  # its number of steps as a float64
    "fedavgm": (W, W),
    "fedadam": (W, W),
    "fedyogi": (W, W),
    "fedadagrad": (W, W),
    "feddyn": (W, W),
    "moon": (W, W),
    "fedexp": (W + 8, W),  # the norm of its update as a float64
    "gma": (W + COORDINATES, W),  # signs, one byte each
    "fedacg": (W, W),
    "fedcm": (2 * W, 2 * W),  # the direction of the last round, and each client's
    "feddisco": (W, W),
    "fedsam": (W, W),
    "fedlesam": (W, 2 * W),  # the direction of the server's last step
    "feddf": (W, W),
    "median": (W, W),
    "trimmed_mean": (W, W),
    "krum": (W, W),
    "fedcurv": (3 * W, 3 * W),  # curvatures, and their products with the model
}
BOUNDS = ("centralised", "local_only")
# With models of their own: the vector has what stays at home at its first values; FedBN's statistics do not travel.
PERSONAL = {"fedper": W + BUFFERS, "ditto": W + BUFFERS, "fedbn": W}


@pytest.fixture(scope="module")
def federation() -> Federation:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 6)).astype(np.float32), random.integers(0, 3, 60)
    return Federation.from_arrays(x, y, partition=Iid(clients=5, validation=0), num_classes=3)


def traffic(federation: Federation, out: Path, algorithm: str, norm: bool = True, **settings) -> list[tuple]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(6) if norm else nn.Identity(), nn.Linear(6, 3))
    run = federate(
        model, federation, algorithm=ALGORITHMS[algorithm](), objective=CrossEntropy(), rounds=2,
        clients_per_round=CLIENTS, local=Local(steps=1, lr=0.01), out=out, **at_the_server(algorithm, federation),
        **{"engine": "serial", **settings},
    )  # fmt: skip
    return [(line["bytes_up"], line["bytes_down"]) for line in run.metrics]


def test_every_algorithm_is_counted_here() -> None:
    assert {*TRAFFIC, *BOUNDS, *PERSONAL} == set(ALGORITHMS)


@pytest.mark.parametrize("algorithm", TRAFFIC)
def test_vectors_and_buffers_travel_both_ways(federation, tmp_path, algorithm) -> None:
    up, down = TRAFFIC[algorithm]
    expected = CLIENTS * (up + BUFFERS), CLIENTS * (down + BUFFERS)
    assert traffic(federation, tmp_path / "run", algorithm) == [expected] * 2


@pytest.mark.parametrize("algorithm", TRAFFIC)
def test_local_statistics_do_not_travel(federation, tmp_path, algorithm) -> None:
    up, down = TRAFFIC[algorithm]
    found = traffic(federation, tmp_path / "run", algorithm, batch_norm="local")
    assert found == [(CLIENTS * up, CLIENTS * down)] * 2


@pytest.mark.parametrize("algorithm", PERSONAL)
def test_personal_algorithms_send_a_vector_of_one_length(federation, tmp_path, algorithm) -> None:
    each = CLIENTS * PERSONAL[algorithm]
    assert traffic(federation, tmp_path / "run", algorithm) == [(each, each)] * 2


@pytest.mark.parametrize("algorithm", BOUNDS)
def test_the_bounds_exchange_nothing(federation, tmp_path, algorithm) -> None:
    assert traffic(federation, tmp_path / "run", algorithm) == [(0, 0)] * 2


def test_a_model_without_buffers_sends_none(federation, tmp_path) -> None:
    head = 4 * (18 + 3)
    assert traffic(federation, tmp_path / "run", "fedavg", norm=False) == [(CLIENTS * head, CLIENTS * head)] * 2


def test_float64_numbers_are_eight_bytes_each(federation, tmp_path) -> None:
    torch.manual_seed(0)
    run = federate(
        nn.Linear(6, 3).double(), federation, algorithm=FedAvg(), objective=CrossEntropy(), rounds=1,
        clients_per_round=CLIENTS, local=Local(steps=1), out=tmp_path / "run", engine="serial",
    )  # fmt: skip
    assert run.metrics[0]["bytes_up"] == run.metrics[0]["bytes_down"] == CLIENTS * 8 * (18 + 3)


@pytest.mark.parametrize(("algorithm", "policy"), [("gma", "average"), ("scaffold", "local")])
@pytest.mark.usefixtures("warm_workers")
def test_worker_processes_count_the_same(federation, tmp_path, algorithm, policy) -> None:
    up, down = TRAFFIC[algorithm]
    buffers = BUFFERS if policy == "average" else 0
    found = traffic(
        federation, tmp_path / "run", algorithm, batch_norm=policy, engine="processes", workers=2,
    )  # fmt: skip
    assert found == [(CLIENTS * (up + buffers), CLIENTS * (down + buffers))] * 2
