"""The base class of local optimisers: the arithmetic of one step on flat vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from fedrecall.core.vector import Tensors
from fedrecall.errors import InputError

MomentState = Literal["reset", "keep", "average"]


@dataclass(frozen=True)
class Optimiser:
    """Elementwise arithmetic on flat vectors; leading dimensions are allowed, one row per client.

    A subclass overrides `step`, and `init` if it keeps moments. `weight_decay` (and `momentum`, if the class has
    such a field) come from the recipe's section `local`.
    """

    recipe_section: ClassVar[str] = "local.optimiser"
    weight_decay: float = 0.0
    state: Annotated[
        MomentState,
        "the moments between rounds: reset (they start anew) | keep (at the client, until its next round) | average "
        "(by the server, weighted by samples)",
    ] = field(default="reset", kw_only=True)

    def init(self, w: Tensor) -> Tensors:
        """Return the moments before the first step, as tensors of the shape of `w` or [.., 1]."""
        return {}

    def decay(self, w: Tensor, g: Tensor) -> None:
        """Add the weight decay to the gradient, in place, before an algorithm corrects it."""
        if self.weight_decay:
            g.add_(w, alpha=self.weight_decay)

    def step(self, w: Tensor, g: Tensor, state: Tensors, lr: float) -> None:
        """Move `w` along the gradient `g`, in place."""
        raise NotImplementedError

    def moved(self, steps: int, lr: float, mu: float = 0.0) -> float:
        """Return |a|_1: `steps` along one constant gradient g move the model by -lr |a|_1 g.

        `mu` is the strength of a proximal term, which reduces the movement.
        """
        raise InputError(f"how far {type(self).__name__} moves a model does not follow from its steps alone")
