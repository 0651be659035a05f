"""The distillation terms: what is added to an objective, and nothing where there is nothing to learn."""

from __future__ import annotations

import pytest
import torch

from fedrecall import WSM, CrossEntropy, FedNTD, FedVLS
from fedrecall.objectives.distillation import distilled

torch.manual_seed(0)
LOGITS, TEACHER = 3 * torch.randn(6, 5).double(), 3 * torch.randn(6, 5).double()
TARGET = torch.tensor([0, 2, 2, 0, 3, 0])
COUNTS = [7, 0, 4, 1, 0]
ABSENT = [1, 4]

# Each is another objective plus a distillation.
DISTILLED = [
    (WSM(distill=0.8), WSM(), 0.8, "absent"),
    (WSM(tau=0.5, smoothing=0.1, distill=0.3), WSM(tau=0.5, smoothing=0.1), 0.3, "absent"),
    (FedVLS(lam=0.6, suppress=0.0), WSM(), 0.6, "absent"),
    (FedVLS(lam=0.6, suppress=0.2), FedVLS(lam=0.0, suppress=0.2), 0.6, "absent"),
    (FedNTD(beta=0.4), CrossEntropy(), 0.4, "not true"),
]


def kept(which: str, row: int) -> list[int]:
    return ABSENT if which == "absent" else [c for c in range(5) if c != TARGET[row]]


def kl(logits: torch.Tensor, over: str) -> torch.Tensor:
    """By torch's own function, sample by sample."""
    terms = [
        torch.nn.functional.kl_div(
            logits[i, kept(over, i)].log_softmax(0), TEACHER[i, kept(over, i)].softmax(0), reduction="sum"
        )
        for i in range(len(TARGET))
    ]
    return torch.stack(terms).mean()


@pytest.mark.parametrize(("whole", "rest", "weight", "over"), DISTILLED)
def test_the_weight_times_kl_is_added(answer, whole, rest, weight, over) -> None:
    logits = LOGITS.clone().requires_grad_()
    divergence = kl(logits, over)
    (pull,) = torch.autograd.grad(divergence, logits)
    value, gradient = answer(rest, COUNTS, LOGITS, TARGET, TEACHER)
    found, slope = answer(whole, COUNTS, LOGITS, TARGET, TEACHER)
    assert divergence > 0.1
    torch.testing.assert_close(found, value + weight * divergence.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(slope, gradient + weight * pull, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("whole", "rest", "weight", "over"), DISTILLED)
def test_a_teacher_that_says_the_same_teaches_nothing(answer, whole, rest, weight, over) -> None:
    value, gradient = answer(rest, COUNTS, LOGITS, TARGET, LOGITS)
    found, slope = answer(whole, COUNTS, LOGITS, TARGET, LOGITS)
    torch.testing.assert_close(found, value, rtol=0, atol=1e-14)
    torch.testing.assert_close(slope, gradient, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("whole", "rest", "weight", "over"), DISTILLED[:4])
def test_a_teacher_that_differs_in_the_clients_own_classes_teaches_nothing(answer, whole, rest, weight, over) -> None:
    teacher = LOGITS.clone()
    teacher[:, [0, 2, 3]] = TEACHER[:, [0, 2, 3]]
    teacher[:, ABSENT] += 4.0  # a softmax over the absent classes does not see a common shift
    expected = answer(rest, COUNTS, LOGITS, TARGET, teacher)
    for found, plain in zip(answer(whole, COUNTS, LOGITS, TARGET, teacher), expected):
        torch.testing.assert_close(found, plain, rtol=0, atol=1e-14)


def test_not_true_distillation_does_not_see_the_true_class(answer) -> None:
    teacher = TEACHER.clone()
    teacher[torch.arange(6), TARGET] += 100.0
    for found, other in zip(
        answer(FedNTD(), COUNTS, LOGITS, TARGET, teacher), answer(FedNTD(), COUNTS, LOGITS, TARGET, TEACHER)
    ):
        assert torch.equal(found, other)


def test_a_client_with_every_class_has_nothing_to_be_reminded_of(answer) -> None:
    everything = [3, 1, 4, 1, 5]
    plain = answer(WSM(), everything, LOGITS, TARGET)
    for found, expected in zip(answer(WSM(distill=5.0), everything, LOGITS, TARGET, TEACHER), plain):
        assert torch.equal(found, expected)


def test_one_absent_class_alone_teaches_nothing(answer) -> None:
    # A softmax over one class is 1 for any logit.
    counts = [3, 0, 4, 1, 5]
    plain = answer(WSM(), counts, LOGITS, TARGET)
    for found, expected in zip(answer(WSM(distill=5.0), counts, LOGITS, TARGET, TEACHER), plain):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_a_missing_teacher_is_an_error_not_a_zero() -> None:
    with pytest.raises(ValueError, match="needs the logits of a teacher"):
        distilled(LOGITS, None, torch.tensor([True] * 5))


@pytest.mark.parametrize(
    ("objective", "needs"),
    [
        (WSM(), set()),
        (WSM(smoothing=0.1), set()),
        (CrossEntropy(), set()),
        (WSM(distill=0.1), {"teacher"}),
        (FedNTD(), {"teacher"}),
        (FedVLS(), {"teacher"}),
    ],
)
def test_a_teacher_is_asked_for_by_those_that_distil(objective, needs) -> None:
    assert objective.needs == needs
