"""Kernels are checked against float64 before round 1, on inputs that depend on nothing but the model's layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lane_nets import NETS, batch, lowering_of, net

from fedrecall import WSM, CrossEntropy, FedNTD, Images, Local, Objective
from fedrecall.client.lanes.check import cases, check_clients, check_samples
from fedrecall.client.lanes.kernels import loss as loss_module
from fedrecall.client.lanes.kernels import sample_loading, vectors
from fedrecall.client.lanes.kernels.ir import Function
from fedrecall.client.lanes.lowering import Lowering
from fedrecall.client.lanes.model_reader import UnsupportedError
from fedrecall.core.vector import FlatModel

SETTINGS = {
    "plain": Local(batch_size=10),
    "one sample": Local(batch_size=1),
    "momentum and decay": Local(batch_size=17, momentum=0.9, weight_decay=0.01),
    "a large batch": Local(batch_size=64),
}
IMAGES = {channels: Images((0.5,) * channels, (0.25,) * channels) for channels in (2, 3, 4)}
SMALL, MEANS = "convolutions with padding", "overlapping windows and means"


def given(name: str, objective: Objective | None = None, **more: Any) -> tuple[Lowering, FlatModel]:
    flat = FlatModel(net(name))
    return lowering_of(flat, batch(name, 2)[0], objective, **more), flat


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", NETS)
def test_the_kernels_of_every_layer_pass(name, settings) -> None:
    lowering, flat = given(name)
    check_samples(lowering, SETTINGS[settings], flat, CrossEntropy())
    check_clients(lowering, SETTINGS[settings], flat)


@pytest.mark.parametrize("objective", [WSM(smoothing=0.1), WSM(distill=0.5), FedNTD()], ids=str)
def test_the_kernels_pass_whatever_the_objective_is(objective) -> None:
    lowering, flat = given(SMALL, objective)
    check_samples(lowering, Local(batch_size=10), flat, objective)


@pytest.mark.parametrize("name", [SMALL, "strides and groups", MEANS])
def test_the_kernels_that_read_bytes_pass(name) -> None:
    lowering, flat = given(name, transform=IMAGES[NETS[name][0][0]])
    assert lowering.pixels
    check_samples(lowering, Local(batch_size=10), flat, CrossEntropy())
    check_clients(lowering, Local(batch_size=10), flat)


def test_the_model_is_left_as_it_was() -> None:
    lowering, flat = given("lenet")
    before, generator = flat.w.clone(), torch.get_rng_state()
    check_samples(lowering, Local(batch_size=10), flat, CrossEntropy())
    check_clients(lowering, Local(batch_size=10), flat)
    assert torch.equal(flat.w, before)
    assert not flat.g.any()
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("name", NETS)
def test_the_inputs_do_not_depend_on_weights_or_draws(name) -> None:
    lowering, flat = given(name)
    first = [*cases(lowering, Local(batch_size=10), flat)]
    flat.w.normal_()
    for before, after in zip(first, cases(lowering, Local(batch_size=10), flat)):
        for key in ("w", "x", "target", "offset", "logits", "loss", "gradient"):
            assert torch.equal(getattr(before, key), getattr(after, key)), key


# A mean of three rows, and a square root, are not exact.
@pytest.mark.parametrize("name", [name for name in NETS if name != "strides and groups" and "length" not in name])
def test_sums_of_the_inputs_are_exact_in_float32(name) -> None:
    """So rounding decides no maximum and no sign, in whatever order numbers are added."""
    lowering, flat = given(name)
    case, _ = cases(lowering, Local(batch_size=10), flat)
    flat.w.copy_(case.w)
    assert torch.equal(flat.module(case.x).double(), case.logits)


def halved(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of the generator, whose value is halved."""

    def wrong(f: Function, *rest: Any, **named: Any) -> str:
        return f.mul(kernel(f, *rest, **named), f.constant(0.5))

    return wrong


def nudged(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(f: Function, *rest: Any, **named: Any) -> str:
        return f.mul(kernel(f, *rest, **named), f.constant(1 + 2**-12))

    return wrong


WRONG = {  # where, what is put there, and the networks that meet it
    "sums over samples": (vectors, "lane_total", halved, [name for name in NETS if name != "images of one length"]),
    "the order of inputs": (sample_loading, "places_of", lambda right: lambda *of: right(*of)[::-1], [SMALL, "lenet"]),
    "exp": (loss_module, "exp", nudged, ["linear", "lenet"]),
    "the polynomial of exp": (loss_module, "EXP", lambda right: (0.1,) * len(right), ["linear", "lenet"]),
    "the polynomial of log": (loss_module, "LOG", lambda right: (0.1,) * len(right), ["linear", "lenet"]),
    "log": (loss_module, "log", lambda right: lambda f, x: f.add(right(f, x), f.constant(0.01)), ["linear"]),
    "products": (Function, "fma", lambda right: lambda f, a, b, c: right(f, a, b, nudge(f, c)), [SMALL, "linear"]),
    "maxima and signs": (
        Function, "where_positive", lambda right: lambda f, a, b: nudge(f, right(f, a, b)), [SMALL],
    ),
}  # fmt: skip


def nudge(f: Function, value: str) -> str:
    return f.mul(value, f.constant(1 + 2**-12))


@pytest.mark.parametrize(("wrong", "name"), [(wrong, name) for wrong in WRONG for name in WRONG[wrong][3]])
def test_a_wrong_kernel_is_refused(wrong, name, monkeypatch) -> None:
    owner, attribute, make, _ = WRONG[wrong]
    lowering, flat = given(name)
    monkeypatch.setattr(owner, attribute, make(getattr(owner, attribute)))
    with pytest.raises(UnsupportedError, match="no kernel for this model that computes what float64 does"):
        check_samples(lowering, Local(batch_size=10), flat, CrossEntropy())


@pytest.mark.parametrize("wrong", [name for name in WRONG if name != "sums over samples"])
def test_a_wrong_kernel_with_a_client_in_each_lane_is_refused(wrong, monkeypatch) -> None:
    owner, attribute, make, (name, *_) = WRONG[wrong]
    lowering, flat = given(name)
    monkeypatch.setattr(owner, attribute, make(getattr(owner, attribute)))
    with pytest.raises(UnsupportedError, match="no kernel for this model that computes what float64 does"):
        check_clients(lowering, Local(batch_size=10), flat)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_wrong_update_of_sixteen_clients_is_refused(monkeypatch, momentum) -> None:
    def twice(f: Function, g: str, *rest: Any, **named: Any) -> None:
        right(f, f.add(g, g), *rest, **named)

    right = vectors.update
    monkeypatch.setattr(vectors, "update", twice)
    lowering, flat = given(SMALL)
    with pytest.raises(UnsupportedError, match="that computes what float64 does"):
        check_clients(lowering, Local(batch_size=10, momentum=momentum), flat)


def test_a_forward_that_only_float32_can_run_is_refused() -> None:
    class Single(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x.float(), self.weight, self.bias)

    flat = FlatModel(Single(20, 5))
    lowering = lowering_of(flat, torch.zeros(2, 20))
    with pytest.raises(UnsupportedError, match="a forward that cannot be computed in float64"):
        check_samples(lowering, Local(batch_size=10), flat, CrossEntropy())
