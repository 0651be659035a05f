"""The client's side: batches, rates, steps, and a worker that keeps nothing."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall import WSM, Algorithm, CrossEntropy, FedAvg, Federation, Images, InputError, Local
from fedrecall.client.batches import LocalPlan
from fedrecall.client.job import Job
from fedrecall.client.lanes.decision import lowering_of
from fedrecall.client.tasks import EvaluateTask, TrainTask
from fedrecall.client.update import Update
from fedrecall.client.worker import Worker
from fedrecall.core.rng import Shuffle
from fedrecall.core.vector import Tensors
from fedrecall.models.build import refuse_broken_convolutions
from fedrecall.optimisers import SGD
from fedrecall.recipe.settings import Schedule
from fedrecall.runs.client_states import StateFiles

SIZES = (40, 24, 30)  # training samples of the three clients; a quarter more is for validation


@pytest.fixture(autouse=True)
def one_thread_and_files_below_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def vectors() -> Federation:
    random = np.random.default_rng(0)
    sizes = [size * 5 // 4 for size in SIZES]
    pairs = [(random.normal(size=(n, 6)).astype(np.float32), random.integers(0, 3, n)) for n in sizes]
    return Federation.from_clients(pairs, num_classes=3, validation=0.2)


def noisy() -> nn.Module:
    """Batch norm and dropout: what one client might leave to the next."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def worker(
    model: Callable[[], nn.Module],
    algorithm: Algorithm | None = None,
    federation: Federation | None = None,
    **local,
) -> Worker:
    settings = Local(**{"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.9, **local})
    job = Job(model, algorithm or FedAvg(), CrossEntropy(), settings, seed=5)
    made = Worker(job, federation or vectors(), StateFiles(Path(tempfile.mkdtemp())))
    made.publish(job.algorithm.broadcast(job.algorithm.init(made.flat.w.clone())), made.flat.buffers())
    return made


def train(made: Worker, client: int, round: int = 1, **options) -> Update:
    return made.run(TrainTask(round, 0, client, made.job.local.lr, **options))


def in_lanes(made: Worker) -> Worker:
    """A worker with the kernels of the same job."""
    flat = made.job.build_model(made.federation)
    job = replace(made.job, lowering=lowering_of(made.job, made.federation, flat))
    other = Worker(job, made.federation, made.states)
    other.publish(made.server, made.buffers)
    return other


def orders(samples: int, **local) -> list[np.ndarray]:
    plan = LocalPlan.of(Local(**local), samples)
    return [batch.numpy() for batch in plan.batches(np.arange(samples) + 1000, Shuffle(0, 1, 2))]


def test_450_samples_are_7_steps_an_epoch_and_21_in_three() -> None:
    assert [len(batch) for batch in orders(450, epochs=1, batch_size=64)] == [64] * 7
    assert len(orders(450, batch_size=64)) == 21


def test_a_kept_partial_batch_is_the_eighth_step_on_two_samples() -> None:
    assert [len(batch) for batch in orders(450, epochs=2, partial_batch="keep")] == ([64] * 7 + [2]) * 2


@pytest.mark.parametrize("beta_from", ["train", "train+validation"])
def test_beta_is_of_the_labels_that_beta_from_names(beta_from: str) -> None:
    pair = np.eye(6, dtype=np.float32)[:5], np.array([0, 0, 0, 1, 2])
    federation = Federation.from_clients([pair, pair], num_classes=4, validation=0.2)
    counts = np.array([3.0, 1.0, 1.0, 0.0])  # class 3 is at no client
    if beta_from == "train":
        counts[federation.train.y[federation.validation_indices(0)]] -= 1
    local = Local(epochs=1, batch_size=8, lr=1.0, weight_decay=0.0, beta_from=beta_from)
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    made = Worker(Job(lambda: copy.deepcopy(model), FedAvg(), WSM(), local, 5), federation, StateFiles(Path()))
    made.publish(made.job.algorithm.init(made.flat.w.clone()), made.flat.buffers())
    rows = federation.train_indices(0)
    inputs, labels = np.asarray(federation.train.x[rows], np.float64), federation.train.y[rows]
    w, b = model.weight.detach().double().numpy(), model.bias.detach().double().numpy()
    e = (counts / counts.sum()) * np.exp(inputs @ w.T + b)  # WSM's softmax, weighted by beta
    slope = (e / e.sum(1, keepdims=True) - np.eye(4)[labels]) / len(rows)
    train(made, 0)
    np.testing.assert_allclose(made.flat.module.weight.detach().numpy(), w - slope.T @ inputs, rtol=0, atol=1e-6)
    np.testing.assert_allclose(made.flat.module.bias.detach().numpy(), b - slope.sum(0), rtol=0, atol=1e-6)


def test_no_sample_comes_twice_in_an_epoch_and_every_epoch_has_its_own_order() -> None:
    steps = orders(450, epochs=3)
    epochs = [np.concatenate(steps[start : start + 7]) for start in (0, 7, 14)]
    assert [len(np.unique(epoch)) for epoch in epochs] == [448] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize("partial_batch", ["drop", "keep"])
def test_fewer_samples_than_a_batch_are_one_batch(partial_batch: str) -> None:
    steps = orders(10, epochs=2, partial_batch=partial_batch)
    assert [sorted(batch.tolist()) for batch in steps] == [list(range(1000, 1010))] * 2


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_steps_are_exact_across_epochs(count: int) -> None:
    assert len(orders(20, steps=count, batch_size=10)) == count


def test_steps_go_through_all_samples_before_any_comes_again() -> None:
    steps = orders(20, steps=5, batch_size=10)
    assert sorted(np.concatenate(steps[2:4]).tolist()) == list(range(1000, 1020))


def test_the_order_is_a_function_of_the_stream() -> None:
    assert all((a == b).all() for a, b in zip(orders(450), orders(450)))


SCHEDULES = {
    "constant": ({}, [0.8, 0.8, 0.8, 0.8]),
    "step": ({"factor": 0.5, "every": 2}, [0.8, 0.8, 0.4, 0.4]),
    "exponential": ({"factor": 0.5}, [0.8, 0.4, 0.2, 0.1]),
    # 0.8 (1 + cos(pi t / 4)) / 2 for t = 0, 1, 2, 3
    "cosine": ({}, [0.8, 0.4 * (1 + math.sqrt(0.5)), 0.4, 0.4 * (1 - math.sqrt(0.5))]),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rate_of_each_round(name: str) -> None:
    options, expected = SCHEDULES[name]
    local = Local(lr=0.8, schedule=Schedule(name=name, **options))
    assert [local.rate(t, 4) for t in (1, 2, 3, 4)] == pytest.approx(expected, rel=1e-12)


def test_the_rate_rises_to_its_first_value_over_the_warm_up() -> None:
    local = Local(lr=0.8, schedule={"warmup": 4})
    assert [local.rate(t, 9) for t in (1, 2, 3, 4, 5, 9)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_steps_are_those_of_torch_to_the_bit(momentum: float, weight_decay: float) -> None:
    torch.manual_seed(0)
    w = torch.randn(50)
    parameter = nn.Parameter(w.clone())
    torchs = torch.optim.SGD([parameter], lr=0.1, momentum=momentum, weight_decay=weight_decay, foreach=False)
    ours, state = SGD(weight_decay, momentum), {}
    for _ in range(4):
        g = torch.randn(50)
        parameter.grad = g.clone()
        torchs.step()
        ours.decay(w, g)
        ours.step(w, g, state, 0.1)
    assert torch.equal(w, parameter.detach())


def test_the_correction_sees_the_gradient_with_weight_decay() -> None:
    class Stop(FedAvg):
        def correct(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> None:
            g.zero_()

    made = worker(plain, Stop(), weight_decay=0.5)
    assert torch.equal(train(made, 0).sent["w"], made.server["w"])


def test_a_batch_of_one_sample_is_fine_without_batch_norm() -> None:
    assert train(worker(plain, batch_size=1, epochs=1), 1).steps == 24


def test_a_last_batch_of_one_sample_is_dropped_by_batch_norm() -> None:
    assert train(worker(noisy, batch_size=23, partial_batch="keep", epochs=1), 1).steps == 1  # 24 = 23 + 1


def test_one_client_leaves_nothing_to_the_next() -> None:
    alone = train(worker(noisy), 1)
    made = worker(noisy)
    train(made, 0, probe=True)
    after = train(made, 1)
    assert torch.equal(after.sent["w"], alone.sent["w"])
    assert all(torch.equal(after.buffers[name], alone.buffers[name]) for name in ("b", "i"))


def test_an_evaluation_leaves_nothing_to_the_next_client() -> None:
    alone = train(worker(noisy), 1)
    made = worker(noisy)
    made.run(EvaluateTask(1, 0, split="validation", stop=20))
    assert torch.equal(train(made, 1).sent["w"], alone.sent["w"])


def test_a_client_leaves_the_published_model_to_evaluation() -> None:
    task = EvaluateTask(1, 0, split="validation", stop=23)
    expected = worker(noisy).run(task).predictions.nll
    made = worker(noisy)
    train(made, 0)
    assert (made.run(task).predictions.nll == expected).all()


def test_training_does_not_touch_torchs_generator() -> None:
    made = worker(noisy)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    train(made, 0)
    assert torch.equal(torch.rand(2), expected)


def loaded(model: nn.Module, made: Worker) -> nn.Module:
    """A module of its own with what the worker's has."""
    model.load_state_dict(copy.deepcopy(made.flat.module.state_dict()))
    return model.eval()


def test_the_probe_is_the_trained_model_on_the_pooled_validation_data() -> None:
    made = worker(noisy)
    result = train(made, 2, probe=True)
    source, positions = made.federation.pool("validation")
    # Once with the client's statistics, once with those it was sent.
    for name, buffers in (("correct", result.buffers), ("with_global_statistics", made.buffers)):
        made.flat.load(result.sent["w"], buffers)
        with torch.no_grad():
            logits = loaded(noisy(), made)(torch.from_numpy(np.array(source.x[positions])))
        assert (getattr(result.probe, name) == (logits.argmax(1).numpy() == source.y[positions])).all()
    assert len(positions) == 10 + 6 + 7


def test_the_probe_does_not_change_what_is_sent() -> None:
    made = worker(noisy)
    without, probed = train(made, 2), train(made, 2, probe=True)
    assert torch.equal(without.sent["w"], probed.sent["w"])
    assert torch.equal(without.buffers["b"], probed.buffers["b"])
    assert without.probe is None


class Sensitive(nn.Linear):
    """Depends on who is in the batch, and keeps a random number of each forward."""

    def forward(self, x: Tensor) -> Tensor:
        self.drawn = torch.rand(1).item()
        return super().forward(x) * len(x)


@pytest.mark.parametrize("size", [256, 512, 768])
def test_evaluation_does_not_depend_on_the_parts(size: int) -> None:
    random = np.random.default_rng(0)
    test = random.normal(size=(1500, 6)).astype(np.float32), random.integers(0, 3, 1500)
    made = worker(lambda: Sensitive(6, 3), federation=Federation.from_clients([test], test=test))
    whole = made.run(EvaluateTask(1, 0, split="test", stop=1500)).predictions
    tasks = [EvaluateTask(1, 0, split="test", start=at, stop=at + size) for at in range(0, 1500, size)]
    for name in ("nll", "correct", "confidence"):
        assert (
            np.concatenate([getattr(made.run(task).predictions, name) for task in tasks]) == getattr(whole, name)
        ).all()


def test_what_a_model_draws_is_a_function_of_round_and_client() -> None:
    made, drawn = worker(lambda: Sensitive(6, 3), steps=1, epochs=None), []
    for client, t in [(0, 1), (1, 1), (0, 2), (0, 1)]:
        train(made, client, round=t)
        drawn.append(made.flat.module.drawn)
    assert drawn[0] == drawn[3]
    assert len(set(drawn)) == 3


class Pulled(FedAvg):
    """g += mu (y - x) with mu 0.7; the local training as it was taken is sent along."""

    def correct(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> None:
        g += 0.7 * (y - server["w"])

    def finish(self, y, server, client, local, extra):
        return {"w": y, "local": torch.tensor([local.steps, local.lr, local.momentum, local.samples])}, {}


def test_the_correction_is_added_to_every_step() -> None:
    made = worker(plain, Pulled(), momentum=0.0, weight_decay=0.0, epochs=1, batch_size=10)
    sent = train(made, 0).sent["w"]
    model = plain()
    start = [parameter.detach().clone() for parameter in model.parameters()]
    order = Shuffle(5, 1, 0).permutation(made.federation.train_indices(0))
    for chosen in order.reshape(4, 10):
        x, y = torch.from_numpy(made.federation.train.x[chosen]), torch.from_numpy(made.federation.train.y[chosen])
        loss = F.cross_entropy(model(x), y)
        pull = sum(((p - s) ** 2).sum() for p, s in zip(model.parameters(), start))
        gradients = torch.autograd.grad(loss + 0.7 / 2 * pull, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients):
                p -= 0.1 * g
    for slot, expected in zip(made.flat.parameter_slots, model.parameters()):
        torch.testing.assert_close(slot.view(sent), expected.detach(), rtol=1e-5, atol=1e-6)


def test_what_is_finished_knows_steps_rate_momentum_and_samples() -> None:
    sent = train(worker(plain, Pulled()), 1).sent
    assert sent["local"].tolist() == pytest.approx([6, 0.1, 0.9, 24])  # 2 epochs of 24 / 8 steps


def test_a_convolution_whose_gradient_is_broken_is_refused_by_name() -> None:
    broken = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 1, stride=2))
    with pytest.raises(InputError, match=r"layer '1' of the model is a 1x1 convolution with stride 2 on 4 channels"):
        refuse_broken_convolutions(broken)


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 8, 1), nn.Conv2d(16, 8, 1, stride=2), nn.Conv2d(4, 8, 3, stride=2)])
def test_other_convolutions_are_taken(layer: nn.Module) -> None:
    refuse_broken_convolutions(layer)
    assert layer.weight.requires_grad


def pictures() -> Federation:
    random = np.random.default_rng(0)
    pairs = [(random.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8), random.integers(0, 3, n)) for n in SIZES]
    transform = Images((0.5,) * 3, (0.25,) * 3, crop_padding=2, flip=True)
    return Federation.from_clients(pairs, num_classes=3, validation=0.2, transform=transform, layout="nhwc")


def convolved() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(45, 3))


def test_kernels_train_on_the_same_augmented_images_as_exact_steps() -> None:
    exact = worker(convolved, federation=pictures(), lr=0.01)
    ours, theirs = train(in_lanes(exact), 1), train(exact, 1)
    moved = (theirs.sent["w"] - exact.server["w"]).norm()
    assert (ours.sent["w"] - theirs.sent["w"]).norm() < 1e-4 * moved
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)


def test_kernels_evaluate_a_model_as_torch_does() -> None:
    exact = worker(convolved, federation=pictures())
    task = EvaluateTask(1, 0, split="validation", stop=18, logits=True)
    ours, theirs = (made.run(task).predictions for made in (in_lanes(exact), exact))
    np.testing.assert_allclose(ours.logits, theirs.logits, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours.nll, theirs.nll, rtol=1e-5, atol=1e-5)


def test_a_worker_with_kernels_leaves_nothing_of_one_client_to_the_next() -> None:
    made = worker(convolved, federation=pictures())
    alone, after = train(in_lanes(made), 1), in_lanes(made)
    train(after, 0, probe=True)
    assert torch.equal(train(after, 1).sent["w"], alone.sent["w"])
