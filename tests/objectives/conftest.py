"""What the tests of the objectives share: the objectives, and one call that gives value and gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrecall import WSM, CrossEntropy, FedDecorr, FedLC, FedLMD, FedNTD, FedRS, FedVLS, Labels, Mask, Objective

# Every objective with its defaults, and those whose options change its kind.
EVERY = {
    "cross_entropy": CrossEntropy(),
    "wsm": WSM(),
    "wsm smoothed": WSM(smoothing=0.003),
    "wsm distilled": WSM(distill=0.1),
    "wsm smoothed and distilled": WSM(tau=0.7, smoothing=0.1, distill=0.5),
    "wsm pooled": WSM(prior="pooled", smoothing=0.003),
    "mask": Mask(),
    "fedrs": FedRS(),
    "fedlc": FedLC(),
    "fedntd": FedNTD(),
    "fedntd warm": FedNTD(beta=0.3, temperature=2.0),
    "fedlmd": FedLMD(),
    "fedlmd without a teacher": FedLMD(teacher="uniform"),
    "feddecorr": FedDecorr(),
    "fedvls": FedVLS(),
    "fedvls strong": FedVLS(lam=0.7, suppress=0.4),
}


@pytest.fixture(params=list(EVERY.values()), ids=list(EVERY))
def objective(request: pytest.FixtureRequest) -> Objective:
    return request.param


def labels_of(counts: Sequence[int]) -> Labels:
    """What a client with this many samples of each class knows of them."""
    there = np.array(counts, dtype=np.int64)
    everyone = there + np.arange(1, len(there) + 1)  # what others add
    pooled = torch.from_numpy(everyone / everyone.sum())
    return Labels(torch.from_numpy(there), torch.from_numpy((there / there.sum()).astype(np.float32)), pooled)


@pytest.fixture(scope="session")
def labels() -> Callable[[Sequence[int]], Labels]:
    return labels_of


Answer = Callable[..., tuple[Tensor, Tensor]]


@pytest.fixture(scope="session")
def answer() -> Answer:
    """Value and gradient of an objective at a client with these label counts."""

    def value_and_gradient(objective: Objective, counts, logits, target, teacher=None) -> tuple[Tensor, Tensor]:
        logits = torch.as_tensor(logits).clone().requires_grad_()
        told = None
        if "teacher" in objective.needs:
            told = torch.as_tensor(logits.detach() if teacher is None else teacher)
        value = objective(logits, torch.as_tensor(target), objective.prepare(labels_of(counts)), told)
        (gradient,) = torch.autograd.grad(value, logits)
        return value.detach(), gradient

    return value_and_gradient


@pytest.fixture(scope="session")
def every() -> dict[str, Objective]:
    return EVERY
