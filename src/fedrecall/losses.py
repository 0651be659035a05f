"""The re-weighted softmax (WSM): cross-entropy whose normaliser knows which labels a client holds.

    L(f, y) = log sum_c beta_c^tau exp(f_c) - f_y

`beta` is the share of each class in one client's training labels: never of a batch, never used to evaluate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrecall.errors import InputError

ArrayLike = Tensor | npt.NDArray[Any] | Sequence[Any]


def class_proportions(labels: ArrayLike, num_classes: int, ignore_index: int = -100) -> Tensor:
    """The share of each class in `labels` (any shape), as float32; ignored labels are left out.

    >>> class_proportions([0, 0, 2, -100], num_classes=4)
    tensor([0.6667, 0.0000, 0.3333, 0.0000])
    """
    values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.size and not np.issubdtype(values.dtype, np.integer):
        raise InputError(f"Labels must be integers, not {values.dtype} such as {values.flat[0]}.")
    kept = values[values != ignore_index].astype(np.int64)
    if not kept.size:
        raise InputError(f"There is no label to count: got {values.size} labels, all of them ignored.")
    outside = kept[(kept < 0) | (kept >= num_classes)]
    if outside.size:
        raise InputError(f"Label {outside[0]} is out of range: {num_classes} classes are 0 to {num_classes - 1}.")
    shares = torch.from_numpy(np.bincount(kept, minlength=num_classes) / kept.size).float()
    return shares.to(labels.device) if isinstance(labels, Tensor) else shares


def log_weights(beta: ArrayLike, tau: float = 1.0, smoothing: float = 0.0) -> Tensor:
    """`tau * log((1 - smoothing) beta + smoothing / C)`, and -inf where that weight is zero.

    In float32, or in float64 if beta is. With `tau = 0` every weight is one, absent classes included: that is
    plain cross-entropy by definition, although `tau -> 0+` would mask the absent classes, so the family jumps there.

    >>> log_weights([0.5, 0.0, 0.5])
    tensor([-0.6931,    -inf, -0.6931])
    """
    beta = torch.as_tensor(beta)
    shares = beta if beta.dtype is torch.float64 else beta.float()
    if tau == 0:  # 0 * log 0 would be NaN
        return torch.zeros_like(shares)
    return tau * torch.log((1 - smoothing) * shares + smoothing / shares.shape[-1])


def reweighted_cross_entropy(
    logits: Tensor,
    target: Tensor,
    beta: ArrayLike,
    tau: float = 1.0,
    *,
    smoothing: float = 0.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`F.cross_entropy` with the normaliser weighted by `beta`; takes the shapes and targets that it takes.

    Unlike torch, a mean over no label at all (each one ignored) is 0. Label smoothing spreads its mass over the
    classes of weight above zero. The value is float32 at least, whatever the logits. Nothing is checked that
    depends on the data: see `check_beta`, `check_targets` and `WSMLoss`.

    >>> logits = torch.tensor([[2.0, 1.0, 9.0]])
    >>> reweighted_cross_entropy(logits, torch.tensor([0]), beta=torch.tensor([0.5, 0.5, 0.0]))
    tensor(-0.3799)
    """
    _check_settings(tau, smoothing, label_smoothing, reduction)
    beta = torch.as_tensor(beta, device=logits.device)
    if logits.dtype is torch.float64:
        beta = beta.double()
    return reweighted_cross_entropy_from_logs(
        logits,
        target,
        log_weights(beta, tau, smoothing),
        weight=weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def reweighted_cross_entropy_from_logs(
    logits: Tensor,
    target: Tensor,
    log_weight: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    checked: bool = False,
) -> Tensor:
    """`reweighted_cross_entropy` with the result of `log_weights`, which is computed once per client.

    `checked=True` promises that a label counts (not all are ignored) and that each has a weight above zero.
    Class-index targets then cost little more than in `F.cross_entropy`; a broken promise gives NaN.

    >>> logits, target = torch.tensor([[2.0, 1.0, 9.0]]), torch.tensor([0])
    >>> reweighted_cross_entropy_from_logs(logits, target, log_weights([0.5, 0.5, 0.0]), checked=True)
    tensor(-0.3799)
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    if log_weight.dtype is not logits.dtype:
        log_weight = log_weight.to(logits.dtype)
    if weight is not None:
        weight = weight.to(logits.dtype)
    if checked and not label_smoothing and not target.is_floating_point():
        scores = _quick_scores(logits, log_weight)
        return F.nll_loss(scores, target, weight, ignore_index=ignore_index, reduction=reduction)
    losses, total = _losses(logits, target, log_weight, weight, ignore_index, label_smoothing)
    if reduction == "mean":
        # With no label left the sum is 0 already, and any divisor but 0 will do.
        return losses.sum() / torch.where(total == 0, 1.0, total)
    return losses.sum() if reduction == "sum" else losses


def _class_dim(logits: Tensor) -> int:
    return 0 if logits.dim() == 1 else 1


def _along_classes(vector: Tensor, logits: Tensor) -> Tensor:
    """A vector over the classes, shaped to broadcast over (C,), (N, C) or (N, C, d1, ..)."""
    return vector if logits.dim() < 3 else vector.view(-1, *[1] * (logits.dim() - 2))


def _scores(logits: Tensor, log_weight: Tensor) -> Tensor:
    """`f_c - log sum_k w_k exp(f_k)`: minus the loss of every class c, finite where the weight is zero too."""
    shifted = logits + _along_classes(log_weight, logits)
    return logits - shifted.logsumexp(_class_dim(logits), keepdim=True)


def _quick_scores(logits: Tensor, log_weight: Tensor) -> Tensor:
    """`_scores` in half the operations, but NaN where the weight is zero."""
    shift = _along_classes(log_weight, logits)
    log_p = (logits + shift).log_softmax(_class_dim(logits))
    # To add twice, not add and subtract, keeps one kernel in the cache: 2 % of a small step.
    return torch.add(log_p, shift, alpha=-1)


def _losses(
    logits: Tensor, target: Tensor, log_weight: Tensor, weight: Tensor | None, ignore_index: int, eps: float
) -> tuple[Tensor, Tensor]:
    """The loss of each position, and what their mean divides by; `eps` is the label smoothing."""
    scores = _scores(logits, log_weight)
    weighted = scores if weight is None else scores * _along_classes(weight, logits)
    if target.is_floating_point():
        if ignore_index >= 0:
            raise InputError(f"ignore_index = {ignore_index} has no meaning for class-probability targets.")
        losses = -(weighted * target.to(logits.dtype)).sum(_class_dim(logits))
        kept = counted = torch.ones_like(losses)
    else:
        losses = F.nll_loss(scores, target, weight, ignore_index=ignore_index, reduction="none")
        kept = (target != ignore_index).to(logits.dtype)
        counted = kept if weight is None else kept * weight[torch.where(kept > 0, target, 0)]
    if eps:
        present = (log_weight > -math.inf).to(logits.dtype)
        even = _along_classes(present / present.sum(), logits)
        losses = (1 - eps) * losses - eps * kept * (weighted * even).sum(_class_dim(logits))
    return losses, counted.sum()


def _check_settings(tau: float, smoothing: float, label_smoothing: float, reduction: str) -> None:
    if not (math.isfinite(tau) and tau >= 0):
        raise InputError(f"tau must be a finite number of at least 0, not {tau}.")
    for name, share in (("smoothing", smoothing), ("label_smoothing", label_smoothing)):
        if not 0 <= share <= 1:
            raise InputError(f"{name} must lie between 0 and 1, not {share}.")
    if reduction not in ("mean", "sum", "none"):
        raise InputError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}.")


def check_beta(beta: ArrayLike, num_classes: int | None = None) -> Tensor:
    """`beta` as a tensor, or `InputError` if it cannot weigh the classes.

    It need not sum to one: a common factor moves the loss by a constant and leaves the gradient as it is
    (smoothing, which adds `lam / C`, does mean shares).

    >>> check_beta([0.5, -0.5])
    Traceback (most recent call last):
    fedrecall.errors.InputError: beta must not be negative: class 1 has -0.5.
    """
    beta = torch.as_tensor(beta)
    if beta.dim() != 1 or not beta.numel():
        raise InputError(f"beta must have one entry per class, not the shape {tuple(beta.shape)}.")
    if num_classes is not None and len(beta) != num_classes:
        raise InputError(f"beta has {len(beta)} entries, but there are {num_classes} classes.")
    for fault, bad in (("be finite", ~beta.isfinite()), ("not be negative", beta < 0)):
        if bad.any():
            c = int(bad.nonzero()[0])
            raise InputError(f"beta must {fault}: class {c} has {beta[c].item():g}.")
    if not beta.any():
        raise InputError(f"beta is zero for all {len(beta)} classes: the client has no labels.")
    return beta


def check_targets(target: Tensor, beta: ArrayLike, ignore_index: int = -100, *, smoothing: float = 0.0) -> None:
    """`InputError` naming the first label that is out of range or has `beta_y = 0`; soft targets too.

    With smoothing above zero no class is absent, and only the range is checked.

    >>> check_targets(torch.tensor([0, 2]), beta=[0.5, 0.5, 0.0])
    Traceback (most recent call last):
    fedrecall.errors.InputError: Label 2 has beta = 0: the client's shares count no sample of that class.
    """
    beta = torch.as_tensor(beta, device=target.device)
    present = (beta > 0) | (smoothing > 0)
    if target.is_floating_point():
        classes = target.movedim(0 if target.dim() == 1 else 1, -1)
        if classes.shape[-1] != len(beta):
            raise InputError(f"The target has {classes.shape[-1]} classes, but beta has {len(beta)} entries.")
        labels = classes.reshape(-1, len(beta)).nonzero()[:, 1]
    else:
        labels = target[target != ignore_index].long()
    outside = labels[(labels < 0) | (labels >= len(beta))]
    if len(outside):
        raise InputError(f"Label {int(outside[0])} is out of range: beta has {len(beta)} entries.")
    absent = labels[~present[labels]]
    if len(absent):
        raise InputError(
            f"Label {int(absent[0])} has beta = 0: the client's shares count no sample of that class."
        )


class WSMLoss(nn.Module):
    """`reweighted_cross_entropy` as a module that holds the `beta` of one client.

    `validate` checks the labels of the first batch (None), of every batch (True), or of none (False: it then
    never branches on a value, as tracing and `vmap` need).

    >>> loss = WSMLoss(class_proportions([0, 0, 0, 1], num_classes=3))
    >>> loss(torch.zeros(2, 3), torch.tensor([0, 2]))
    Traceback (most recent call last):
    fedrecall.errors.InputError: Label 2 has beta = 0: the client's shares count no sample of that class.
    >>> loss(torch.tensor([[2.0, 1.0, 9.0]]), torch.tensor([0]))
    tensor(-0.1719)
    """

    log_weight: Tensor
    weight: Tensor | None

    def __init__(
        self,
        beta: ArrayLike,
        tau: float = 1.0,
        *,
        smoothing: float = 0.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        validate: bool | None = None,
    ) -> None:
        super().__init__()
        _check_settings(tau, smoothing, label_smoothing, reduction)
        beta = check_beta(beta)
        # Beside the buffer, because .half() rounds that, and some devices have no float64.
        self._exact = log_weights(beta.detach().cpu().double(), tau, smoothing)
        self.register_buffer("log_weight", self._exact.float().to(beta.device), persistent=False)
        self.register_buffer("weight", weight, persistent=False)
        self.tau, self.smoothing, self.validate = tau, smoothing, validate
        self.options: dict[str, Any] = {
            "ignore_index": ignore_index,
            "reduction": reduction,
            "label_smoothing": label_smoothing,
        }
        self._to_check = validate is not False
        self._may_look = validate is not False and reduction != "none"

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        if self._to_check:
            check_targets(target, self._exact > -math.inf, self.options["ignore_index"])
            self._to_check = bool(self.validate)
        log_weight = self.log_weight
        if logits.dtype is torch.float64 or log_weight.dtype is not torch.float32:
            log_weight = self._exact.to(logits.device)
        if self._may_look and logits.is_cpu and not torch.compiler.is_compiling():
            loss = reweighted_cross_entropy_from_logs(
                logits, target, log_weight, weight=self.weight, checked=True, **self.options
            )
            if not math.isnan(loss.item()):
                return loss
            # All labels ignored, or one of weight zero: the whole formula has a value for both.
        return reweighted_cross_entropy_from_logs(logits, target, log_weight, weight=self.weight, **self.options)

    def extra_repr(self) -> str:
        shown = {"tau": self.tau, "smoothing": self.smoothing, **self.options, "validate": self.validate}
        return ", ".join([f"classes={len(self._exact)}", *(f"{k}={v!r}" for k, v in shown.items())])
