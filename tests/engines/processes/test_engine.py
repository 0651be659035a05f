"""Worker processes: the bits of the serial engine, whatever happens to the workers."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrecall import Classwise, Federation, InputError, Local, Scaffold, federate
from fedrecall.client.tasks import TrainTask
from fedrecall.engines.auto import check_execution
from fedrecall.engines.pool import PoolWorker
from fedrecall.engines.processes.engine import Processes
from fedrecall.engines.task_chunks import TaskChunk
from fedrecall.errors import ClientError
from fedrecall.recipe.settings import Execution
from fedrecall.runs import checkpoint


class Net(nn.Module):
    """Convolution, batch norm and dropout: weights, buffers and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(4 * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.norm(self.conv(x))).flatten(1)))


class Dies(Net):
    """Ends its process in training, as often as there are files to delete in a folder."""

    def __init__(self, lives: Path) -> None:
        super().__init__()
        self.lives = lives

    def forward(self, x: Tensor) -> Tensor:
        for life in self.lives.iterdir() if self.training else ():
            try:
                life.unlink()
            except FileNotFoundError:  # another process took it
                continue
            self.end()
        return super().forward(x)

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Hangs(Dies):
    """Does not come back, as often."""

    def end(self) -> None:
        time.sleep(1000)


class Raises(Net):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise ZeroDivisionError("of the user's own")
        return super().forward(x)


@pytest.fixture(scope="module")
def federation() -> Federation:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (300, 8, 8), dtype=np.uint8), random.integers(0, 5, 300)
    partition = Classwise(alpha=0.5, clients=8, validation=0.2, seed=0, min_size=20)
    return Federation.from_arrays(x, y, test=(x[:50], y[:50]), partition=partition)


def train(model: nn.Module, federation: Federation, out: Path, **settings) -> dict[str, bytes]:
    """The files of a run that may not depend on the engine."""
    defaults = {"rounds": 3, "clients_per_round": 4, "forgetting": {"every": 2}, "evaluation": {"every": 2}}
    local = Local(epochs=1, batch_size=4, lr=0.1, momentum=0.9)
    federate(model, federation, local=local, out=out, **{**defaults, **settings})
    names = ["metrics.jsonl", "model.safetensors", "forgetting/round-00002.npz"]
    return {name: (out / name).read_bytes() for name in names if (out / name).exists()}


def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def serial(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return train(net(), federation, tmp_path_factory.mktemp("serial") / "run", engine="serial")


@pytest.mark.parametrize("workers", [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
@pytest.mark.usefixtures("warm_workers")
def test_any_number_of_workers_gives_the_bits_of_serial(federation, serial, workers, tmp_path) -> None:
    assert train(net(), federation, tmp_path / "run", engine="processes", workers=workers) == serial


@pytest.mark.usefixtures("warm_workers")
def test_a_worker_that_dies_changes_nothing(federation, serial, tmp_path) -> None:
    lives = tmp_path / "lives"
    lives.mkdir()
    for name in ("a", "b"):
        (lives / name).touch()
    torch.manual_seed(0)
    assert train(Dies(lives), federation, tmp_path / "run", engine="processes", workers=2) == serial
    assert not list(lives.iterdir())


@pytest.mark.usefixtures("warm_workers")
def test_a_client_that_always_ends_its_worker_is_named(federation, tmp_path) -> None:
    lives = tmp_path / "lives"
    lives.mkdir()
    for name in range(9):
        (lives / str(name)).touch()
    with pytest.raises(ClientError, match=r"client \d in round 1 ended its worker process 3 times"):
        train(Dies(lives), federation, tmp_path / "run", engine="processes", workers=1)


def impatient(seconds: float) -> dict[str, object]:
    return {"engine": "processes", "execution": {"client_timeout": seconds}}


@pytest.mark.usefixtures("warm_workers")
def test_a_worker_that_hangs_is_replaced_and_changes_nothing(federation, serial, tmp_path) -> None:
    lives = tmp_path / "lives"
    lives.mkdir()
    (lives / "a").touch()
    torch.manual_seed(0)
    assert train(Hangs(lives), federation, tmp_path / "run", workers=2, **impatient(1.0)) == serial
    assert not list(lives.iterdir())


@pytest.mark.slow
def test_a_client_that_always_hangs_is_named_and_the_rounds_before_are_saved(federation, tmp_path) -> None:
    lives = tmp_path / "lives"
    lives.mkdir()

    def watch(line: dict) -> None:  # from round 2 on
        for name in range(9):
            (lives / str(name)).touch()

    sentence = r"client \d in round 2 did not answer for 1.0 s 3 times \(execution.client_timeout\)"
    with pytest.raises(ClientError, match=sentence):
        train(Hangs(lives), federation, tmp_path / "run", workers=2, watch=watch, **impatient(1.0))
    assert checkpoint.newest(tmp_path / "run" / "checkpoints")[0].round == 1


def test_a_chunk_has_as_long_as_its_tasks_together() -> None:
    engine = Processes(1, client_timeout=20.0)
    tasks = [TrainTask(1, order, order) for order in range(3)]
    member = PoolWorker(0, deadline=math.inf, chunks=deque([TaskChunk([0, 1, 2], tasks)]))
    engine._set_deadline(member)
    assert member.deadline == math.inf  # it has not begun yet: until then it has the time of its start
    member.ready = True
    engine._set_deadline(member)
    assert member.deadline - time.monotonic() == pytest.approx(60, abs=1)


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_a_timeout_without_workers_is_refused(engine) -> None:
    with pytest.raises(InputError, match=f"client_timeout is 3.0, but the engine '{engine}' has no worker"):
        check_execution(Execution(engine=engine, client_timeout=3))


def test_a_timeout_that_auto_has_no_use_for_is_noted(federation, tmp_path) -> None:
    train(net(), federation, tmp_path / "run", rounds=1, execution={"client_timeout": 3})
    assert "execution.client_timeout has no effect" in (tmp_path / "run" / "events.jsonl").read_text()


@pytest.mark.slow
def test_workers_killed_while_they_idle_are_replaced(federation, serial, workers_of, tmp_path) -> None:
    def watch(line: dict) -> None:
        for pid in workers_of(os.getpid()):
            os.kill(pid, signal.SIGKILL)

    assert train(net(), federation, tmp_path / "run", engine="processes", workers=2, watch=watch) == serial


@pytest.mark.usefixtures("warm_workers")
def test_an_error_in_the_users_code_comes_with_client_round_and_traceback(federation, tmp_path) -> None:
    with pytest.raises(ClientError, match=r"(?s)client \d in round 1 .*of the user's own") as caught:
        train(Raises(), federation, tmp_path / "run", engine="processes", workers=2)
    assert 'With engine="serial"' in caught.value.__notes__[0]


class DropsGradients(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.weight.grad = None
        return super().forward(x)


@pytest.mark.usefixtures("warm_workers")
def test_what_a_worker_refuses_is_one_sentence(federation, tmp_path) -> None:
    model = nn.Sequential(nn.Flatten(), DropsGradients(64, 5))
    with pytest.raises(InputError, match=r"dropped the gradient of parameter '1.weight'"):
        federate(model, federation, rounds=1, engine="processes", out=tmp_path / "run")


def processes_of(marker: str) -> list[int]:
    """The processes whose environment has this marker."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_parent_leaves_no_process_and_no_file(how, tmp_path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    marker = f"FEDRECALL_TEST_MARKER={tmp_path.name}-{how}"
    words = [
        "run",
        "demo",
        "rounds=500",
        "--engine",
        "processes",
        "--workers",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
    environment = {**os.environ, "TMPDIR": str(temporary), marker.partition("=")[0]: marker.partition("=")[2]}
    parent = subprocess.Popen(
        [sys.executable, "-m", "fedrecall.cli.main", *words],
        env=environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(lambda: (tmp_path / "run" / "metrics.jsonl").exists(), seconds=60)
    assert len(processes_of(marker)) == 3
    os.killpg(parent.pid, how) if how == signal.SIGINT else parent.kill()
    parent.wait(timeout=30)
    wait_until(lambda: not processes_of(marker), seconds=30)
    assert list(temporary.iterdir()) == []
    if how == signal.SIGINT:
        assert parent.returncode == 130


def wait_until(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


SCRIPT = """
import numpy as np, torch
from torch import nn
from fedrecall import Federation, Iid, federate

class Mine(nn.Module):  # defined in a script: other processes cannot import it
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
    def forward(self, x):
        return self.linear(x)

x, y = np.random.default_rng(0).normal(size=(60, 3)).astype("float32"), np.arange(60) % 2
federation = Federation.from_arrays(x, y, partition=Iid(clients=4, validation=0.2))
run = federate(Mine(), federation, rounds=2, participation=1.0, engine="processes", workers=2)
print("rounds:", len(run.metrics))
"""


@pytest.mark.parametrize("how", ["file", pytest.param("standard input", marks=pytest.mark.slow)])
def test_a_script_without_a_main_guard_can_use_workers(how, tmp_path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"] if how == "file" else [sys.executable, "-"]
    finished = subprocess.run(command, cwd=tmp_path, input=SCRIPT, capture_output=True, text=True, timeout=120)
    assert (finished.stdout, finished.stderr) == ("rounds: 2\n", "")


@pytest.mark.usefixtures("warm_workers")
def test_the_engine_removes_its_folder(federation, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    train(net(), federation, tmp_path / "run", engine="processes", workers=1, rounds=1)
    assert list((tmp_path / "tmp").glob("fedrecall-engine-*")) == []


@pytest.mark.slow
def test_results_of_any_size_come_through_the_same_slot(tmp_path) -> None:
    # Evaluations, which send no vectors, before models of more than a page, by workers in any order.
    random = np.random.default_rng(0)
    clients = [(random.normal(size=(12, 600)).astype(np.float32), random.integers(0, 3, 12)) for _ in range(20)]
    federation, model = Federation.from_clients(clients, num_classes=3, validation=0.5), nn.Linear(600, 3)
    files = []
    for engine, workers in (("serial", 1), ("processes", 2), ("processes", 3)):
        run = federate(
            model, federation, algorithm=Scaffold(), rounds=3, clients_per_round=7, forgetting={"every": 1},
            engine=engine, workers=workers, out=tmp_path / f"{engine}-{workers}",
            local={"epochs": 1, "batch_size": 4, "lr": 0.1}, evaluation={"every": 1},
        )  # fmt: skip
        files.append((run.path / "metrics.jsonl").read_bytes())
    assert files[0] == files[1] == files[2]
