"""A step with a sample in each lane has autograd's gradient, and the same bits on every machine."""

from __future__ import annotations

import copy
import platform
import threading

import numpy as np
import pytest
import torch
from exact_steps import exact_step
from lane_nets import NETS, batch, lowering_of, net
from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall import WSM, CrossEntropy, FedNTD, Images, Local, Objective
from fedrecall.client.batch import Batch
from fedrecall.client.lanes.jit import HASWELL, Cpu, host
from fedrecall.client.lanes.samples import LanesStep
from fedrecall.client.step import Step
from fedrecall.core.labels import Labels
from fedrecall.core.vector import FlatModel
from fedrecall.optimisers import SGD

SMALL = "convolutions with padding"
LABELS = Labels(torch.arange(5), torch.arange(5) / 10)
BATCHES = {"batch_size": 40, "step": "lanes"}


def step_of(
    module: nn.Module, x: Tensor, objective: Objective | None = None, cpu: Cpu | None = None, **local: object
) -> LanesStep:
    flat, objective = FlatModel(copy.deepcopy(module)), objective or CrossEntropy()
    step = LanesStep(lowering_of(flat, x, objective), flat, objective, Local(**{**BATCHES, **local}), cpu)
    step.begin_client(0.1, {})
    return step


def gradient(step: LanesStep, x: Tensor, target: Tensor) -> Tensor:
    for parameter in step._flat.module.parameters():
        parameter.grad.fill_(7)  # all of it is written anew
    step(Batch(x, target))
    return step._flat.g.clone()


@pytest.mark.parametrize("samples", [40, 9])
@pytest.mark.parametrize("name", NETS)
def test_every_kernel_gives_the_gradient_of_float64(name, samples) -> None:
    module = net(name)
    x, target = batch(name, samples)
    step = step_of(module, x)
    ours = gradient(step, x, target)
    exact = copy.deepcopy(module).double()
    loss = F.cross_entropy(exact(x.double()), target)
    for slot, wanted in zip(step._flat.parameter_slots, torch.autograd.grad(loss, list(exact.parameters()))):
        assert (slot.view(ours) - wanted).norm() <= 1e-5 * wanted.norm(), slot.name


@pytest.mark.parametrize("samples", [40, 17, 1])
@pytest.mark.parametrize("objective", [CrossEntropy(), WSM(), WSM(tau=0.5), WSM(smoothing=0.1)], ids=str)
def test_the_loss_is_that_of_float64(objective, samples) -> None:
    module, (x, target) = net(SMALL), batch(SMALL, samples)
    target = target.clamp(min=1)  # the client has no sample of class 0
    step = step_of(module, x, objective)
    step.begin_client(0.1, objective.prepare(LABELS))
    z, prepared = copy.deepcopy(module).double()(x.double()), objective.prepare(LABELS)
    offset = prepared["log_weight"].double() if isinstance(objective, WSM) else torch.zeros(5)
    wanted = ((z + offset).logsumexp(1) - z.gather(1, target[:, None])[:, 0]).mean()
    assert step(Batch(x, target)).item() == pytest.approx(wanted.item(), rel=1e-6)


def test_the_gradient_of_a_class_that_the_client_lacks_is_zero() -> None:
    x, target = batch("linear", 20)
    step = step_of(net("linear"), x, WSM())
    step.begin_client(0.1, WSM().prepare(LABELS))
    gradient(step, x, target.clamp(min=1))
    weight, bias = (slot.view(step._flat.g) for slot in step._flat.parameter_slots)
    assert weight[0].count_nonzero() == bias[0].count_nonzero() == 0
    assert weight[1].all()


def test_what_a_client_has_prepared_is_gone_with_the_next_client() -> None:
    x, target = batch("linear", 20)
    step = step_of(net("linear"), x, WSM())
    first = gradient(step, x, target)
    step.begin_client(0.1, WSM().prepare(LABELS))
    assert not torch.equal(gradient(step, x, target), first)
    step.begin_client(0.1, {})
    assert torch.equal(gradient(step, x, target), first)


def test_bytes_are_normalised_as_the_images_that_they_are() -> None:
    module, (x, target) = net(SMALL), batch(SMALL, 40)
    images = Images((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    stored = torch.randint(0, 256, (40, *x.shape[2:], 3), dtype=torch.uint8)
    floats, flat = images(stored), FlatModel(copy.deepcopy(module))
    lowering = lowering_of(flat, floats, transform=images)
    step = LanesStep(lowering, flat, CrossEntropy(), Local(**BATCHES))
    assert step.reads_bytes
    wanted = gradient(step_of(module, floats), floats, target)
    assert (gradient(step, stored, target) - wanted).norm() <= 1e-6 * wanted.norm()


@pytest.mark.parametrize("samples", [1, 40, 100])
def test_predictions_are_the_logits_of_float64_for_any_number_of_samples(samples) -> None:
    x, _ = batch(SMALL, samples)
    wanted = net(SMALL).double()(x.double())
    assert (step_of(net(SMALL), x).predict(x) - wanted).norm() <= 1e-6 * wanted.norm()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="code for x86")
@pytest.mark.parametrize("name", NETS)
def test_code_for_avx2_has_the_bits_of_this_processors(name) -> None:
    x, target = batch(name, 40)
    mine, narrow = (step_of(net(name), x, cpu=cpu) for cpu in (host(), HASWELL))
    assert torch.equal(gradient(mine, x, target), gradient(narrow, x, target))
    assert torch.equal(mine(Batch(x, target)), narrow(Batch(x, target)))


def test_the_lane_of_a_sample_changes_nothing_but_the_order_of_sums() -> None:
    x, _ = batch(SMALL, 16)
    step = step_of(net(SMALL), x, batch_size=16)
    logits = step.logits(x)
    for order in (torch.arange(15, -1, -1), torch.arange(16).roll(5)):
        assert torch.equal(step.logits(x[order]), logits[order])


def test_threads_at_the_same_time_have_the_bits_of_one_alone() -> None:
    x, target = batch(SMALL, 40)
    steps = [step_of(net(SMALL), x) for _ in range(2)]
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
    step = step_of(net(SMALL), x)
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
    step = step_of(net(name), x)
    flat = step._flat
    for slot in flat.parameter_slots:
        kept = flat.w.clone()
        flat.w[slot.offset] = value
        ours = gradient(step, x, target)
        flat.g.zero_()
        F.cross_entropy(flat.module(x), target).backward()
        for other in flat.parameter_slots:
            assert other.view(ours).isfinite().all() == other.view(flat.g).isfinite().all(), (slot, other)
        flat.w.copy_(kept)


def walk(step: Step, flat: FlatModel, objective: Objective, nudge: float = 0.0) -> Tensor:
    """The weights after some steps of SGD, of which the last has a smaller batch."""
    flat.w.mul_(1 + nudge)
    prepared = objective.prepare(LABELS)
    step.begin_client(0.1, prepared)
    for s in range(6):
        x, target = batch(SMALL, 40 if s < 5 else 23, seed=s)
        teacher = x.flatten(1)[:, :5] if objective.needs else None
        step(Batch(x, target.clamp(min=1), prepared, teacher))
        flat.w.add_(flat.g, alpha=-0.1)
    return flat.w


@pytest.mark.parametrize("objective", [CrossEntropy(), WSM(smoothing=0.1), WSM(distill=0.5), FedNTD()], ids=str)
def test_steps_in_lanes_are_as_near_to_exact_ones_as_these_are_from_nudged_weights(objective) -> None:
    """Rounding may decide which of two values is the largest of a window, so a fixed bound would be arbitrary."""
    module, (x, _) = net(SMALL), batch(SMALL, 2)
    start, step, ends = FlatModel(copy.deepcopy(module)).w, step_of(module, x, objective), []
    for nudge in (0.0, 1e-7):
        flat = FlatModel(copy.deepcopy(module))
        ends.append(walk(exact_step(flat, objective, batch_size=40), flat, objective, nudge))
    (exact, nudged), lanes = ends, walk(step, step._flat, objective)
    assert (lanes - exact).norm() <= max(4 * (nudged - exact).norm(), 1e-5 * (exact - start).norm())


def fused(a: object, b: object, c: object) -> np.ndarray:
    """a b + c, rounded once."""
    return np.float32(np.float64(a) * np.float64(b) + np.float64(c))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_sgd_by_kernels_is_that_of_numpy(momentum, weight_decay) -> None:
    x, _ = batch(SMALL, 2)
    step = step_of(net(SMALL), x, momentum=momentum, weight_decay=weight_decay)
    w, g = step._flat.w, step._flat.g
    step.begin_client(0.3, {})
    rate, decay, mu = np.float32(0.3), np.float32(weight_decay), np.float32(momentum)
    wanted, velocity = w.numpy().copy(), np.zeros(len(w), np.float32)
    for s in range(4):
        g.normal_(generator=torch.Generator().manual_seed(s))
        slope = fused(decay, wanted, g.numpy())
        velocity = fused(mu, velocity, slope)
        wanted = fused(-rate, velocity, wanted)
        step.decay()
        step.descend()
        np.testing.assert_allclose(w.numpy(), wanted, rtol=1e-7, atol=1e-12)


def test_sgd_by_kernels_is_torchs_up_to_rounding() -> None:
    x, _ = batch(SMALL, 2)
    step = step_of(net(SMALL), x, momentum=0.9, weight_decay=0.01)
    torchs, (w, g), state = SGD(0.01, 0.9), (step._flat.w, step._flat.g), {}
    step.begin_client(0.3, {})
    other = w.clone()
    for s in range(4):
        g.normal_(generator=torch.Generator().manual_seed(s))
        slope = g.clone()
        step.decay()
        step.descend()
        torchs.decay(other, slope)
        torchs.step(other, slope, state, 0.3)
    torch.testing.assert_close(w, other, rtol=1e-6, atol=1e-6)


def test_each_client_begins_without_momentum() -> None:
    x, _ = batch("linear", 2)
    step, ends = step_of(net("linear"), x, momentum=0.9), []
    start = step._flat.w.clone()
    for _ in range(2):
        step.begin_client(0.1, {})
        step._flat.w.copy_(start)
        for _ in range(2):
            step._flat.g.fill_(1.0)
            step.descend()
        ends.append(step._flat.w.clone())
    assert torch.equal(*ends)
