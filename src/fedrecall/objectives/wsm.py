"""The re-weighted softmax, which removes a client's absent classes from its loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from fedrecall.config.options import Prior, Rate, checked_prior
from fedrecall.core.class_sharing import ClassSharing
from fedrecall.core.labels import Labels
from fedrecall.core.losses import log_weights, quick_cross_entropy
from fedrecall.core.priors import check_length, portable_log
from fedrecall.core.vector import Tensors
from fedrecall.errors import InputError, short_repr
from fedrecall.objectives.base import NOTHING, SHARES, TEACHER, Objective
from fedrecall.objectives.distillation import distilled


@dataclass(frozen=True)
class WSM(Objective):
    """The re-weighted softmax: log sum_c r_c^tau exp(f_c) - f_y, r_c = ((1 - lam) beta_c + lam pi_c) / pi_c.

    Legate, Caccia and Belilovsky, "Re-Weighted Softmax Cross-Entropy to Control Forgetting in Federated Learning",
    2023, arXiv 2304.05260.

    beta is the share of each class in the client's training labels, pi its share where the model will be used. The
    paper has a uniform pi, so that r_c is beta_c up to a factor. lam = 1 is plain cross-entropy (docs/prior.md).
    """

    prior_key: ClassVar[str] = "objective.prior"
    remedy: ClassVar[str] = " (objective.smoothing above 0 gives a gradient)"

    tau: Annotated[float, "strength of the re-weighting; 0 is plain cross-entropy"] = 1.0
    smoothing: Annotated[float, "lam: the share of the prior mixed into beta"] = 0.0
    distill: Annotated[Rate, "weight of KL(global || local) over the classes that the client lacks"] = 0.0
    prior: Annotated[
        Prior,
        "pi, the class shares that the model is meant for: uniform | pooled (of all clients together) | a list",
    ] = "uniform"

    def __post_init__(self) -> None:
        if not self.tau >= 0:
            raise InputError(f"objective.tau is {self.tau}; a number of at least 0 was expected")
        if not 0 <= self.smoothing <= 1:
            raise InputError(f"objective.smoothing is {self.smoothing}; a number from 0 to 1 was expected")
        try:
            object.__setattr__(self, "prior", checked_prior(self.prior))
        except ValueError as error:
            raise InputError(f"objective.prior is {short_repr(self.prior)}; {error}") from None
        if not all(self.prior):  # a class with prior 0 never occurs
            raise InputError(f"objective.prior is {short_repr(self.prior)}; shares above 0 were expected")

    @property
    def asks_population(self) -> frozenset[str]:
        return SHARES if self.prior == "pooled" and self.tau else NOTHING

    @property
    def meant_for(self) -> str:
        if self.tau == 0 or self.smoothing == 1:
            return "pooled"
        return self.prior if isinstance(self.prior, str) else "given"

    def log_prior(self, pooled: Tensor) -> Tensor:
        """Exact for tau 1 and lam 0 if clients differ in their labels alone, and for any tau and lam if they are
        alike: a client with the shares `pooled` teaches p(x | c) pooled_c / r_c^tau."""
        return portable_log(pooled) - self._log_weights(pooled, pooled)

    def check(self, num_classes: int) -> None:
        check_length("objective.prior", self.prior, num_classes)

    @property
    def needs(self) -> frozenset[str]:
        return TEACHER if self.distill else NOTHING

    def _log_weights(self, beta: Tensor, pooled: Tensor | None) -> Tensor:
        if self.prior == "uniform" or not self.tau:
            return log_weights(beta, self.tau, self.smoothing)
        if self.prior == "pooled":
            assert pooled is not None
            return log_weights(beta, self.tau, self.smoothing, pooled)
        return log_weights(beta, self.tau, self.smoothing, self.prior)

    def prepare(self, labels: Labels) -> Tensors:
        log_weight = self._log_weights(labels.beta, labels.pooled)
        return {"log_weight": log_weight, "minus_log_weight": -log_weight, "absent": labels.counts == 0}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        # beta comes from the training labels themselves, so each of them has a weight above zero
        loss = quick_cross_entropy(logits, target, client["log_weight"], client["minus_log_weight"])
        if not self.distill:
            return loss
        return loss + self.distill * distilled(logits, teacher, client["absent"])

    @property
    def mute_on_one_class(self) -> bool:
        # Distillation does not help: it starts at the teacher, where its gradient is also zero.
        return self.tau > 0 and not self.smoothing

    def note_on_sharing(self, sharing: ClassSharing, clients: int) -> Iterator[str]:
        reason = sharing.too_little(clients)
        if not reason or not self.mute_on_one_class or self.distill:
            return
        # Without any pair in common, cross-entropy was ahead of WSM at every smoothing (docs/when-wsm-hurts.md).
        alone = sharing.clients_per_pair == 0
        remedy = "objective=cross_entropy" if alone else "objective.smoothing=0.03"
        yield (
            f"{reason}, and WSM without smoothing learns to tell two classes apart only from clients that have "
            f"both: it may be far behind here; {remedy} was better on such clients (docs/when-wsm-hurts.md)"
        )
