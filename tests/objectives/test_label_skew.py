"""What label skew does to each objective: absent classes, one class only, extreme logits, mapped clients."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.func import grad_and_value, vmap

from fedrecall import WSM, CrossEntropy, FedLC, FedNTD, FedRS, FedVLS, Mask, Objective
from fedrecall.objectives import OBJECTIVES

COUNTS = [7, 0, 4, 1, 0]
ABSENT = [1, 4]
ONE_CLASS = [0, 0, 9, 0, 0]
EVERY_CLASS = [3, 1, 4, 1, 5]
TARGET = torch.tensor([0, 2, 2, 0, 3, 0])
ALL_OF_CLASS_2 = torch.full((6,), 2)


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def extreme(seed: int) -> torch.Tensor:
    """Logits of +-1e4, of which neither e^f nor a difference of squares fits into float32."""
    return 1e4 * torch.randn(6, 5, generator=torch.Generator().manual_seed(seed)).sign()


def test_every_listed_objective_is_tried(every) -> None:
    assert {type(objective) for objective in every.values()} == set(OBJECTIVES.values())


CLIENTS = {
    "some classes": (COUNTS, TARGET),
    "every class": (EVERY_CLASS, TARGET),
    "one class": (ONE_CLASS, ALL_OF_CLASS_2),
    "a batch of one class": (COUNTS, ALL_OF_CLASS_2),
    "a rare class": ([1, 0, 10**6, 10**6, 0], TARGET),
}
BATCHES = {
    "ordinary": (drawn(0, 6, 5), drawn(1, 6, 5)),
    "extreme": (extreme(0), extreme(1)),
    "extreme student": (extreme(0), drawn(1, 6, 5)),
    "extreme teacher": (drawn(0, 6, 5), extreme(1)),
    "all equal": (torch.full((6, 5), -1e4), torch.full((6, 5), 1e4)),
}


@pytest.mark.parametrize(("counts", "target"), CLIENTS.values(), ids=CLIENTS)
def test_value_and_gradient_are_finite(answer, objective, counts, target) -> None:
    for dtype, (what, (logits, teacher)) in product([torch.float32, torch.bfloat16, torch.float16], BATCHES.items()):
        value, gradient = answer(objective, counts, logits.to(dtype), target, teacher.to(dtype))
        assert value.isfinite(), (what, dtype)
        assert gradient.isfinite().all(), (what, dtype)
        # A mean over 6 samples pulls no logit by more than 1/6 per term, FedVLS's suppression by its weight.
        assert gradient.abs().max() <= 0.7, (what, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("counts", "target"), CLIENTS.values(), ids=CLIENTS)
def test_half_precision_is_float32_of_the_same_logits(answer, objective, counts, target, dtype) -> None:
    logits, teacher = drawn(0, 6, 5).to(dtype), drawn(1, 6, 5).to(dtype)
    value, gradient = answer(objective, counts, logits, target, teacher)
    expected, slope = answer(objective, counts, logits.float(), target, teacher.float())
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)
    assert gradient.dtype == dtype
    # The gradients of an objective's terms are rounded to the logits' precision before they are added.
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(gradient.float(), slope, rtol=2 * eps, atol=eps / 6)


@pytest.mark.parametrize("batch", ["ordinary", "extreme"])
@pytest.mark.parametrize("objective", [WSM(), WSM(tau=0.3), Mask(), FedLC(), FedLC(tau=0.1)], ids=repr)
def test_absent_logits_get_exactly_no_gradient(answer, objective, batch) -> None:
    _, gradient = answer(objective, COUNTS, BATCHES[batch][0], TARGET)
    assert (gradient[:, ABSENT] == 0).all()
    assert (gradient[:, [0, 2, 3]] != 0).any()


@pytest.mark.parametrize(
    "objective", [CrossEntropy(), WSM(smoothing=0.003), WSM(distill=0.1), FedRS(), FedNTD(), FedVLS()], ids=repr
)
def test_the_others_move_absent_logits(answer, objective) -> None:
    _, gradient = answer(objective, COUNTS, *(BATCHES["ordinary"][0], TARGET, BATCHES["ordinary"][1]))
    assert (gradient[:, ABSENT] != 0).all()


@pytest.mark.parametrize("logits", [drawn(0, 6, 5), extreme(0)], ids=["ordinary", "extreme"])
@pytest.mark.parametrize("objective", [WSM(), WSM(tau=0.3), Mask(), FedLC()], ids=repr)
def test_a_client_of_one_class_gets_exactly_no_gradient(answer, objective, logits) -> None:
    _, gradient = answer(objective, ONE_CLASS, logits, ALL_OF_CLASS_2)
    assert (gradient == 0).all()


@pytest.mark.parametrize(
    "objective",
    [CrossEntropy(), WSM(smoothing=0.003), WSM(tau=0.0), FedRS(), FedLC(tau=0.0), FedNTD(), FedVLS()],
    ids=repr,
)
def test_a_client_of_one_class_learns_with_the_others(answer, objective) -> None:
    """FedVLS from a teacher that differs: its suppression has no term at a client that has one class."""
    _, gradient = answer(objective, ONE_CLASS, drawn(0, 6, 5), ALL_OF_CLASS_2, drawn(1, 6, 5))
    assert gradient.abs().max() > 1e-4


SAID_OF = [
    *(kind() for kind in OBJECTIVES.values()),
    *(WSM(tau=tau, smoothing=lam, distill=d) for tau, lam, d in product([0.0, 0.5], [0.0, 0.01], [0.0, 0.1])),
    FedLC(tau=0.0),
    FedRS(alpha=0.0),
    FedRS(alpha=1.0),
    FedNTD(beta=0.0),
    FedVLS(lam=0.0),
    FedVLS(suppress=0.0),
    FedVLS(lam=0.0, suppress=0.0),
]


@pytest.mark.parametrize("objective", SAID_OF, ids=repr)
def test_a_note_is_made_of_one_class_clients_exactly_where_they_get_no_gradient(answer, objective) -> None:
    # The client starts at the model that it was sent, which is its teacher: the two give the same logits.
    logits = drawn(0, 6, 5)
    _, gradient = answer(objective, ONE_CLASS, logits, ALL_OF_CLASS_2, logits)
    learns_nothing = bool((gradient.abs() < 1e-8).all())
    note = objective.note(3, 20)
    assert (note is not None) == learns_nothing
    if note:
        assert note.startswith("3 of 20 clients have one class only")
        assert type(objective).__name__ in note


def test_no_note_is_made_where_all_clients_have_several_classes(objective) -> None:
    assert objective.note(0, 20) is None


def test_one_client_is_in_the_singular() -> None:
    note = WSM().note(1, 20)
    assert note is not None
    assert note.startswith("1 of 20 clients has one class only")
    assert "so it learns nothing" in note


def test_mapped_over_clients_it_is_the_loop_over_clients(objective: Objective, labels) -> None:
    # A client with some classes, one with one class, and one with all of them.
    prepared = [objective.prepare(labels(counts)) for counts in (COUNTS, ONE_CLASS, EVERY_CLASS)]
    targets = torch.stack([TARGET, ALL_OF_CLASS_2, torch.tensor([4, 1, 2, 0, 3, 4])])
    logits, teacher = drawn(0, 3, 6, 5), drawn(1, 3, 6, 5)
    told = "teacher" in objective.needs

    def loss(logits, target, client, teacher):
        return objective(logits, target, client, teacher if told else None)

    stacked = {name: torch.stack([client[name] for client in prepared]) for name in prepared[0]}
    gradients, values = vmap(grad_and_value(loss))(logits, targets, stacked, teacher)
    for i, client in enumerate(prepared):
        gradient, value = grad_and_value(loss)(logits[i], targets[i], client, teacher[i])
        torch.testing.assert_close(values[i], value, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(gradients[i], gradient, rtol=1e-5, atol=1e-7)
    assert gradients.isfinite().all()
