"""What an objective is: a loss of a client's logits that may know the client's label shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from fedrecall.labels import Labels
from fedrecall.options import Shares
from fedrecall.priors import FAR, portable_log, shares_of, shift, unevenness
from fedrecall.vector import Tensors

NOTHING: frozenset[str] = frozenset()
TEACHER = frozenset({"teacher"})
SHARES = frozenset({"shares"})


class Objective:
    """A pure function of logits and targets, to be minimised; it works under `torch.func.vmap`.

    `prepare` runs once per client and round and returns named tensors; `__call__` gets them at every step.
    The defaults hand over the label counts and shares, so a short objective overrides `__call__` alone.
    """

    recipe_section: ClassVar[str] = "objective"
    title: ClassVar[str | None] = None  # what it is called, if not as the class
    knows_labels: ClassVar[bool] = True  # False: nothing is prepared, and nobody counts a client's labels

    @property
    def needs(self) -> frozenset[str]:
        """{"teacher"}: `__call__` is given the logits of the model that the client was sent, in eval mode, on the
        same batch. They cost a forward pass, made only for objectives that say so."""
        return NOTHING

    @property
    def asks_population(self) -> frozenset[str]:
        """{"shares"}: `labels.pooled`, the class shares over all clients. It is a statistic that leaves the
        clients (a sum, of which secure aggregation can hide each client's part): where it is not known, they are
        asked for it, or the objective is refused."""
        return NOTHING

    prior_key: ClassVar[str] = "evaluation.prior"  # of a recipe: chooses the shares that its model is meant for

    @property
    def meant_for(self) -> str:
        """Whose class shares its model is meant for: "pooled", those of all clients; "uniform"; or "given"."""
        return "pooled"

    def log_prior(self, pooled: Tensor) -> Tensor:
        """The logarithm of these shares, up to a constant, where all clients together have the shares `pooled`."""
        return portable_log(pooled)

    def shift_to(self, prior: str | Shares, pooled: Tensor) -> Tensor:
        """What makes its model one for another prior, when it is added to the logits."""
        return shift(self.log_prior(pooled), shares_of(prior, pooled), pooled)

    def prepare(self, labels: Labels) -> Tensors:
        return {"beta": labels.beta, "counts": labels.counts}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def on(self, device: torch.device) -> Objective:
        """The same for logits on a device, if it holds tensors that must be there. What `prepare` returns is sent
        there by itself."""
        return self

    def check(self, num_classes: int) -> None:
        """An `InputError` if it cannot be minimised, where that can be seen before anything is trained."""

    remedy: ClassVar[str] = ""  # how to give such clients a gradient, as the end of a sentence

    @property
    def mute_on_one_class(self) -> bool:
        """Is the gradient zero at a client that has one class only?"""
        return False

    def note(self, one_class_clients: int, clients: int) -> str | None:
        """A sentence for the user about this objective on clients that have one class only, if one is needed."""
        if not one_class_clients or not self.mute_on_one_class:
            return None
        return (
            f"{one_class_clients} of {clients} clients have one class only: the gradient of "
            f"{type(self).__name__} is zero there, so they learn nothing{self.remedy}"
        )

    def note_on_prior(self, pooled: Tensor) -> Iterator[str]:
        """A sentence for the user, where its model is meant for equal class shares and the clients' are far from
        that."""
        if self.meant_for == "uniform" and unevenness(pooled) > FAR:
            yield (
                f"{type(self).__name__} is meant for equal class shares, but those of all clients are from "
                f"{float(pooled.min()):.1%} to {float(pooled.max()):.1%}: on such data it may be behind; "
                f"{self.prior_key}=pooled is meant for them"
            )


def in_full(logits: Tensor) -> Tensor:
    """At least float32, in which exponentials are safe."""
    return logits.float() if logits.dtype.itemsize < 4 else logits
