"""Sixteen clients at once, a lane each, come to what each comes to alone in float64, whoever the others are."""

from __future__ import annotations

import copy
import platform
from dataclasses import replace

import pytest
import torch
from lane_nets import batch, lowering_of, net
from torch import Tensor

from fedrecall import Local
from fedrecall.client.lanes.clients import Batches, LanesClients
from fedrecall.client.lanes.jit import HASWELL, Cpu
from fedrecall.client.lanes.kernels.layers import Pixels
from fedrecall.core.vector import FlatModel

LANES, STEPS, BATCH, SAMPLES, LR = 16, 3, 6, 30, 0.1
NARROWER = HASWELL if platform.machine() in ("x86_64", "AMD64") else None
NETS = ["linear", "convolutions with padding", "strides and groups", "overlapping windows and means"]


class Group:
    """Sixteen clients with samples, offsets and numbers of steps of their own."""

    def __init__(self, name: str, samples: int = BATCH, momentum: float = 0.9) -> None:
        self.name, self.local = name, Local(batch_size=BATCH, lr=LR, momentum=momentum, weight_decay=0.01)
        self.x, self.y = batch(name, LANES * SAMPLES)
        random = torch.Generator().manual_seed(1)
        own = torch.randint(0, SAMPLES, (STEPS, samples, LANES), generator=random)
        self.rows = (own + torch.arange(LANES) * SAMPLES).permute(2, 0, 1)
        self.steps = torch.arange(LANES) % (STEPS + 1)
        self.flat = FlatModel(net(name))
        self.lowering = lowering_of(self.flat, self.x)
        self.offset = torch.randn(LANES, 10 if "means" in name else 5, generator=random)
        self.offset[:, 0] = -torch.inf  # a class that no client has
        self.y.clamp_(min=1)

    def train(self, order: Tensor | None = None, cpu: Cpu | None = None, start: Tensor | None = None) -> tuple:
        order = torch.arange(LANES) if order is None else order
        kernels = LanesClients(self.lowering, self.local, cpu)
        w = kernels.weights(1, None if start is None else start[order])
        begin, losses = self.flat.w if start is None else None, torch.zeros(1, LANES)
        batches = self.batches(self.rows[order], self.steps[order])
        kernels.run(w, batches, kernels.offsets(self.offset[order]), losses, LR, start=begin)
        return w[0, : len(self.flat.w)].t(), losses[0]

    def batches(self, rows: Tensor, steps: Tensor, begun: int = 0) -> Batches:
        return Batches(self.x, self.y, rows.flatten(1), rows.shape[2], steps.view(-1, LANES).int(), begun)

    def alone(self, k: int) -> tuple[Tensor, float]:
        """A client in float64, by torch.optim."""
        module = copy.deepcopy(self.flat.module).double()
        optimiser = torch.optim.SGD(module.parameters(), LR, self.local.momentum, weight_decay=0.01)
        total = 0.0
        for rows in self.rows[k, : self.steps[k]]:
            z, y = module(self.x[rows].double()), self.y[rows]
            loss = ((z + self.offset[k]).logsumexp(1) - z.gather(1, y[:, None])[:, 0]).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item()
        return FlatModel(module).w, total


@pytest.mark.parametrize("samples", [BATCH, 5])
@pytest.mark.parametrize("name", NETS)
def test_each_client_takes_its_own_steps_of_sgd(name, samples) -> None:
    group = Group(name, samples)
    w, losses = group.train()
    for k in range(LANES):
        wanted, loss = group.alone(k)
        moved = (spread(group.flat, wanted) - group.flat.w).norm()
        assert (w[k] - spread(group.flat, wanted)).norm() <= 2e-5 * moved, k
        assert losses[k].item() == pytest.approx(loss, rel=1e-5)


def test_bytes_are_read_as_the_images_that_they_are() -> None:
    group = Group("convolutions with padding")
    random, (scale, shift) = torch.Generator().manual_seed(3), ((0.01, 0.02, 0.03), (-1.0, 0.5, 0.25))
    stored = torch.randint(0, 256, (len(group.x), *group.x.shape[2:], 3), dtype=torch.uint8, generator=random)
    group.x = (stored.double() * torch.tensor(scale) + torch.tensor(shift)).float().permute(0, 3, 1, 2)
    floats, losses = group.train()
    read = replace(group.batches(group.rows, group.steps), x=stored.flatten(1))
    kernels = LanesClients(replace(group.lowering, pixels=Pixels(scale, shift)), group.local)
    w, found = kernels.weights(1), torch.zeros(1, LANES)
    kernels.run(w, read, kernels.offsets(group.offset), found, LR, start=group.flat.w)
    moved = (floats - group.flat.w).norm()
    assert (w[0, : len(group.flat.w)].t() - floats).norm() <= 2e-5 * moved
    assert torch.allclose(found[0], losses, rtol=1e-5)


def test_groups_that_follow_each_other_have_the_bits_of_each_alone() -> None:
    """Also where later ones take fewer steps, or none."""
    group = Group("strides and groups")
    steps = torch.stack([group.steps, group.steps.clamp(max=2), torch.zeros_like(group.steps)])
    rows = torch.stack([group.rows, group.rows.flip(1), group.rows])
    kernels = LanesClients(group.lowering, group.local)
    offsets = kernels.offsets(group.offset.repeat(3, 1), 3)
    w, losses = kernels.weights(3), torch.zeros(3, LANES)
    kernels.run(w, group.batches(rows.flatten(0, 1), steps), offsets, losses, LR, start=group.flat.w)
    for g in range(3):
        alone, loss = kernels.weights(1), torch.zeros(1, LANES)
        kernels.run(alone, group.batches(rows[g], steps[g]), offsets[g : g + 1], loss, LR, start=group.flat.w)
        assert torch.equal(loss[0], losses[g])
        assert torch.equal(alone[0], w[g])
    assert torch.equal(w[2, : len(group.flat.w)], group.flat.w[:, None].expand(-1, LANES))
    assert not torch.equal(w[0], w[1])


@pytest.mark.parametrize("cpu", [None, NARROWER])
def test_models_are_added_up_with_the_shares_that_they_have(cpu) -> None:
    """Steps may be taken by several calls, of which the first one begins and the last one adds up."""
    group = Group("strides and groups")
    kernels = LanesClients(group.lowering, group.local, cpu)
    steps, shares = torch.full((2, LANES), 2), torch.rand(2, LANES, generator=torch.Generator().manual_seed(5))
    shares[1, 9:], total = 0, torch.zeros(len(group.flat.w))
    offsets, w = kernels.offsets(group.offset.repeat(2, 1), 2), kernels.weights(2)
    first, second = (group.batches(group.rows[:, s : s + 1].repeat(2, 1, 1), steps, s) for s in range(2))
    losses, losses_at_once = torch.zeros(2, LANES), torch.zeros(2, LANES)
    kernels.run(w, first, offsets, losses, LR, start=group.flat.w)
    kernels.run(w, second, offsets, losses, LR, shares=shares, sums=total)
    count = len(group.flat.w)
    wanted = torch.einsum("gl,gpl->p", shares.double(), w[:, :count].double())
    assert torch.allclose(total.double(), wanted, rtol=1e-6, atol=1e-6)
    at_once, both = kernels.weights(2), group.batches(group.rows.repeat(2, 1, 1), steps)
    kernels.run(at_once, both, offsets, losses_at_once, LR, start=group.flat.w)
    assert torch.equal(at_once, w)
    assert torch.equal(losses, losses_at_once)


def spread(flat: FlatModel, w: Tensor) -> Tensor:
    """A float64 model's vector, whose tensors lie on other boundaries, as a float32 model's."""
    other, found = FlatModel(copy.deepcopy(flat.module).double()), torch.zeros_like(flat.w)
    for mine, theirs in zip(flat.parameter_slots, other.parameter_slots):
        mine.view(found).copy_(theirs.view(w))
    return found


@pytest.mark.parametrize("name", NETS)
def test_a_clients_bits_depend_neither_on_its_lane_nor_on_the_others_nor_on_the_width(name) -> None:
    group = Group(name)
    w, losses = group.train()
    turned = torch.randperm(LANES, generator=torch.Generator().manual_seed(4))
    for order, cpu in ((turned, None), (torch.full((LANES,), 7), None), (turned, NARROWER)):
        other, other_losses = group.train(order, cpu)
        assert torch.equal(other, w[order])
        assert torch.equal(other_losses, losses[order])


def test_the_gradient_of_a_class_that_no_client_has_is_zero() -> None:
    group = Group("linear", momentum=0.0)
    group.local = group.local.model_copy(update={"weight_decay": 0.0})
    w, _ = group.train()
    weight, bias = (slot.view(w) for slot in group.flat.parameter_slots)
    before_weight, before_bias = (slot.view(group.flat.w) for slot in group.flat.parameter_slots)
    assert torch.equal(weight[:, 0], before_weight[0].expand(LANES, -1))
    assert torch.equal(bias[:, 0], before_bias[0].expand(LANES))
    assert not torch.equal(weight[1, 1], before_weight[1])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_a_client_that_diverges_reaches_no_other(value) -> None:
    group = Group("convolutions with padding")
    w, losses = group.train()
    for slot in group.flat.parameter_slots:
        start = group.flat.w.repeat(LANES, 1)
        start[6, slot.offset] = value
        other, other_losses = group.train(start=start)
        alone = [k for k in range(LANES) if k != 6]
        assert torch.equal(other[alone], w[alone])
        assert torch.equal(other_losses[alone], losses[alone])
        assert value == 1e30 or not other[6].isfinite().all()
        assert value == 1e30 or not other_losses[6].isfinite()


def test_a_client_that_is_done_keeps_its_weights_though_they_would_overflow() -> None:
    group = Group("linear")
    start = group.flat.w.repeat(LANES, 1)
    start[0] = 3e38  # it has no steps to take
    assert torch.equal(group.train(start=start)[0][0], start[0])
