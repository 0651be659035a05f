"""Any algorithm with any objective, with batch norm, group norm or none: finite, repeatable, and clean."""

from __future__ import annotations

import copy
import functools
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from server_data import at_the_server
from torch import Tensor, nn

from fedrecall import WSM, Federation, InputError, Local, federate
from fedrecall.algorithms import ALGORITHMS
from fedrecall.client.job import Job
from fedrecall.client.tasks import TrainTask
from fedrecall.client.update import Update
from fedrecall.client.worker import Worker
from fedrecall.core.vector import Tensors
from fedrecall.objectives import OBJECTIVES
from fedrecall.runs.client_states import StateFiles

NORMS = {"batch": lambda: nn.BatchNorm2d(4), "group": lambda: nn.GroupNorm(2, 4), "none": nn.Identity}
KINDS = {**{name: kind() for name, kind in OBJECTIVES.items()}, "wsm+": WSM(smoothing=0.003, distill=0.1)}
# Training samples of the four clients. In batches of 4 they take 1, 1, 2 and 3 steps; the last has one class.
SIZES = (4, 6, 8, 12)
CLASSES = 3

ALL = list(itertools.product(ALGORITHMS, KINDS, NORMS))
UNDEFINED = [(a, o, n) for a, o, n in ALL if a == "local_only" and "teacher" in KINDS[o].needs]


def is_quick(algorithm: str, objective: str, norm: str) -> bool:
    """Two objectives for each algorithm, in turns as the norms: by design, neither knows the other."""
    i, j = list(ALGORITHMS).index(algorithm), list(KINDS).index(objective)
    apart = (j - i) % len(KINDS)
    return apart in (2, 3) and list(NORMS)[(i + apart) % len(NORMS)] == norm


DEFINED = [
    pytest.param(*combination, marks=() if is_quick(*combination) else pytest.mark.slow)
    for combination in ALL
    if combination not in UNDEFINED
]


class Net(nn.Module):
    """Dropout as well: what it draws is one more thing that a client may leave to the next."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), NORMS[norm]()
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(4 * 9, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(self.drop(nn.functional.max_pool2d(x, 2).flatten(1)))


@pytest.fixture(scope="module")
def federation() -> Federation:
    random = np.random.default_rng(0)
    sizes = [5, 8, 10, 15]  # a fifth, rounded, is for validation
    clients = [(random.integers(0, 256, (n, 8, 8), dtype=np.uint8), random.integers(0, CLASSES, n)) for n in sizes]
    clients[3] = clients[3][0], np.full(sizes[3], 2)
    clients[1] = clients[1][0], np.arange(sizes[1]) % 2
    made = Federation.from_clients(clients, test=clients[2], num_classes=CLASSES, validation=0.2)
    assert [len(made.train_indices(k)) for k in range(4)] == list(SIZES)
    return made


@functools.cache
def net(norm: str) -> Net:
    """Made once: what is given to `federate` is not changed."""
    torch.manual_seed(0)
    return Net(norm)


def settings(algorithm: str, objective: str) -> Local:
    """Every second combination has momentum."""
    at = list(ALGORITHMS).index(algorithm) + list(KINDS).index(objective)
    schedule = {"name": "exponential", "factor": 0.5}
    return Local(epochs=1, batch_size=4, lr=0.05, momentum=0.9 * (at % 2), schedule=schedule)


def start(federation: Federation, out: Path, algorithm: str, objective: str, norm: str, **options) -> Path:
    run = federate(
        net(norm), federation, algorithm=ALGORITHMS[algorithm](), objective=KINDS[objective],
        **at_the_server(algorithm, federation),
        local=settings(algorithm, objective), rounds=2, clients_per_round=3,
        evaluation={"every": 2, "test_last": 1}, **{"engine": "serial", "out": out, **options},
    )  # fmt: skip
    return run.path


def is_finite(tensors: Tensors) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values())


@pytest.mark.parametrize(("algorithm", "objective", "norm"), DEFINED)
def test_a_run_is_finite_and_the_same_twice(federation, tmp_path, algorithm, objective, norm) -> None:
    first, second = (start(federation, tmp_path / name, algorithm, objective, norm) for name in ("first", "second"))
    lines = [json.loads(line) for line in (first / "metrics.jsonl").read_text().splitlines()]
    assert [line["lr"] for line in lines] == [0.05, 0.025]
    for line in lines:
        assert None not in line.values()  # which is what NaN is written as
    assert {"train_loss", "val_accuracy", "test_accuracy"} <= set(lines[1])
    states = [*(first / "checkpoints").glob("*2.safetensors"), *(first / "clients").rglob("*.safetensors")]
    assert states
    for path in states:
        assert is_finite(load_file(path)), path
    assert (first / "metrics.jsonl").read_bytes() == (second / "metrics.jsonl").read_bytes()
    if not ALGORITHMS[algorithm].personal:
        assert is_finite(load_file(first / "model.safetensors"))
        assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


def rounds_of(worker: Worker, orders: list[list[int]], local: Local) -> dict[tuple[int, int], Update]:
    """Two rounds of training tasks in a worker, each in the given order of the clients."""
    algorithm, results = worker.job.algorithm, {}
    server, buffers = algorithm.init(worker.flat.w.clone()), worker.flat.buffers()
    for t, clients in enumerate(orders, start=1):
        worker.publish(algorithm.broadcast(server), buffers)
        for client in clients:
            task = TrainTask(t, 0, client, local.rate(t, 2), state_version=t - 1 if stateful(worker) else 0)
            results[t, client] = worker.run(task)
        # Any server will do for the second round, if it is another one, and if control variates are not zero.
        random = torch.Generator().manual_seed(1)
        server = {name: w + 0.02 * torch.rand(w.shape, generator=random) for name, w in server.items()}
        buffers = {"b": buffers["b"] + 0.1, "i": buffers["i"] + 5}
    return results


def stateful(worker: Worker) -> bool:
    return any(worker.states.folder.rglob("*.safetensors"))


@pytest.mark.parametrize(("algorithm", "objective", "norm"), DEFINED)
def test_clients_leave_nothing_to_those_after_them(federation, tmp_path, algorithm, objective, norm) -> None:
    if algorithm == "centralised":  # has one client
        orders = [[[-1], [-1]]] * 2
    else:
        orders = [[[0, 2, 3], [0, 2, 3]], [[3, 0, 2], [2, 3, 0]]]
    local = settings(algorithm, objective)
    job = Job(lambda: copy.deepcopy(net(norm)), ALGORITHMS[algorithm](), KINDS[objective], local, seed=7)
    stores = [StateFiles(tmp_path / name) for name in ("a", "b")]
    results = [rounds_of(Worker(job, federation, store), order, local) for store, order in zip(stores, orders)]
    assert results[0].keys() == results[1].keys()
    for key, expected in results[0].items():
        found = results[1][key]
        assert_same(found.sent, expected.sent)
        assert_same(found.buffers, expected.buffers)
        assert found.scalars() == expected.scalars()
        if expected.state:
            states = [store.get(key[1], expected.state) for store in stores]
            assert_same(*states)


def assert_same(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("algorithm", "objective", "norm"), UNDEFINED)
def test_an_undefined_combination_is_refused_with_the_reason(federation, tmp_path, algorithm, objective, norm) -> None:
    name = "wsm" if objective == "wsm+" else objective
    with pytest.raises(InputError, match=f"'{name}' learns from the global model, and .*'local_only' there is no"):
        start(federation, tmp_path / "run", algorithm, objective, norm)
    assert not (tmp_path / "run").exists()


def test_the_quick_sample_has_each_of_them_in_several_settings() -> None:
    sample = [one for one in ALL if is_quick(*one) and one not in UNDEFINED]
    for algorithm in set(ALGORITHMS) - {"local_only"}:  # which some of its objectives are undefined with
        taken = [(o, n) for a, o, n in sample if a == algorithm]
        assert [len(set(column)) for column in zip(*taken)] == [2, 2]
        assert {settings(algorithm, objective).momentum > 0 for objective, _ in taken} == {True, False}
    for objective in KINDS:
        assert [len(set(column)) >= 2 for column in zip(*[(a, n) for a, o, n in sample if o == objective])] == [
            True
        ] * 2


def test_only_distillation_without_a_global_model_is_undefined() -> None:
    assert {(a, o) for a, o, _ in UNDEFINED} == {("local_only", o) for o in ("fedlmd", "fedntd", "fedvls", "wsm+")}


ON_WORKERS = [("scaffold", "fedntd"), ("feddyn", "fedvls"), ("moon", "wsm+"), ("fedcurv", "fedvls")]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "objective"), ON_WORKERS)
def test_state_and_teachers_have_the_same_bits_in_worker_processes(federation, tmp_path, algorithm, objective) -> None:
    here = start(federation, tmp_path / "here", algorithm, objective, "batch", forgetting={"every": 1})
    there = start(
        federation, tmp_path / "there", algorithm, objective, "batch", forgetting={"every": 1}, engine="processes",
        workers=2,
    )  # fmt: skip
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (here / name).read_bytes() == (there / name).read_bytes()
    states = [sorted((run / "clients").rglob("*.safetensors")) for run in (here, there)]
    assert len(states[0]) == len(states[1]) == 4
    for one, other in zip(*states):
        assert one.name == other.name
        assert_same(load_file(one), load_file(other))
