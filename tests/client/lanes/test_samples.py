"""A step with a sample in each lane has autograd's gradient, and the same bits on every machine."""

from __future__ import annotations

import copy
import platform
import threading

import pytest
import torch
from lane_nets import NETS, batch, net
from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall import WSM, CrossEntropy, FedAvg, FedNTD, InputError, Local, Moon
from fedrecall.client.lanes import jit
from fedrecall.client.lanes.jit import HASWELL, host
from fedrecall.client.lanes.samples import LanesStep
from fedrecall.client.step import Compared, Step
from fedrecall.labels import Labels
from fedrecall.vector import FlatModel

SMALL = "convolutions with padding"
LABELS = Labels(torch.arange(5), torch.arange(5) / 10)


def step_of(module: nn.Module, objective=None, algorithm=None, **local) -> Step:
    flat = FlatModel(copy.deepcopy(module))
    local = {"batch_size": 40, "step": "lanes"} | local
    return Step(flat, objective or CrossEntropy(), algorithm or FedAvg(), Local(**local))


def gradient(step: LanesStep, x: Tensor, target: Tensor) -> Tensor:
    for parameter in step._flat.module.parameters():
        parameter.grad.fill_(7)  # all of it is written anew
    step(x, target, {}, Compared())
    return step._flat.g.clone()


@pytest.mark.parametrize("samples", [40, 9])
@pytest.mark.parametrize("name", NETS)
def test_every_kernel_gives_the_gradient_of_float64(name, samples) -> None:
    module = net(name)
    x, target = batch(name, samples)
    step = step_of(module)
    ours = gradient(LanesStep(step, x), x, target)
    exact = copy.deepcopy(module).double()
    loss = F.cross_entropy(exact(x.double()), target)
    for slot, wanted in zip(step.flat.parameter_slots, torch.autograd.grad(loss, list(exact.parameters()))):
        assert (slot.view(ours) - wanted).norm() <= 1e-5 * wanted.norm(), slot.name


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="code for x86")
@pytest.mark.parametrize("name", NETS)
def test_code_for_avx2_has_the_bits_of_this_processors(name) -> None:
    x, target = batch(name, 40)
    mine, narrow = (gradient(LanesStep(step_of(net(name)), x, cpu), x, target) for cpu in (host(), HASWELL))
    assert torch.equal(mine, narrow)


def test_the_lane_of_a_sample_changes_nothing_but_the_order_of_sums() -> None:
    x, target = batch(SMALL, 16)
    step = LanesStep(step_of(net(SMALL), batch_size=16), x)
    step(x, target, {}, Compared())
    logits = step._logits[:, :16].clone()
    for turned in (x.flip(0), x.roll(5, 0)):
        step(turned, target, {}, Compared())
        assert {tuple(z) for z in step._logits[:, :16].t().tolist()} == {tuple(z) for z in logits.t().tolist()}


def test_threads_at_the_same_time_have_the_bits_of_one_alone() -> None:
    x, target = batch(SMALL, 40)
    steps = [LanesStep(step_of(net(SMALL)), x) for _ in range(2)]
    alone = gradient(steps[0], x, target)
    found: dict[int, list[Tensor]] = {}

    def work(k: int) -> None:
        found[k] = [gradient(steps[k], x, target) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, alone) for each in found.values() for one in each)


def test_a_smaller_batch_after_a_diverged_one_is_clean() -> None:
    x, target = batch(SMALL, 40)
    step = LanesStep(step_of(net(SMALL)), x)
    clean = gradient(step, x[:9], target[:9])
    w = step._flat.w.clone()
    step._flat.w.fill_(float("nan"))
    assert gradient(step, x, target).isnan().any()
    step._flat.w.copy_(w)
    assert torch.equal(gradient(step, x[:9], target[:9]), clean)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", [SMALL, "overlapping windows and means"])
def test_what_is_not_finite_spreads_as_in_torch(name, value) -> None:
    x, target = batch(name, 20)
    step = step_of(net(name))
    for slot in step.flat.parameter_slots:
        kept = step.flat.w.clone()
        step.flat.w[slot.offset] = value
        ours = gradient(LanesStep(step, x), x, target)
        step.flat.g.zero_()
        F.cross_entropy(step.flat.module(x), target).backward()
        for other in step.flat.parameter_slots:
            assert other.view(ours).isfinite().all() == other.view(step.flat.g).isfinite().all(), (slot, other)
        step.flat.w.copy_(kept)


def walk(step: Step, name: str, steps: int = 6, nudge: float = 0.0) -> Tensor:
    """Some steps of SGD; the last batch is smaller."""
    step.flat.w.mul_(1 + nudge)
    compared = Compared()
    for s in range(steps):
        x, target = batch(name, 40 if s < steps - 1 else 23, seed=s)
        if step.objective.needs:
            compared = Compared(teacher=x.flatten(1)[:, :5])
        step(x, target.clamp(min=1), step.objective.prepare(LABELS), compared)
        step.flat.w.add_(step.flat.g, alpha=-0.1)
    return step.flat.w


@pytest.mark.parametrize("objective", [CrossEntropy(), WSM(smoothing=0.1), WSM(distill=0.5), FedNTD()])
def test_steps_in_lanes_are_as_near_to_exact_ones_as_these_are_from_nudged_weights(objective) -> None:
    """In a max-pooling, rounding may decide which of two values is the largest: near to the bit it cannot be."""
    module = net(SMALL)
    start = FlatModel(copy.deepcopy(module)).w
    step = step_of(module, objective)
    lanes = walk(step, SMALL)
    assert (step.way, step.note) == ("lanes", None)
    exact, nudged = (walk(step_of(module, objective, step="exact"), SMALL, nudge=n) for n in (0.0, 1e-7))
    assert (lanes - exact).norm() <= max(4 * (nudged - exact).norm(), 1e-5 * (exact - start).norm())


def test_the_recorded_loss_has_the_bits_of_the_eager_one(monkeypatch) -> None:
    found = []
    for after in (10**9, 1):
        monkeypatch.setattr("fedrecall.client.step.TRACE_AFTER", after)
        step = step_of(net("linear"), WSM(smoothing=0.1))
        found.append(walk(step, "linear").clone())
    assert torch.equal(*found)
    (graph,) = step._graphs.values()
    assert len(graph._losses) == 1


FALL_BACKS = {
    "native_group_norm": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(7200, 5)
    ),
    "batch norm": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)),
    "tanh": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), nn.Tanh(), nn.Linear(8, 5)),
    "ReLU behind": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 5), nn.ReLU()),
    "padding": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(900, 5)),
    "dilated": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, dilation=2), nn.Flatten(), nn.Linear(3136, 5)),
}  # fmt: skip


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3072, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x.flatten(1))
        return x + self.b(x)


@pytest.mark.parametrize("reason", [*FALL_BACKS, "add"])
def test_a_model_without_kernels_takes_exact_steps_and_says_which_operation_it_was(reason) -> None:
    torch.manual_seed(0)
    module = Residual() if reason == "add" else FALL_BACKS[reason]()
    step = step_of(module)
    found = walk(step, "lenet", 3)
    assert step.way == "exact"
    assert reason in (step.note or "")
    assert torch.equal(found, walk(step_of(module, step="exact"), "lenet", 3))


def test_an_algorithm_that_looks_at_features_takes_exact_steps() -> None:
    step = step_of(net("lenet"), algorithm=Moon())
    x, target = batch("lenet", 40)
    features = torch.randn(40, 84)
    step(x, target, {}, Compared(None, features, features))
    assert "features" in (step.note or "")


def test_batches_that_take_too_much_memory_take_exact_steps(monkeypatch) -> None:
    monkeypatch.setattr("fedrecall.client.lanes.memory.MOST_BYTES", 1000)
    step = step_of(net("lenet"))
    walk(step, "lenet", 1)
    assert "0.0 GiB" in (step.note or "")


def test_a_wrong_kernel_is_found_at_the_first_step(monkeypatch) -> None:
    right = LanesStep.__call__

    def wrong(self: LanesStep, *given: object) -> Tensor:
        loss = right(self, *given)
        self._flat.g.mul_(1.1)
        return loss

    monkeypatch.setattr(LanesStep, "__call__", wrong)
    step = step_of(net("linear"))
    found = walk(step, "linear", 2)
    assert "differs from the eager one" in (step.note or "")
    assert torch.equal(found, walk(step_of(net("linear"), step="exact"), "linear", 2))


def test_a_processor_without_fma_is_refused_in_a_sentence(monkeypatch) -> None:
    features = jit.llvm.get_host_cpu_features()
    features["fma"] = False
    monkeypatch.setattr(jit.llvm, "get_host_cpu_features", lambda: features)
    monkeypatch.setattr(jit.llvm, "get_process_triple", lambda: "x86_64-unknown-linux-gnu")
    host.cache_clear()
    with pytest.raises(InputError, match=r"no AVX2 and FMA instructions.*; choose local.step=exact"):
        step_of(net("linear"))
    host.cache_clear()
