"""The clients' state between rounds, alone and in a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedrecall import CrossEntropy, FedAvg, Federation, Iid, Run, federate
from fedrecall.core.vector import Tensors
from fedrecall.runs.client_states import StateFiles, StateTable


@pytest.fixture
def store(tmp_path: Path) -> StateTable:
    return StateTable(StateFiles(tmp_path / "clients"))


def state(value: float) -> Tensors:
    return {"c": torch.full((5,), value), "h": torch.full((2,), -value, dtype=torch.float64)}


def files(store: StateTable) -> list[str]:
    return sorted(path.name for path in store.files.folder.rglob("*") if path.is_file())


def commit(store: StateTable, accepted: dict[int, int]) -> None:
    """Make these versions current, as a round does that completes."""
    store.propose(accepted)
    store.settle()


def test_what_is_put_is_what_one_gets(store: StateTable) -> None:
    version = store.files.put(7, 3, state(0.5))
    assert version == 3  # the round
    got = store.files.get(7, version)
    assert set(got) == {"c", "h"}
    assert all(torch.equal(got[name], tensor) for name, tensor in state(0.5).items())
    assert got["h"].dtype == torch.float64
    transposed, y = torch.arange(12.0).view(3, 4).T, torch.arange(3.0)  # not contiguous; one tensor by two names
    assert torch.equal(store.files.get(0, store.files.put(0, 1, {"c": transposed}))["c"], transposed)
    assert store.files.get(0, store.files.put(0, 2, {"previous": y, "best": y}))["best"].tolist() == [0, 1, 2]
    y.fill_(9)  # a later change of the tensor does not change the state
    assert store.files.get(0, 2)["best"].tolist() == [0, 1, 2]
    clients = (0, 999, 1000, 1_000_000)  # which do not share a file
    for client in clients:
        store.files.put(client, 1, state(client))
    assert [store.files.get(client, 1)["c"][0].item() for client in clients] == [0, 999, 1000, 1e6]


def test_a_state_counts_only_when_it_is_committed(store: StateTable) -> None:
    assert store.version(7) == 0
    version = store.files.put(7, 3, state(1))
    assert store.version(7) == 0
    commit(store, {7: version})
    store.files.put(7, 4, state(2))
    assert store.version(7) == 3
    assert torch.equal(store.files.get(7, 3)["c"], state(1)["c"])


def test_a_commit_replaces_the_old_state_of_its_clients_and_deletes_its_file(store: StateTable) -> None:
    commit(store, {7: store.files.put(7, 3, state(1)), 2: store.files.put(2, 3, state(3))})
    commit(store, {7: store.files.put(7, 4, state(2))})
    for _ in range(2):  # committing the same version again keeps its file
        assert (store.version(7), store.version(2)) == (4, 3)
        assert torch.equal(store.files.get(7, 4)["c"], state(2)["c"])
        assert torch.equal(store.files.get(2, 3)["c"], state(3)["c"])
        assert files(store) == ["client-000002-round-000003.safetensors", "client-000007-round-000004.safetensors"]
        commit(store, {7: 4})


def test_putting_the_same_round_again_replaces_the_file(store: StateTable) -> None:
    store.files.put(7, 3, state(1))
    store.files.put(7, 3, state(2))  # a task that was lost and run again
    assert torch.equal(store.files.get(7, 3)["c"], state(2)["c"])
    assert len(files(store)) == 1


def test_a_state_without_tensors_has_no_file(store: StateTable) -> None:
    assert store.files.put(7, 3, {}) == 0
    commit(store, {7: 0})
    assert store.version(7) == 0
    assert not store.files.folder.exists()
    commit(store, {7: store.files.put(7, 3, state(1))})
    commit(store, {7: store.files.put(7, 4, {})})  # a client that drops its state
    assert store.version(7) == 0


class Counting(FedAvg):
    """Each client counts its rounds and sends the count."""

    def __init__(self) -> None:
        self.sums: list[float] = []

    def init_client(self, x):
        return {"rounds": torch.zeros(1)}

    def finish(self, y, server, client, local, extra):
        count = client["rounds"] + 1
        return {"w": y, "count": count}, {"rounds": count}

    def weight(self, name: str, samples: int, steps: int) -> float:
        return 1.0

    def aggregate(self, server, sums, totals, population):
        self.sums.append(sums["count"].item())
        return super().aggregate(server, sums, totals, population)


def counted(algorithm: Counting, folder: Path) -> Run:
    x, y = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2
    federation = Federation.from_arrays(x, y, partition=Iid(clients=6))
    settings = {"objective": CrossEntropy(), "rounds": 6, "clients_per_round": 2}
    torch.manual_seed(0)
    return federate(torch.nn.Linear(3, 2), federation, algorithm=algorithm, out=folder / "run", **settings)


def test_a_client_gets_its_state_back_when_it_is_drawn_again(tmp_path: Path) -> None:
    algorithm = Counting()
    times = dict.fromkeys(range(6), 0)
    expected = []
    for line in counted(algorithm, tmp_path).metrics:
        for client in line["clients"]:
            times[client] += 1
        expected.append(sum(times[client] for client in line["clients"]))
    assert algorithm.sums == expected
    assert max(times.values()) > 1


def test_clients_that_took_part_have_one_file_each(tmp_path: Path) -> None:
    run = counted(Counting(), tmp_path)
    last = {client: line["round"] for line in run.metrics for client in line["clients"]}
    expected = [f"client-{client:06d}-round-{t:06d}.safetensors" for client, t in sorted(last.items())]
    assert files(StateTable(StateFiles(run.path / "clients"))) == expected


def test_an_algorithm_without_client_state_writes_none(tmp_path: Path) -> None:
    class Stateless(Counting):
        def init_client(self, x):
            return {}

        def finish(self, y, server, client, local, extra):
            return {"w": y, "count": torch.ones(1)}, {}

    assert not (counted(Stateless(), tmp_path).path / "clients").exists()


class Emptying(Counting):
    """A client's first state is x itself, and is changed in place."""

    def init_client(self, x):
        return {"previous": x}

    def correct(self, g, y, server, client):
        client["previous"].zero_()

    def finish(self, y, server, client, local, extra):
        return {"w": y, "count": torch.ones(1)}, client


def test_a_state_changed_in_place_does_not_change_the_server(tmp_path: Path) -> None:
    files = []
    for algorithm in (Counting(), Emptying()):
        (tmp_path / type(algorithm).__name__).mkdir()
        run = counted(algorithm, tmp_path / type(algorithm).__name__)
        files.append((run.path / "model.safetensors").read_bytes())
    assert files[0] == files[1]


def test_a_round_that_is_stopped_leaves_the_versions_of_before(tmp_path) -> None:
    store = StateTable(StateFiles(tmp_path))
    state = {"c": torch.ones(3)}
    commit(store, {4: store.files.put(4, 1, state)})
    store.propose({4: store.files.put(4, 2, state), 5: store.files.put(5, 2, state)})
    assert (store.version(4), store.version(5)) == (2, 2)  # for the evaluation of the round
    store.roll_back()
    assert (store.version(4), store.version(5)) == (1, 0)
    assert torch.equal(store.files.get(4, 1)["c"], state["c"])
    store.settle()
    assert (store.version(4), store.version(5)) == (1, 0)
