"""The engine on a real cluster of three nodes: the bits of `serial`, whatever happens to the nodes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from ray_cluster import add_node
from torch import Tensor, nn

from fedrecall import WSM, Classwise, Federation, InputError, Local, Run, Watcher, federate
from fedrecall.algorithms import ALGORITHMS
from fedrecall.client.partial_sums import PartialSum
from fedrecall.engines.ray import engine as ray_engine
from fedrecall.engines.ray import samples, states
from fedrecall.errors import ClientError
from fedrecall.measure.watcher import Round

pytestmark = pytest.mark.heavy


class Net(nn.Module):
    """Batch norm and dropout: weights, buffers and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 12), nn.BatchNorm1d(12)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.first(x)))))


class Slow(Net):
    """Takes its time, so that something can happen meanwhile."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            time.sleep(0.02)
        return super().forward(x)


class Dies(Net):
    """Ends its process in training, as often as there are files to delete in a folder."""

    def __init__(self, lives: Path, *, hangs: bool = False) -> None:
        super().__init__()
        self.lives, self.hangs = lives, hangs

    def forward(self, x: Tensor) -> Tensor:
        left = list(self.lives.iterdir()) if self.training else []
        with contextlib.suppress(FileNotFoundError):  # another worker took it
            for life in left[:1]:
                life.unlink()
                time.sleep(600 if self.hangs else 0)
                os._exit(7)
        return super().forward(x)


@pytest.fixture(scope="module")
def federation() -> Federation:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(3200, 8)).astype("float32"), random.integers(0, 5, 3200)
    partition = Classwise(alpha=2.0, clients=220, validation=0.1, seed=0)
    return Federation.from_arrays(x[:3000], y[:3000], test=(x[3000:], y[3000:]), partition=partition)


def train(federation: Federation, out: Path, cluster=None, model=Net, algorithm="fedavg", **options) -> Run:
    execution = {} if cluster is None else {"ray_address": cluster.address}
    torch.manual_seed(0)
    return federate(
        model(), federation, algorithm=ALGORITHMS[algorithm](), objective=WSM(),
        local=Local(epochs=1, batch_size=4, lr=0.05, momentum=0.5), seed=1, out=out, progress=False,
        engine="serial" if cluster is None else "ray",
        **{
            "rounds": 2, "clients_per_round": 5, "evaluation": {"every": 2, "test_last": 1}, **options,
            "execution": {**execution, **options.get("execution", {})},
        },
    )  # fmt: skip


def assert_same(a: Run, b: Run) -> None:
    """Metrics and the model, byte for byte, and the states that count."""
    for name in ("metrics.jsonl", "clients.jsonl", "model.safetensors"):
        assert (a.path / name).exists() == (b.path / name).exists()
        if (a.path / name).exists():
            assert (a.path / name).read_bytes() == (b.path / name).read_bytes(), name
    kept = [{path.name: path.read_bytes() for path in (run.path / "clients").rglob("*.safetensors")} for run in (a, b)]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn", "moon", "fedcurv", "local_only"])
def test_algorithms_with_client_state_have_the_bits_of_serial(cluster, federation, tmp_path, algorithm) -> None:
    probes = {} if algorithm == "local_only" else {"forgetting": {"every": 2}}
    rest = {"algorithm": algorithm, "rounds": 3, "clients_per_round": 20, **probes}
    assert_same(train(federation, tmp_path / "ray", cluster, **rest), train(federation, tmp_path / "serial", **rest))


@pytest.mark.parametrize("count", [16, 40, 220])
def test_sums_on_the_nodes_have_the_bits_of_serial(cluster, federation, tmp_path, count) -> None:
    rest = {"clients_per_round": count, "evaluation": {"every": 1, "test_last": 1}}
    assert_same(train(federation, tmp_path / "ray", cluster, **rest), train(federation, tmp_path / "serial", **rest))


class Results(Watcher):
    """What the results of a run were."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def result(self, round: Round, result: object) -> None:
        self.seen.append(result)


def test_who_wants_to_see_each_client_is_shown_each(cluster, federation, tmp_path, monkeypatch) -> None:
    given, each = [], Results()
    inner = ray_engine.Ray.train
    monkeypatch.setattr(ray_engine.Ray, "train", lambda *a, **k: (given.append(r) or r for r in inner(*a, **k)))
    added = train(federation, tmp_path / "added", cluster, clients_per_round=40)
    assert given
    assert all(isinstance(result, PartialSum) for result in given)
    one_by_one = train(federation, tmp_path / "each", cluster, clients_per_round=40, callbacks=[each])
    assert len(each.seen) == 2 * 40
    assert all(result.sent["w"].isfinite().all() for result in each.seen)
    assert_same(added, one_by_one)


def test_a_node_that_dies_in_a_round_changes_nothing(cluster, federation, tmp_path) -> None:
    node, killed = add_node(cluster), []

    def kill() -> None:
        time.sleep(0.7)
        cluster.remove_node(node, allow_graceful=False)
        killed.append(time.monotonic())

    def watch(line: dict) -> None:
        if line["round"] == 1:
            threading.Thread(target=kill).start()
        ended.append(time.monotonic())

    ended: list[float] = []
    rest = {"algorithm": "scaffold", "model": Slow, "rounds": 3, "clients_per_round": 60}
    lost = train(federation, tmp_path / "ray", cluster, callbacks=[watch], **rest)
    assert ended[0] < killed[0] < ended[1]  # in the middle of round 2
    # A worker that has nothing to do is missed in the next round only.
    (said,) = [w for w in lost.summary["warnings"] if re.match(r"round [23] lost 1 worker on the node", w)]
    assert re.fullmatch(r"round . .* [\d.]+ \(\w{8}\)(; \d+ clients? w(as|ere) run again by others)?", said)
    where = said.split("node ")[1].split(";")[0]
    assert f"the node {where} was lost in round {said.split()[1]}" in lost.summary["warnings"]
    assert said in (lost.path / "events.jsonl").read_text()
    assert_same(lost, train(federation, tmp_path / "serial", **rest))


@pytest.mark.parametrize("algorithm", ["scaffold", "moon"])
def test_states_travel_where_the_folder_is_not_seen(cluster, federation, tmp_path, algorithm, monkeypatch) -> None:
    rest = {"algorithm": algorithm, "rounds": 3, "clients_per_round": 40}
    serial = train(federation, tmp_path / "serial", **rest)
    put = []
    monkeypatch.setattr(states.FolderToken, "leave", lambda self: None)
    monkeypatch.setattr(
        ray_engine, "unpack_tensors", lambda packed, real=ray_engine.unpack_tensors: put.append(1) or real(packed)
    )
    assert_same(train(federation, tmp_path / "ray", cluster, **rest), serial)
    assert len(put) >= 3 * 40


def test_samples_are_sent_to_nodes_that_have_them_not(cluster, federation, tmp_path, monkeypatch) -> None:
    nodes = []
    inner = samples.SampleSupply.of_node
    monkeypatch.setattr(samples, "seen", lambda path: (0, path.stat().st_size, 0))  # no file of any node is this one
    monkeypatch.setattr(samples, "PIECE", 10_000)
    monkeypatch.setattr(samples.SampleSupply, "of_node", lambda self, node: nodes.append(node) or inner(self, node))
    ray = train(federation, tmp_path / "ray", cluster)
    assert len(set(nodes)) == 3
    monkeypatch.undo()
    assert_same(ray, train(federation, tmp_path / "serial"))
    assert not list(Path("/tmp").glob("fedrecall-samples-*"))


def test_a_node_of_another_kind_is_noted(cluster, federation, tmp_path, monkeypatch) -> None:
    here = ray_engine.environment
    monkeypatch.setattr(ray_engine, "environment", lambda device: {**here(device), "cpu": "Another"})
    run = train(federation, tmp_path / "run", cluster, rounds=1)
    events = (run.path / "events.jsonl").read_text()
    assert "bits may differ: a node is not as this machine: cpu is " in events
    assert "there and Another here" in events
    (node,) = json.loads((run.path / "environment.json").read_text())["nodes"]
    assert node["torch"] == torch.__version__


def test_too_many_workers_are_refused_with_what_there_is(cluster, federation, tmp_path) -> None:
    sentence = r"9 workers with 1 CPU each were asked for .* room for \d: \d nodes? \(1 CPU"
    with pytest.raises(InputError, match=sentence):
        train(federation, tmp_path / "run", cluster, execution={"workers": 9})
    with pytest.raises(InputError, match=r"a worker with 1 CPU and 0.5 GPU was asked for"):
        train(federation, tmp_path / "gpu", cluster, execution={"resources": {"GPU": 0.5}, "device": "cpu"})


def test_what_others_have_taken_is_not_waited_for_without_end(cluster, federation, tmp_path, monkeypatch) -> None:
    import ray

    ray.init(address=cluster.address, log_to_driver=False)
    try:
        room = int(ray.cluster_resources()["CPU"])
        held = [ray.remote(Counter).options(num_cpus=1).remote() for _ in range(room)]
        ray.get([holder.total.remote() for holder in held])
        monkeypatch.setattr(ray_engine, "START", 3.0)
        with pytest.raises(InputError, match=r"no worker has begun within 3 s: .* CPU each were asked for, and"):
            train(federation, tmp_path / "run", cluster)
        del held
    finally:
        ray.shutdown()


@pytest.mark.parametrize("count", [5, 16])  # with sixteen, others wait behind it
def test_a_client_that_ends_its_worker_is_run_again_and_named_at_last(cluster, federation, tmp_path, count) -> None:
    rest = {"clients_per_round": count, "model": lambda: Dies(lives)}
    lives = tmp_path / "lives"
    lives.mkdir()
    (lives / "one").touch()
    survived = train(federation, tmp_path / "ray", cluster, **rest)
    assert_same(survived, train(federation, tmp_path / "serial", **rest))
    for name in range(99):
        (lives / str(name)).touch()
    with pytest.raises(ClientError, match=r"client \d+ in round 1 ended its worker process 3 times \(Actor"):
        train(federation, tmp_path / "dead", cluster, **rest)


@pytest.mark.parametrize("count", [5, 16])
def test_a_worker_that_hangs_is_replaced(cluster, federation, tmp_path, count) -> None:
    lives = tmp_path / "lives"
    lives.mkdir()
    (lives / "one").touch()
    patience, rest = {"client_timeout": 3}, {"clients_per_round": count}
    hung = train(
        federation, tmp_path / "ray", cluster, model=lambda: Dies(lives, hangs=True), execution=patience, **rest
    )
    assert_same(hung, train(federation, tmp_path / "serial", model=lambda: Dies(lives), **rest))


class Fails(Net):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise KeyError("a mistake of the user's")
        return super().forward(x)


def test_a_mistake_in_the_users_model_is_shown_with_its_client(cluster, federation, tmp_path) -> None:
    with pytest.raises(ClientError, match=r"(?s)client \d+ in round 1 failed .*a mistake of the user's"):
        train(federation, tmp_path / "run", cluster, model=Fails)
