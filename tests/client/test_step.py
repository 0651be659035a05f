"""An exact step has the bits of the loop that anybody would write, whatever the model is."""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from exact_steps import exact_step
from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall import WSM, CrossEntropy, FedAvg, FedNTD, FedVLS, Moon, Objective
from fedrecall.client.batch import Batch
from fedrecall.core.labels import Labels
from fedrecall.core.vector import FlatModel, Tensors
from fedrecall.models.lenet import lenet

LR, STEPS = 0.05, 6
LABELS = Labels(torch.arange(10), torch.arange(10) / 45)


class Tied(nn.Module):
    """Two layers share a weight, one is never used, one bias is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3072, 10), nn.Linear(10, 10)
        self.b.weight = nn.Parameter(torch.randn(10, 10))
        self.c = nn.Linear(10, 10)
        self.c.weight = self.b.weight
        self.unused = nn.Linear(3, 3)
        self.a.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.tanh(self.b(self.a(x.flatten(1)))))


class OwnPadding(nn.Module):
    """Parameters are padded and transposed in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.after, self.before = nn.Parameter(torch.randn(8, 3072)), nn.Parameter(torch.randn(9, 10))
        self.ones, self.cut = nn.Parameter(torch.randn(8, 10)), nn.Parameter(torch.randn(12, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x.flatten(1) @ F.pad(self.after, (0, 0, 0, 2)).t() / 50)
        x = x @ F.pad(self.before, (0, 0, 1, 0)) @ F.pad(self.ones, (0, 0, 0, 2), value=1.0)
        return x @ F.pad(self.cut, (0, 0, -2, 0)) / 50 * torch.ones_like(x.sum())


class Hidden(nn.Linear):
    """Forward depends on something that is neither a parameter nor a buffer, and changes it."""

    calls = 0

    def __init__(self, where: str) -> None:
        super().__init__(3072, 10)
        self.where, self.space, self.seen = where, SimpleNamespace(calls=0), list[float]()
        self.scale = [torch.tensor(2.0)]

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x.flatten(1))
        if self.where == "an attribute":
            self.calls += 1
        elif self.where == "an attribute's attribute":
            self.space.calls += 1
        elif self.where == "a list":
            self.seen.append(0.0)
        elif self.where == "the last logits":
            self.last = logits
        elif self.where == "random numbers of Python":
            logits = logits * random.choice([1.0, 2.0])
        elif self.where == "random numbers of NumPy":
            logits = logits * np.random.rand()  # noqa: NPY002
        elif self.where == "a branch on the data":
            logits = logits if logits.sum() > 0 else -logits
        elif self.where == "a tensor in a list":
            logits = logits * self.scale[0]
        return logits * (1.0 if self.calls + self.space.calls + len(self.seen) < 4 else 0.5)


HIDDEN = [
    "an attribute", "an attribute's attribute", "a list", "the last logits", "random numbers of Python",
    "random numbers of NumPy", "a branch on the data", "a tensor in a list",
]  # fmt: skip

MODELS = {
    "lenet": lambda: lenet((3, 32, 32), 10),
    "batch norm": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 12, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 10),
    ),
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.GELU(), nn.Flatten(), nn.Linear(1800, 10)
    ),
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 16), nn.Dropout(0.5), nn.Linear(16, 10)),
    "tied, frozen and unused": Tied,
    "own padding": OwnPadding,
    **{name: (lambda name=name: Hidden(name)) for name in HIDDEN},
}  # fmt: skip


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


def batch(seed: int, size: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, 32, 32, generator=generator).contiguous(memory_format=torch.channels_last)
    return x, torch.randint(1, 10, (size,), generator=generator)


def seed_all() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002


def walk(model: nn.Module, **local: object) -> tuple[FlatModel, list[float]]:
    """The model after some steps of plain SGD, and their losses."""
    flat = FlatModel(copy.deepcopy(model).train())
    step = exact_step(flat, CrossEntropy(), batch_size=16, weight_decay=0.0, **local)
    step.begin_client(LR, {})
    losses = []
    seed_all()
    for s in range(STEPS):
        losses.append(float(step(Batch(*batch(s)))))
        step.descend()
    return flat, losses


def plain_walk(model: nn.Module) -> tuple[nn.Module, list[float]]:
    """The same with an unchanged module and torch's optimiser."""
    model = copy.deepcopy(model).to(memory_format=torch.channels_last).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser, losses = torch.optim.SGD(trained, LR, foreach=False), []
    seed_all()
    for s in range(STEPS):
        x, target = batch(s)
        optimiser.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return model, losses


@pytest.mark.parametrize("name", MODELS)
def test_an_exact_step_has_the_bits_of_a_plain_loop(name) -> None:
    model = made(name)
    (flat, losses), (plain, plain_losses) = walk(model), plain_walk(model)
    assert losses == plain_losses
    for key, expected in plain.state_dict().items():
        assert torch.equal(flat.module.state_dict()[key], expected), key


def features_and_logits(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The last layer is `model[-1]`."""
    features = model[:-1](x)
    return features, model[-1](features)


@pytest.mark.parametrize("objective", [CrossEntropy(), WSM(smoothing=0.01, distill=0.5), FedNTD(), FedVLS()])
@pytest.mark.parametrize("algorithm", [FedAvg(), Moon()])
def test_the_gradient_is_that_of_the_objective_plus_the_penalty(objective, algorithm) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 12), nn.Tanh(), nn.Linear(12, 10))
    x, target = batch(0)
    teacher, sent, previous = torch.randn(16, 10), torch.randn(16, 12), torch.randn(16, 12)
    flat, prepared = FlatModel(copy.deepcopy(model)), objective.prepare(LABELS)
    step = exact_step(flat, objective, algorithm, batch_size=16)
    step.begin_client(LR, prepared)
    compared = [teacher if objective.needs else None, *((sent, previous) if "features" in algorithm.needs else ())]
    loss = step(Batch(x, target, prepared, *compared))
    features, logits = features_and_logits(model, x)
    expected = objective(logits, target, objective.prepare(LABELS), teacher)
    if algorithm.needs:
        expected = expected + algorithm.penalty(features, sent, previous)
    expected.backward()
    assert torch.equal(loss, expected.detach())
    for slot, parameter in zip(flat.parameter_slots, model.parameters()):
        assert torch.equal(slot.view(flat.g), parameter.grad)


class Chosen(Objective):
    """Squares of the logits of the classes that a client has."""

    def prepare(self, labels: Labels) -> Tensors:
        return {"classes": labels.counts.nonzero()[:, 0]}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        return logits[:, client["classes"]].square().sum()


def test_prepared_tensors_may_have_another_size_for_each_client() -> None:
    model, objective = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), Chosen()
    step, (x, target) = exact_step(FlatModel(model), objective, batch_size=16), batch(0)
    for classes in ([1, 2], [0, 3, 4, 9], [5]):
        counts = torch.bincount(torch.tensor(classes), minlength=10)
        prepared = objective.prepare(Labels(counts, counts / counts.sum()))
        step.begin_client(LR, prepared)
        expected = model(x)[:, classes].square().sum()
        assert torch.equal(step(Batch(x, target, prepared)), expected)


def test_a_gradient_is_written_anew_by_each_step() -> None:
    flat, (x, target) = FlatModel(made("lenet")), batch(0)
    step = exact_step(flat, CrossEntropy(), batch_size=16)
    step(Batch(x, target))
    first = flat.g.clone()
    step(Batch(x, target))
    assert torch.equal(flat.g, first)


def test_bfloat16_is_mixed_precision_of_the_same_step() -> None:
    model = made("lenet")
    (full, _), (half, _) = walk(model), walk(model, precision="bfloat16")
    assert half.w.dtype == torch.float32
    assert not torch.equal(full.w, half.w)
    assert (full.w - half.w).norm() < 0.02 * full.w.norm()
