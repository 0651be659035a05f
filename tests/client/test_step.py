"""The traced step has the bits of the eager one, and says so where it cannot be had."""

from __future__ import annotations

import copy
import os
import random
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall import WSM, CrossEntropy, FedAvg, FedNTD, FedVLS, Local, Moon
from fedrecall.client import step as step_module
from fedrecall.client.step import Compared, Step
from fedrecall.labels import Labels
from fedrecall.models.lenet import lenet
from fedrecall.vector import FlatModel


class ReluThenPool(nn.Module):
    """As most write it: the traced step may turn the two around."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5), nn.Linear(400, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        return self.fc(F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1))


class Tied(nn.Module):
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
    """Parameters padded and transposed in ways of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.after, self.before = nn.Parameter(torch.randn(8, 3072)), nn.Parameter(torch.randn(9, 10))
        self.ones, self.cut = nn.Parameter(torch.randn(8, 10)), nn.Parameter(torch.randn(12, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x.flatten(1) @ F.pad(self.after, (0, 0, 0, 2)).t() / 50)
        x = x @ F.pad(self.before, (0, 0, 1, 0)) @ F.pad(self.ones, (0, 0, 0, 2), value=1.0)
        return x @ F.pad(self.cut, (0, 0, -2, 0)) / 50 * torch.ones_like(x.sum())


MODELS = {
    "lenet": lambda: lenet((3, 32, 32), 10),
    "relu then pool": ReluThenPool,
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
}  # fmt: skip


def batch(seed: int, size: int = 16) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, 32, 32, generator=random).contiguous(memory_format=torch.channels_last)
    return x, torch.randint(1, 10, (size,), generator=random)


LABELS = Labels(torch.arange(10), torch.arange(10) / 45)


def walk(model: nn.Module, steps: int = 6, objective=None, algorithm=None, compared=None, **local) -> FlatModel:
    """Some steps of plain SGD with our gradients; the model and the last gradient."""
    flat = FlatModel(copy.deepcopy(model))
    flat.module.train()
    step = Step(flat, objective or WSM(), algorithm or FedAvg(), Local(batch_size=16, **local))
    torch.manual_seed(1)
    losses = []
    for s in range(steps):
        x, target = batch(s)
        given = compared(x) if compared else Compared()
        losses.append(step(x, target, step.objective.prepare(LABELS), given))
        flat.w.add_(flat.g, alpha=-0.05)
    flat.losses, flat.step = torch.stack(losses), step
    return flat


@pytest.fixture
def traced(monkeypatch):
    """A function: from how many steps on batches are traced."""
    return lambda after: monkeypatch.setattr(step_module, "TRACE_AFTER", after)


@pytest.mark.parametrize("name", MODELS)
def test_traced_steps_have_the_bits_of_eager_ones(name, traced) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    traced(10**9)
    eager = walk(model)
    assert not eager.step._graphs
    for after in (0, 2):
        traced(after)
        other = walk(model)
        assert len(other.step._graphs) == 1, other.step.note
        for ours, theirs in ((eager.w, other.w), (eager.g, other.g), (eager.losses, other.losses)):
            assert torch.equal(ours, theirs)
        assert all(torch.equal(a, b) for a, b in zip(eager.buffers().values(), other.buffers().values()))


@pytest.mark.parametrize("objective", [CrossEntropy(), WSM(smoothing=0.01, distill=0.5), FedNTD(), FedVLS()])
@pytest.mark.parametrize("algorithm", [FedAvg(), Moon()])
def test_teachers_and_penalties_are_traced_too(objective, algorithm, traced) -> None:
    torch.manual_seed(0)
    model = MODELS["lenet"]()

    def compared(x: Tensor) -> Compared:
        teacher, features = x[:, 0, :1, :10].flatten(1), x.flatten(1)[:, :84]
        return Compared(
            teacher if objective.needs else None, *((features, 2 * features.flip(1)) if algorithm.needs else ())
        )

    walks = []
    for after in (10**9, 0):
        traced(after)
        walks.append(walk(model, 3, objective, algorithm, compared))
    assert len(walks[1].step._graphs) == 1, walks[1].step.note
    assert torch.equal(walks[0].w, walks[1].w)
    assert torch.equal(walks[0].losses, walks[1].losses)


def test_a_tensor_that_is_given_twice_at_first_is_two_inputs_for_good(traced) -> None:
    # In a client's first round its previous model is the one it was sent, later it is another.
    torch.manual_seed(0)
    model, calls = MODELS["lenet"](), []

    def compared(x: Tensor) -> Compared:
        calls.append(x)
        features = x.flatten(1)[:, :84]
        return Compared(None, features, features if len(calls) % 6 in (1, 2, 3) else features.flip(1))

    walks = []
    for after in (10**9, 0):
        traced(after)
        walks.append(walk(model, 6, CrossEntropy(), Moon(), compared))
    assert walks[1].step._graphs
    assert torch.equal(walks[0].w, walks[1].w)


class Counting(nn.Linear):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x.flatten(1)) * self.calls


class Remembering(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.seen: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(0.0)
        return super().forward(x.flatten(1))


class Showing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x.flatten(1))
        return self.last


class Drawing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)) * random.choice([1.0, 1.0])


class Deciding(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x.flatten(1))
        return logits if logits.sum() > 0 else -logits


class Hiding(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.scale = [torch.tensor(2.0)]  # neither parameter nor buffer

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)) * self.scale[0]


CALLS = 0


class CountingElsewhere(nn.Linear):
    """A schedule that changes after some steps; the calls are counted where `where` says."""

    def __init__(self, *sizes: int, where: str) -> None:
        super().__init__(*sizes)
        self.where, self.space = where, SimpleNamespace(calls=0, inner=SimpleNamespace(calls=0))

    def forward(self, x: Tensor) -> Tensor:
        global CALLS
        if self.where == "module":
            CALLS += 1
            calls = CALLS
        else:
            space = self.space if self.where == "attribute" else self.space.inner
            space.calls += 1
            calls = space.calls
        return super().forward(x.flatten(1)) * (1.0 if calls < 5 else 0.5)


@pytest.mark.parametrize("where", ["module", "attribute", "inner attribute"])
def test_a_schedule_that_is_counted_elsewhere_has_the_bits_of_eager(where, traced, monkeypatch) -> None:
    walks = []
    for after in (10**9, 2):
        monkeypatch.setitem(globals(), "CALLS", 0)
        torch.manual_seed(0)
        traced(after)
        walks.append(walk(CountingElsewhere(3072, 10, where=where), 9))
    assert "changes an attribute or a variable" in walks[1].step.note
    assert torch.equal(walks[0].w, walks[1].w)
    assert torch.equal(walks[0].losses, walks[1].losses)


class ReadingElsewhere(nn.Linear):
    """Depends on something that no fingerprint looks at."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)) * float(os.environ["FEDRECALL_TEST_SCALE"])


@pytest.mark.parametrize("how", ["exact", "fast"])
def test_a_recording_that_is_no_longer_the_eager_step_is_given_up(how, traced, monkeypatch) -> None:
    traced(0)
    torch.manual_seed(0)
    flat = FlatModel(ReadingElsewhere(3072, 10))
    step = Step(flat, CrossEntropy(), FedAvg(), Local(batch_size=16, step=how))
    losses = []
    for s in range(1, 20):
        monkeypatch.setenv("FEDRECALL_TEST_SCALE", "1.0" if s < 7 else "3.0")
        losses.append(float(step(*batch(0), {})))
        assert bool(step._graphs) == (s < 9)  # recorded at step 1, compared at 1 + 1, 2, 4, 8
    with torch.no_grad():
        x, target = batch(0)
        expected = F.cross_entropy(flat.module(x), target)
    assert losses[8:] == pytest.approx([float(expected)] * 11)
    assert losses[5] != losses[8]
    assert "no longer traced" in step.note
    assert "since they were last compared" in step.note


def test_compared_steps_come_at_growing_intervals(traced, monkeypatch) -> None:
    traced(0)
    monkeypatch.setattr(step_module, "CHECK_EVERY", 32)
    step = Step(FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))), WSM(), FedAvg(), Local())
    compared, eager = [], step.eager
    monkeypatch.setattr(step, "eager", lambda *given: (compared.append(s), eager(*given))[1])
    for s in range(100):
        step(*batch(s), step.objective.prepare(LABELS))
    assert compared == [0, 1, 2, 4, 8, 16, 32, 64, 96]


def test_a_model_that_diverges_is_still_traced(traced) -> None:
    traced(0)
    flat = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)))
    step = Step(flat, CrossEntropy(), FedAvg(), Local())
    flat.w.fill_(float("nan"))
    for s in range(3):
        step(*batch(s), {})
    assert step._graphs


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Counting, "changes an attribute"),
        (Remembering, "changes an attribute"),
        (Showing, "changes an attribute"),
        (Drawing, "draws random numbers"),
        (Deciding, "RuntimeError|Error"),
        (Hiding, "keeps a tensor"),
    ],
)
@pytest.mark.parametrize("how", ["exact", "fast"])
def test_what_is_not_the_same_every_time_stays_eager_and_says_why(kind, reason, how, traced) -> None:
    torch.manual_seed(0)
    model = kind(3072, 10)
    traced(10**9)
    eager = walk(model)
    traced(1)
    other = walk(model, step=how)
    assert not other.step._graphs
    assert other.step.note.startswith("the model's steps are not traced: ")
    assert any(word in other.step.note for word in reason.split("|"))
    assert torch.equal(eager.w, other.w)


def test_few_shapes_are_traced(traced) -> None:
    traced(0)
    flat = FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)))
    step = Step(flat, CrossEntropy(), FedAvg(), Local())
    for size in range(1, 30):
        step(*batch(0, size), {})
    assert len(step._graphs) == step_module.MOST_GRAPHS


def test_a_fast_step_is_as_near_to_eager_as_eager_is_to_itself_in_another_layout() -> None:
    torch.manual_seed(0)
    model = MODELS["lenet"]()
    exact, fast = walk(model, 40), walk(model, 40, step="fast")
    assert fast.step._graphs
    plain = copy.deepcopy(model)  # channels first
    for s in range(40):
        x, target = batch(s)
        plain.zero_grad()
        logits = plain(x.contiguous())
        F.cross_entropy(logits + LABELS.beta.log(), target).backward()
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter -= 0.05 * parameter.grad
    other = FlatModel(plain).w
    assert (exact.w - fast.w).norm() <= 2 * (exact.w - other).norm() + 1e-6


def test_a_fast_step_is_decided_by_the_shape_alone() -> None:
    flat = FlatModel(MODELS["lenet"]())
    step = Step(flat, CrossEntropy(), FedAvg(), Local(batch_size=16, step="fast"))
    step(*batch(0, 15), {})
    assert not step._graphs
    step(*batch(0, 16), {})
    assert len(step._graphs) == 1


def test_bfloat16_is_mixed_precision_of_the_same_step(traced) -> None:
    torch.manual_seed(0)
    model = MODELS["lenet"]()
    traced(10**9)
    full, half = walk(model, 2), walk(model, 2, precision="bfloat16")
    assert half.w.dtype == torch.float32
    assert not torch.equal(full.w, half.w)
    assert (full.w - half.w).norm() < 0.02 * full.w.norm()
    traced(0)
    assert torch.equal(walk(model, 2, precision="bfloat16").w, half.w)
