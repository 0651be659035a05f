"""Adapter that makes an objective of a user's loss function or of a loss of `torch.nn`."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedrecall.config.components import PlainFunction
from fedrecall.core.labels import Labels
from fedrecall.core.vector import Tensors
from fedrecall.errors import InputError
from fedrecall.objectives.base import Objective, in_full
from fedrecall.user_code import has_their_lines


@dataclass(frozen=True, eq=False)
class LossFunction(PlainFunction, Objective):
    """A loss that is called with logits [n, C], labels [n] and its options."""

    arguments: ClassVar[tuple[str, ...]] = ("logits", "target")
    knows_labels: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.function, nn.Module) and any(p.requires_grad for p in self.function.parameters()):
            raise InputError(
                f"objective is {self.name}, which has parameters of its own, and nothing trains these; a loss "
                "without parameters was expected"
            )

    def prepare(self, labels: Labels) -> Tensors:
        return {}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        loss: Tensor = self.function(in_full(logits), target, **self.options)
        return loss

    def on(self, device: torch.device) -> LossFunction:
        if device.type == "cpu" or not isinstance(self.function, nn.Module):
            return self
        return replace(self, function=copy.deepcopy(self.function).to(device))  # the user's stays in place

    def check(self, num_classes: int) -> None:
        """Call the loss once with dummy logits. Errors in the user's own code are left for training to raise."""
        target = torch.arange(2) % num_classes
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            try:
                loss: Any = self(torch.zeros(2, num_classes, requires_grad=True), target, {})
            except Exception as error:
                if has_their_lines(error):
                    return
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                raise InputError(
                    f"objective is {self.name}, which fails on logits of shape (2, {num_classes}) and 2 labels: "
                    f"{reason}"
                ) from None
        if not isinstance(loss, Tensor):
            found = f"a {type(loss).__name__}"
        elif loss.dim():
            found = f"a tensor of shape {tuple(loss.shape)}"
        elif not loss.requires_grad:
            found = "a number without a gradient"
        else:
            return
        raise InputError(
            f"objective is {self.name}, which returned {found}; the loss of the batch as one number was expected, "
            "as with reduction='mean'"
        )
