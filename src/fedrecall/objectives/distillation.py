"""The distillation term that several objectives share."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrecall.objectives.base import in_full

# The logit that excludes a class from a softmax. Finite, so that a softmax without any class is not NaN.
OUT = -1e30


def distilled(logits: Tensor, teacher: Tensor | None, classes: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the batch mean of KL(teacher || student) of softmaxes over `classes` alone; 0 if there are none.

    `classes` is a mask that broadcasts to the logits.

    >>> student, teacher = torch.tensor([[9.0, 0.0, 1.0]]), torch.tensor([[-5.0, 1.0, 2.0]])
    >>> distilled(student, teacher, torch.tensor([False, True, True]))    # both differ by 1 there
    tensor(0.)
    """
    if teacher is None:
        raise ValueError("this objective needs the logits of a teacher")
    student_log, teacher_log = (
        torch.where(classes, in_full(scores) / temperature, OUT).log_softmax(1) for scores in (logits, teacher)
    )
    terms = torch.where(classes, teacher_log.exp() * (teacher_log - student_log), 0.0)
    return terms.sum(1).mean()
