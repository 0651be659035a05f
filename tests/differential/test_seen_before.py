"""What once made engines differ from each other, or from a plain loop, each as small as it still shows."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from case_runs import files_of
from random_cases import OwnClasses
from torch import Tensor, nn

from fedrecall import CrossEntropy, Federation, Local, Moon, Run, federate
from fedrecall.core.vector import FlatModel


def federation(x: Callable[[int], Any], sizes: list[int], classes: int = 4, validation: float = 0.0) -> Federation:
    """Clients of these sizes, whose labels go round."""
    clients = [(x(n), (np.arange(n) + k) % classes) for k, n in enumerate(sizes)]
    return Federation.from_clients(clients, num_classes=classes, validation=validation)


def train(out: Path, model: nn.Module, data: Federation, **settings: Any) -> Run:
    defaults = {"rounds": 2, "participation": 1.0, "objective": CrossEntropy(), "engine": "serial"}
    return federate(model, data, out=out, progress=False, **defaults | settings)


def mlp(inputs: int = 20) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 17), nn.ReLU(), nn.Linear(17, 4))


class EqualKernels(nn.Module):
    """A max-pooling over sums of the same numbers in another order, of which rounding chooses one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 2, (1, 3)), nn.Linear(2 * 8 * 2, 4)
        with torch.no_grad():
            self.conv.weight.fill_(0.37)
            self.conv.bias.fill_(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(nn.functional.max_pool2d(self.conv(x), (1, 3))).flatten(1))


def test_a_batch_in_which_rounding_decides_a_pooling_leaves_lanes_as_they_are(tmp_path, warm_workers) -> None:
    """A worker that met one went on with exact steps, and so with other bits than workers that met none."""
    random, clients = np.random.default_rng(0), []
    for k in range(40):
        x = random.normal(size=(10, 1, 8, 8)).astype(np.float32)
        if k % 3 == 1:  # periods of three pixels
            x = np.tile(x[..., :3], 3)[..., :8]
        clients.append((x, np.arange(10) % 4))
    data = Federation.from_clients(clients, num_classes=4, validation=0.0)
    local = Local(epochs=2, batch_size=5, lr=0.05, step="lanes")
    torch.manual_seed(0)
    model, found = EqualKernels(), []
    for engine, workers in (("serial", 1), ("processes", 1), ("processes", 2)):
        run = train(tmp_path / f"{engine} {workers}", model, data, local=local, engine=engine, workers=workers)
        assert run.summary["warnings"] == []
        found.append(files_of(run.path))
    assert found[0] == found[1] == found[2]


SIX_SIZES = [8, 9, 10, 12, 15, 20] * 4


@pytest.mark.slow
def test_vectorised_has_the_same_bits_on_threads_with_several_plans_a_round(tmp_path) -> None:
    """Two traces at once failed in one thread, which went on unrecorded; the process stayed patched."""
    random = np.random.default_rng(0)
    data = federation(lambda n: random.normal(size=(n, 20)).astype(np.float32), SIX_SIZES)
    call, found = nn.Module.__call__, []
    for threads in (1, 2, 3):
        local = Local(epochs=1, batch_size=32, lr=0.1)
        run = train(tmp_path / str(threads), mlp(), data, local=local, engine="vectorised", workers=threads)
        assert run.summary["warnings"] == []
        assert nn.Module.__call__ is call
        found.append(files_of(run.path))
    assert found[0] == found[1] == found[2]


def test_no_two_threads_trace_at_once(tmp_path, monkeypatch) -> None:
    from torch.fx.experimental import proxy_tensor

    traced, make_fx, inside = [], proxy_tensor.make_fx, threading.Lock()

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def trace(*inputs: Tensor) -> Any:
            assert inside.acquire(blocking=False), "two threads trace at once"
            try:
                time.sleep(0.01)
                traced.append(threading.get_ident())
                return make_fx(function)(*inputs)
            finally:
                inside.release()

        return trace

    monkeypatch.setattr(proxy_tensor, "make_fx", watched)
    random = np.random.default_rng(0)
    data = federation(lambda n: random.normal(size=(n, 20)).astype(np.float32), SIX_SIZES)
    local = Local(epochs=1, batch_size=32, lr=0.1)
    train(tmp_path / "run", mlp(), data, local=local, engine="vectorised", workers=3)
    assert len(traced) == 6
    assert set(traced) == {threading.get_ident()}


def test_what_prepare_returns_may_have_other_sizes_at_other_clients(tmp_path, warm_workers) -> None:
    """Steps were recorded by the shape of the batch alone: with the tensors of the client that came first."""
    random, steps = np.random.default_rng(0), 60
    x = [random.normal(size=(12, 20)).astype(np.float32) for _ in range(4)]
    y = [np.arange(12) % (k + 1) for k in range(4)]  # of one class, of two, three and four
    data = Federation.from_clients(list(zip(x, y)), num_classes=4, validation=0.0)
    local = Local(epochs=steps, batch_size=12, lr=0.1, weight_decay=0.0)
    found = []
    for engine, workers in (("serial", 1), ("processes", 1), ("processes", 2)):
        run = train(
            tmp_path / f"{engine} {workers}", mlp(), data, objective=OwnClasses(), local=local, engine=engine,
            workers=workers, rounds=1,
        )  # fmt: skip
        found.append(files_of(run.path))
    assert found[0] == found[1] == found[2]
    expected = [plain_loss(mlp(), torch.from_numpy(x[k]), torch.from_numpy(y[k]), k + 1, steps) for k in range(4)]
    assert run.metrics[0]["train_loss"] == pytest.approx(np.mean(expected), rel=1e-5)


def plain_loss(model: nn.Module, x: Tensor, y: Tensor, classes: int, steps: int) -> float:
    """The mean loss over the steps of a plain loop over one batch, of a client that has the first classes."""
    optimiser, total = torch.optim.SGD(model.parameters(), 0.1), 0.0
    for _ in range(steps):
        own = model(x)[:, :classes]
        loss = nn.functional.cross_entropy(own, y) + 0.1 * own.square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.item()
    return total / steps


@pytest.mark.parametrize("engine", ["auto", "serial", "vectorised"])
def test_a_float64_model_trains_by_exact_steps_though_lanes_are_asked_for(tmp_path, engine) -> None:
    """`auto` asked for kernels with a batch in float32, and the run ended before it began."""
    random = np.random.default_rng(0)
    data = federation(lambda n: random.normal(size=(n, 20)), [10] * 33)
    ends = []
    for step in ("lanes", "exact"):
        local = Local(epochs=1, batch_size=8, lr=0.1, step=step)
        run = train(tmp_path / step, mlp().double(), data, local=local, engine=engine, rounds=1)
        ends.append(FlatModel(run.model()).w)
        assert ("a precision other than float32" in " ".join(run.summary["warnings"])) == (step == "lanes")
    assert ends[0].dtype == torch.float64
    assert torch.equal(*ends)


@pytest.mark.parametrize("lr", [0.0, 1e-50])
def test_clients_in_lanes_that_do_not_move_still_have_a_loss(tmp_path, lr) -> None:
    """It was said to be 0, for a step of rate 0 was taken for one of a client that has taken all of its own."""
    random = np.random.default_rng(0)
    x = [random.normal(size=(10, 20)).astype(np.float32) for _ in range(20)]
    data = Federation.from_clients([(x[k], (np.arange(10) + k) % 4) for k in range(20)], validation=0.0)
    local = Local(epochs=2, batch_size=10, lr=lr, weight_decay=0.0, step="lanes")
    run = train(tmp_path / "run", mlp(), data, local=local, engine="vectorised", rounds=1)
    assert run.summary["warnings"] == []
    with torch.no_grad():
        logits = mlp()(torch.from_numpy(np.concatenate(x)))
        target = torch.tensor([(i + k) % 4 for k in range(20) for i in range(10)])
        expected = nn.functional.cross_entropy(logits, target).item()
    assert run.metrics[0]["train_loss"] == pytest.approx(expected, rel=1e-5)
    assert torch.allclose(FlatModel(run.model()).w, FlatModel(mlp()).w, rtol=1e-6, atol=0)


FROZEN_STEM = """
import sys
import numpy as np
import torch
from torch import nn
from fedrecall import Federation, Local, federate

torch.manual_seed(0)
random = np.random.default_rng(0)
clients = [(random.normal(size=(8, 3, 8, 8)).astype("float32"), np.arange(8) % 4) for _ in range(3)]
stem = nn.Conv2d(3, 4, 3)
layers = [nn.GroupNorm(3, 3), stem] if sys.argv[2] == "first" else [stem.requires_grad_(False), nn.GroupNorm(2, 4)]
model = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 4))
federation = Federation.from_clients(clients, num_classes=4, validation=0.0)
local = Local(epochs=2, batch_size=4, lr=0.1)
federate(model, federation, rounds=2, participation=1.0, local=local, engine="serial", out=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["first", "after a frozen stem"])
def test_a_group_norm_whose_input_needs_no_gradient_trains(tmp_path, place) -> None:
    """The process died in torch's backward pass for tensors that are channels last."""
    command = [sys.executable, "-c", FROZEN_STEM, str(tmp_path / "run"), place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("step", ["exact", "lanes"])
def test_moon_has_the_same_bits_where_a_worker_trains_and_evaluates_in_turns(tmp_path, warm_workers, step) -> None:
    """Its hook kept a tensor of an evaluation, which was taken for a change of the user's model."""
    random = np.random.default_rng(0)
    data = federation(lambda n: random.normal(size=(n, 20)).astype(np.float32), [20, 25, 30], validation=0.2)
    local, found = Local(epochs=20, batch_size=8, lr=0.01, step=step), []
    for engine, workers in (("serial", 1), ("processes", 1), ("processes", 2)):
        run = train(
            tmp_path / f"{engine} {workers}", mlp(), data, algorithm=Moon(), local=local, engine=engine,
            workers=workers, rounds=3, evaluation={"every": 1}, forgetting={"every": 1},
        )  # fmt: skip
        found.append((files_of(run.path), run.summary["warnings"]))
    assert found[0] == found[1] == found[2]
    assert all("features" in warning for warning in found[0][1])
    assert len(found[0][1]) == (step == "lanes")
