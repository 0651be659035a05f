"""Base class of the objectives: losses of a client's logits that may use the client's label shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from fedrecall.config.options import Shares
from fedrecall.core.class_sharing import ClassSharing
from fedrecall.core.labels import Labels
from fedrecall.core.priors import FAR, portable_log, shares_of, shift, unevenness
from fedrecall.core.vector import Tensors
from fedrecall.display import count_of

NOTHING: frozenset[str] = frozenset()
TEACHER = frozenset({"teacher"})
FEATURES = frozenset({"features"})
SHARES = frozenset({"shares"})


class Objective:
    """A pure function of logits and targets, to be minimised; it works under `torch.func.vmap`.

    `prepare` runs once per client and round and returns named tensors, which `__call__` gets at every step. By
    default these are the label counts and shares, so a short objective overrides `__call__` alone.
    """

    recipe_section: ClassVar[str] = "objective"
    title: ClassVar[str | None] = None  # the display name; None: the class name
    knows_labels: ClassVar[bool] = True  # False: labels are not counted, and nothing is prepared from them

    @property
    def needs(self) -> frozenset[str]:
        """Return {"teacher"} to give `__call__` the broadcast model's logits of the same batch, in eval mode, which
        cost a forward pass, and {"features"} to add `regulariser` of the batch's features."""
        return NOTHING

    @property
    def asks_population(self) -> frozenset[str]:
        """Return {"shares"} to request `labels.pooled`, the class shares over all clients. Clients disclose them
        as a sum, in which secure aggregation can hide each client's part. Unknown shares are requested from the
        clients, or the objective is refused."""
        return NOTHING

    prior_key: ClassVar[str] = "evaluation.prior"  # the recipe key that chooses what the model is meant for

    @property
    def meant_for(self) -> str:
        """Return the class shares that the model is meant for: "pooled" (of all clients), "uniform" or "given"."""
        return "pooled"

    def log_prior(self, pooled: Tensor) -> Tensor:
        """Return the logarithm of these shares, up to a constant; `pooled` are those of all clients together."""
        return portable_log(pooled)

    def shift_to(self, prior: str | Shares, pooled: Tensor) -> Tensor:
        """Return the tensor that, added to the logits, adapts the trained model to another prior."""
        return shift(self.log_prior(pooled), shares_of(prior, pooled), pooled)

    def prepare(self, labels: Labels) -> Tensors:
        return {"beta": labels.beta, "counts": labels.counts}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def regulariser(self, features: Tensor) -> Tensor:
        """Return the term added to the loss if `needs` names "features": [samples, features], the input of the last
        layer."""
        raise NotImplementedError

    def on(self, device: torch.device) -> Objective:
        """Return the objective with its own tensors on a device. The caller moves the results of `prepare`."""
        return self

    def check(self, num_classes: int) -> None:
        """Raise an `InputError` if the objective cannot be minimised, as far as that is known before training."""

    remedy: ClassVar[str] = ""  # the end of the sentence in `note`: how to give single-class clients a gradient

    @property
    def mute_on_one_class(self) -> bool:
        """Whether single-class clients receive a zero gradient."""
        return False

    def note(self, one_class_clients: int, clients: int) -> str | None:
        """Return a note for the user if single-class clients receive a zero gradient, else None."""
        if not one_class_clients or not self.mute_on_one_class:
            return None
        return (
            f"{one_class_clients} of {count_of(clients, 'client')} {'has' if one_class_clients == 1 else 'have'} one "
            f"class only: the gradient of {type(self).__name__} is zero there, so "
            f"{'it learns' if one_class_clients == 1 else 'they learn'} nothing{self.remedy}"
        )

    def note_on_sharing(self, sharing: ClassSharing, clients: int) -> Iterator[str]:
        """Yield a note for the user if the clients' classes overlap too little for this objective."""
        yield from ()

    def note_on_prior(self, pooled: Tensor) -> Iterator[str]:
        """Yield a note for the user if the model is meant for uniform class shares and the clients' are uneven."""
        if self.meant_for == "uniform" and unevenness(pooled) > FAR:
            yield (
                f"{type(self).__name__} is meant for equal class shares, but those of all clients are from "
                f"{float(pooled.min()):.1%} to {float(pooled.max()):.1%}: on such data it may be behind; "
                f"{self.prior_key}=pooled is meant for them"
            )


def in_full(logits: Tensor) -> Tensor:
    """Return the logits in at least float32, in which exponentials are safe."""
    return logits.float() if logits.dtype.itemsize < 4 else logits
