"""How a run's steps are taken is decided before round 1, and a reason is noted where kernels are not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrecall import WSM, Algorithm, CrossEntropy, FedAvg, Federation, FedNTD, Images, InputError, Local, Moon
from fedrecall.client.job import Job
from fedrecall.client.lanes import check
from fedrecall.client.lanes.decision import Steps, advice_on_steps, decide_steps
from fedrecall.models.lenet import lenet


def federation(dtype: type = np.float32) -> Federation:
    x, y = np.zeros((10, 20), dtype), np.arange(10) % 4
    return Federation.from_clients([(x, y)] * 4, num_classes=4, validation=0)


def images() -> Federation:
    x, y = np.zeros((10, 32, 32, 3), np.uint8), np.arange(10) % 4
    transform = Images((0.5,) * 3, (0.25,) * 3)
    return Federation.from_clients([(x, y)] * 4, num_classes=4, validation=0, transform=transform, layout="nhwc")


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 17), nn.ReLU(), nn.Linear(17, 4))


def decide(
    model: Callable[[], nn.Module] = mlp, data: Federation | None = None, algorithm: Algorithm | None = None,
    objective: Any = None, *, on_cpu: bool = True, **local: Any,
) -> Steps:  # fmt: skip
    settings = Local(**{"batch_size": 10, "step": "lanes"} | local)
    job, data = Job(model, algorithm or FedAvg(), objective or WSM(), settings, 0), data or federation()
    return decide_steps(job, data, job.build_model(data), on_cpu=on_cpu)


def test_a_model_with_kernels_has_them_in_its_job_and_no_note() -> None:
    steps = decide()
    assert steps.note is None
    assert [layer.outputs for layer in steps.job.lowering.chain.linear] == [17, 4]


def test_exact_steps_have_no_kernels_and_no_note() -> None:
    steps = decide(step="exact")
    assert (steps.job.lowering, steps.note) == (None, None)


def test_images_are_read_as_bytes() -> None:
    assert decide(lambda: lenet((3, 32, 32), 4), images()).job.lowering.pixels.scale == (1 / (255 * 0.25),) * 3


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"model": lambda: nn.Sequential(nn.Linear(20, 17), nn.Tanh(), nn.Linear(17, 4))}, "aten.tanh.default"),
        ({"model": lambda: mlp().double()}, "a precision other than float32, or a device other than the CPU"),
        ({"algorithm": Moon()}, "a loss of features"),
        ({"precision": "bfloat16"}, "a precision other than float32"),
        ({"on_cpu": False}, "a device other than the CPU"),
    ],
    ids=["tanh", "float64", "moon", "bfloat16", "another device"],
)
def test_what_has_no_kernels_takes_exact_steps_with_a_note_that_names_it(given, reason) -> None:
    steps = decide(**given)
    assert steps.job.lowering is None
    assert steps.note == f"steps are exact and not in lanes: there is no kernel for {reason}"


def test_batches_that_take_too_much_memory_take_exact_steps(monkeypatch) -> None:
    monkeypatch.setattr("fedrecall.client.lanes.memory.MOST_BYTES", 1000)
    assert "batches whose activations take 0.0 GiB" in (decide().note or "")


def test_a_wrong_kernel_takes_exact_steps_with_a_note(monkeypatch) -> None:
    right = check.LanesStep.logits
    monkeypatch.setattr(check.LanesStep, "logits", lambda step, x: 1.1 * right(step, x))
    steps = decide()
    assert steps.job.lowering is None
    assert "there is no kernel for this model that computes what float64 does" in (steps.note or "")


def test_the_decision_does_not_depend_on_the_weights() -> None:
    jobs = [Job(mlp, FedAvg(), WSM(), Local(step="lanes"), seed) for seed in (0, 1)]
    one, other = (decide_steps(job, federation(), job.build_model(federation()), on_cpu=True) for job in jobs)
    assert one.job.lowering == other.job.lowering


def test_an_objective_with_a_loss_of_its_own_keeps_it_in_lanes() -> None:
    steps = decide(objective=FedNTD())
    assert steps.note is None
    assert not steps.job.lowering.own_loss


class Broken(nn.Module):
    """Fails from its second forward pass on."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.seen = nn.Linear(20, 4), list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(1)
        if len(self.seen) > 1:
            raise InputError("no more")
        return self.fc(x)


def narrow() -> nn.Module:
    return lenet((3, 32, 32), 4)


ADVICE = "local.step=lanes would train this model several times as fast (docs/engines.md)"


@pytest.mark.parametrize(
    ("model", "data", "local", "advice"),
    [
        (narrow, images, {}, ADVICE),
        (mlp, federation, {}, ADVICE),
        (narrow, images, {"step": "lanes"}, None),
        (narrow, images, {"precision": "bfloat16"}, None),
        (lambda: nn.Linear(20, 4), federation, {}, None),  # has kernels, which do not pay
        (lambda: nn.Sequential(nn.Linear(20, 4), nn.Tanh()), federation, {}, None),  # has none
        (Broken, federation, {}, None),
    ],
)
def test_lanes_are_advised_where_exact_steps_were_taken_and_kernels_pay(model, data, local, advice) -> None:
    job = Job(model, FedAvg(), CrossEntropy(), Local(**local), 0)
    assert advice_on_steps(job, data(), job.build_model(data())) == advice


def test_looking_for_advice_leaves_the_model_as_it_was() -> None:
    job, data = Job(narrow, FedAvg(), CrossEntropy(), Local(), 0), images()
    flat = job.build_model(data)
    before, generator = flat.w.clone(), torch.get_rng_state()
    advice_on_steps(job, data, flat)
    assert torch.equal(flat.w, before)
    assert torch.equal(torch.get_rng_state(), generator)
