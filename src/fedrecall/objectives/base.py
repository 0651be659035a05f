"""What an objective is: a loss of a client's logits that may know the client's label shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedrecall.vector import Tensors


@dataclass(frozen=True)
class Labels:
    """What a client knows of its own training labels."""

    counts: Tensor  # [C] int64: samples of each class
    beta: Tensor  # [C] float32: their shares


class Objective:
    """A pure function of logits and targets, to be minimised; it works under `torch.func.vmap`.

    `prepare` runs once per client and round and returns named tensors; `__call__` gets them at every step.
    The defaults hand over the label counts and shares, so a short objective overrides `__call__` alone.
    """

    # "teacher": __call__ is given the logits of the global model, as it was sent, on the same batch
    needs: ClassVar[frozenset[str]] = frozenset()

    def prepare(self, labels: Labels) -> Tensors:
        return {"beta": labels.beta, "counts": labels.counts}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def note(self, one_class_clients: int, clients: int) -> str | None:
        """What a user should know about this objective on clients that have one class only."""
        return None
