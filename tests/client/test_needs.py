"""What a client's training computes beside its own model: teachers, representations, curvature; and no more."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrecall import (
    WSM,
    Algorithm,
    CrossEntropy,
    FedAvg,
    Federation,
    FedNTD,
    FedVLS,
    Local,
    Moon,
    Objective,
    Scaffold,
)
from fedrecall.client.job import Job
from fedrecall.client.tasks import TrainTask
from fedrecall.client.worker import Worker
from fedrecall.core.vector import FlatModel, Tensors
from fedrecall.runs.client_states import StateFiles

STEPS = 3


class Watched(nn.Module):
    """Notes which model was asked, in which mode, and with what."""

    def __init__(self, calls: list[tuple[int, bool, Tensor]]) -> None:
        super().__init__()
        self.calls = calls
        self.first, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append((id(self), self.training, x.detach().clone()))
        return self.head(torch.relu(self.norm(self.first(x))))


@pytest.fixture
def calls() -> list[tuple[int, bool, Tensor]]:
    return []


@pytest.fixture
def federation() -> Federation:
    random = np.random.default_rng(0)
    clients = [(random.normal(size=(n, 6)).astype(np.float32), random.integers(0, 3, n)) for n in (12, 18)]
    return Federation.from_clients(clients, num_classes=3, validation=0)


MakeWorker = Callable[..., Worker]


@pytest.fixture
def worker(federation, calls, tmp_path: Path) -> MakeWorker:
    def make(algorithm: Algorithm, objective: Objective, **options) -> Worker:
        local = Local(steps=STEPS, batch_size=6, lr=0.1)
        job = Job(lambda: Watched(calls), algorithm, objective, local, seed=5, **options)
        made = Worker(job, federation, StateFiles(tmp_path / "store"))
        made.publish(algorithm.broadcast(algorithm.init(made.flat.w.clone())), made.flat.buffers())
        calls.clear()
        return made

    return make


def passes(calls: list[tuple[int, bool, Tensor]]) -> list[int]:
    """How many forward passes each model made that is not the one in training, most first."""
    frozen = [model for model, training, _ in calls if not training]
    return sorted((frozen.count(model) for model in set(frozen)), reverse=True)


# algorithm, objective, and the passes of other models in a client's first round and in its second
COSTS = [
    (FedAvg(), CrossEntropy(), [], []),
    (FedAvg(), WSM(), [], []),
    (FedAvg(), WSM(smoothing=0.1), [], []),
    (Scaffold(), WSM(), [], []),
    (FedAvg(), WSM(distill=0.1), [STEPS], [STEPS]),
    (FedAvg(), FedNTD(), [STEPS], [STEPS]),
    (Scaffold(), FedVLS(), [STEPS], [STEPS]),
    (Moon(), CrossEntropy(), [STEPS], [STEPS, STEPS]),
    (Moon(), FedNTD(), [STEPS], [STEPS, STEPS]),  # one pass gives the teacher and the features
]


@pytest.mark.parametrize(("algorithm", "objective", "first", "second"), COSTS)
def test_other_models_are_asked_once_a_step_and_only_if_needed(
    worker, calls, algorithm, objective, first, second
) -> None:
    made = worker(algorithm, objective)
    version = made.run(TrainTask(1, 0, 0, 0.1)).state
    assert passes(calls) == first
    assert sum(training for _, training, _ in calls) == STEPS
    calls.clear()
    made.run(TrainTask(2, 0, 0, 0.1, state_version=version))
    assert passes(calls) == second
    assert sum(training for _, training, _ in calls) == STEPS


def test_a_client_in_its_first_round_has_no_previous_model_even_after_others_had(worker, calls) -> None:
    made = worker(Moon(), CrossEntropy())
    version = made.run(TrainTask(1, 0, 0, 0.1)).state
    made.run(TrainTask(2, 0, 0, 0.1, state_version=version))
    calls.clear()
    made.run(TrainTask(2, 1, 1, 0.1))
    assert passes(calls) == [STEPS]


class Listening(FedNTD):
    """Keeps what its teachers said."""

    def __init__(self, heard: list[Tensor]) -> None:
        super().__init__()
        object.__setattr__(self, "heard", heard)

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        assert teacher is not None
        assert not teacher.requires_grad
        self.heard.append(teacher.clone())
        return super().__call__(logits, target, client, teacher)


def published(made: Worker) -> tuple[nn.Module, Tensors, Tensors]:
    """A model with other weights and statistics than the first, as plain torch, and as what clients are sent."""
    torch.manual_seed(9)
    net = Watched([])
    with torch.no_grad():
        net.norm.running_mean.uniform_(-1, 1)
        net.norm.running_var.uniform_(0.5, 2)
        net.norm.num_batches_tracked.fill_(7)
    flat = FlatModel(copy.deepcopy(net))
    server = made.job.algorithm.broadcast(made.job.algorithm.init(flat.w.clone()))
    return net.eval(), server, flat.buffers()


@pytest.mark.parametrize("policy", ["average", "local"])
def test_the_teacher_is_the_sent_model_in_eval_mode_on_the_same_batch(worker, calls, policy) -> None:
    heard: list[Tensor] = []
    made = worker(FedAvg(), Listening(heard), batch_norm=policy)
    net, server, buffers = published(made)
    made.publish(server, buffers)
    made.run(TrainTask(1, 0, 1, 0.1))  # another client before, who leaves nothing behind
    heard.clear(), calls.clear()
    made.run(TrainTask(1, 1, 0, 0.1))
    batches = [x for _, training, x in calls if training]
    assert len(heard) == len(batches) == STEPS
    for x, teacher in zip(batches, heard):
        with torch.no_grad():
            torch.testing.assert_close(teacher, net(x), rtol=1e-5, atol=1e-6)
    assert [torch.equal(x, y) for x, y in zip(batches, (x for _, training, x in calls if not training))] == [True] * 3


def test_with_local_statistics_the_teacher_has_those_that_the_client_starts_with(worker, calls) -> None:
    heard: list[Tensor] = []
    made = worker(FedAvg(), Listening(heard), batch_norm="local")
    version = made.run(TrainTask(1, 0, 0, 0.1)).state
    net = Watched([])
    net.load_state_dict(copy.deepcopy(made.flat.module.state_dict()))  # the client after its first round
    other, server, buffers = published(made)
    made.publish(server, buffers)
    with torch.no_grad():
        for mine, sent in zip(net.parameters(), other.parameters()):
            mine.copy_(sent)
    heard.clear(), calls.clear()
    made.run(TrainTask(2, 0, 0, 0.1, state_version=version))
    for x, teacher in zip([x for _, training, x in calls if training], heard, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(teacher, net.eval()(x), rtol=1e-5, atol=1e-6)


class Remembering(Moon):
    """Keeps the features that its penalty is given."""

    def __init__(self, seen: list[tuple[Tensor, ...]], **options) -> None:
        super().__init__(**options)
        object.__setattr__(self, "seen", seen)

    def penalty(self, features: Tensor, global_features: Tensor, previous_features: Tensor) -> Tensor:
        self.seen.append((features.detach(), global_features, previous_features))
        return super().penalty(features, global_features, previous_features)


def features_of(net: Watched, x: Tensor, named: str | None) -> Tensor:
    with torch.no_grad():
        hidden = net.norm(net.first(x))
        return hidden if named == "norm" else torch.relu(hidden)


@pytest.mark.parametrize("named", [None, "norm"])
def test_features_are_of_the_sent_model_and_of_the_clients_own_of_before(worker, calls, named) -> None:
    seen: list[tuple[Tensor, ...]] = []
    made = worker(Remembering(seen, representation=named), CrossEntropy())
    version = made.run(TrainTask(1, 0, 0, 0.1)).state
    before = Watched([])
    before.load_state_dict(copy.deepcopy(made.flat.module.state_dict()))
    assert all(torch.equal(sent, previous) for _, sent, previous in seen)
    net, server, buffers = published(made)
    made.publish(server, buffers)
    seen.clear(), calls.clear()
    made.run(TrainTask(2, 0, 0, 0.1, state_version=version))
    for x, (_, sent, previous) in zip([x for _, training, x in calls if training], seen, strict=True):
        torch.testing.assert_close(sent, features_of(net.eval(), x, named), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(previous, features_of(before.eval(), x, named), rtol=1e-5, atol=1e-6)
        assert not torch.equal(sent, previous)
