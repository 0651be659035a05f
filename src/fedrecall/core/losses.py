"""The re-weighted softmax (WSM): cross-entropy whose normaliser is weighted by the client's class shares.

    L(f, y) = log sum_c beta_c^tau exp(f_c) - f_y

`beta` is the share of each class in all of one client's training labels, not in a batch; evaluation does not use
it. For target class shares pi other than uniform, the weights are (beta_c / pi_c)^tau (docs/prior.md).
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrecall.core.labels import ArrayLike
from fedrecall.core.priors import portable_log
from fedrecall.errors import InputError


def log_weights(beta: ArrayLike, tau: float = 1.0, smoothing: float = 0.0, prior: ArrayLike | None = None) -> Tensor:
    """Return `tau * log((1 - smoothing) beta + smoothing / C)`, -inf where that weight is zero.

    With a prior pi, return `tau * log(((1 - smoothing) beta + smoothing pi) / pi)`; where pi is zero (no client
    has the class), the ratio is `smoothing`. The result is float32, or float64 if beta is. `tau = 0` is plain
    cross-entropy by definition, absent classes included, whereas `tau -> 0+` masks them.

    >>> log_weights([0.5, 0.0, 0.5]), log_weights([0.5, 0.0, 0.5], prior=[0.5, 0.25, 0.25])
    (tensor([-0.6931,    -inf, -0.6931]), tensor([0.0000,   -inf, 0.6931]))
    """
    beta = torch.as_tensor(beta)
    shares = beta if beta.dtype is torch.float64 else beta.float()
    if tau == 0:  # 0 * log 0 would be NaN
        return torch.zeros_like(shares)
    if prior is None:
        return tau * portable_log((1 - smoothing) * shares + smoothing / shares.shape[-1])
    pi = torch.as_tensor(prior, dtype=shares.dtype, device=shares.device)
    pi = pi / pi.sum()
    ratio = ((1 - smoothing) * shares + smoothing * pi) / pi
    return tau * portable_log(torch.where(pi > 0, ratio, smoothing))


def reweighted_cross_entropy(
    logits: Tensor,
    target: Tensor,
    beta: ArrayLike,
    tau: float = 1.0,
    *,
    smoothing: float = 0.0,
    prior: ArrayLike | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`F.cross_entropy` with a normaliser weighted by `beta`: the same shapes, targets and options.

    `prior` is the target class shares, uniform by default. Two things differ from `F.cross_entropy`: the mean over
    no label (all ignored) is 0, and label smoothing spreads its mass over the classes of weight above zero.
    Half-precision logits are computed in float32. Values are not checked, so that it can be traced and mapped: see
    `check_beta`, `check_prior`, `check_targets` and `WSMLoss`.

    >>> logits = torch.tensor([[2.0, 1.0, 9.0]])
    >>> reweighted_cross_entropy(logits, torch.tensor([0]), beta=[0.5, 0.5, 0.0])
    tensor(-0.3799)
    """
    _check_settings(tau, smoothing, label_smoothing, reduction)
    beta = torch.as_tensor(beta, device=logits.device)
    _check_length("beta", beta, logits)
    if prior is not None:
        prior = torch.as_tensor(prior, device=logits.device)
        _check_length("prior", prior, logits)
    return reweighted_cross_entropy_from_logs(
        logits,
        target,
        log_weights(beta.double() if logits.dtype is torch.float64 else beta, tau, smoothing, prior),
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
) -> Tensor:
    """`reweighted_cross_entropy` from the result of `log_weights`, which is computed once per client.

    >>> logits, target = torch.tensor([[2.0, 1.0, 9.0]]), torch.tensor([0])
    >>> reweighted_cross_entropy_from_logs(logits, target, log_weights([0.5, 0.5, 0.0]))
    tensor(-0.3799)
    """
    if logits.dtype is not log_weight.dtype:
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        log_weight = log_weight.to(logits.dtype)
    weight = None if weight is None else weight.to(logits.dtype)
    losses, counts = _losses(logits, target, log_weight, weight, ignore_index, label_smoothing)
    if reduction == "mean":
        # Without a label the sum is 0, and any nonzero divisor gives 0.
        return losses.sum() / torch.where(counts.sum() == 0, 1.0, counts.sum())
    return losses.sum() if reduction == "sum" else losses


def quick_cross_entropy(logits: Tensor, target: Tensor, log_weight: Tensor, minus_log_weight: Tensor) -> Tensor:
    """Return the mean loss of (N, C) logits; NaN if all labels are ignored or one has a weight of zero.

    Cross-entropy of `f + log_weight` has the same gradient; adding `minus_log_weight` restores the constant
    `log_weight_y` (subtraction would be another kernel). It costs little more than `F.cross_entropy`.

    >>> logs = log_weights([0.5, 0.5, 0.0])
    >>> quick_cross_entropy(torch.tensor([[2.0, 1.0, 9.0]]), torch.tensor([0]), logs, -logs)
    tensor(-0.3799)
    """
    if logits.dtype is not log_weight.dtype:
        logits = logits.to(torch.promote_types(logits.dtype, log_weight.dtype))
    return F.nll_loss((logits + log_weight).log_softmax(1) + minus_log_weight, target)


def _along_classes(vector: Tensor, logits: Tensor) -> Tensor:
    """Reshape a vector over the classes to broadcast over (C,), (N, C) or (N, C, d1, ..)."""
    return vector if logits.dim() < 3 else vector.view(-1, *[1] * (logits.dim() - 2))


def _losses(
    logits: Tensor, target: Tensor, log_weight: Tensor, weight: Tensor | None, ignore_index: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the loss of each position, also for labels of weight zero, and its weight in the mean."""
    dim = 1 if logits.dim() > 1 else 0
    scores = logits - (logits + _along_classes(log_weight, logits)).logsumexp(dim, keepdim=True)
    weighted = scores if weight is None else scores * _along_classes(weight, logits)
    if target.is_floating_point():
        if ignore_index >= 0:
            raise InputError(f"ignore_index = {ignore_index} has no meaning for class-probability targets.")
        losses = -(weighted * target.to(logits.dtype)).sum(dim)
        kept = counts = torch.ones_like(losses)
    else:
        losses = F.nll_loss(scores, target, weight, ignore_index=ignore_index, reduction="none")
        kept = (target != ignore_index).to(logits.dtype)
        counts = kept if weight is None else kept * weight[torch.where(kept > 0, target, 0).long()]
    if eps:
        present = (log_weight > -math.inf).to(logits.dtype)
        even = _along_classes(present / present.sum(), logits)
        losses = (1 - eps) * losses - eps * kept * (weighted * even).sum(dim)
    return losses, counts


def _is_nan(loss: Tensor) -> bool:
    """Whether the loss is NaN; also True where its value is not available, as under `vmap` and tracing."""
    try:
        return torch.compiler.is_compiling() or math.isnan(loss.item())
    except RuntimeError:
        return True


def _check_settings(tau: float, smoothing: float, label_smoothing: float, reduction: str) -> None:
    if not (math.isfinite(tau) and tau >= 0):
        raise InputError(f"tau must be a finite number of at least 0, not {tau}.")
    for name, share in (("smoothing", smoothing), ("label_smoothing", label_smoothing)):
        if not 0 <= share <= 1:
            raise InputError(f"{name} must lie between 0 and 1, not {share}.")
    if reduction not in ("mean", "sum", "none"):
        raise InputError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}.")


def _check_length(name: str, shares: Tensor, logits: Tensor) -> None:
    classes = logits.shape[1 if logits.dim() > 1 else 0]
    if shares.shape != (classes,):  # one entry would broadcast to any number of classes
        raise InputError(f"{name} has the shape {tuple(shares.shape)}, but the logits have {classes} classes.")


def check_beta(beta: ArrayLike, num_classes: int | None = None, name: str = "beta") -> Tensor:
    """Return `beta` as a tensor; raise an `InputError` if it is not a valid weighting of the classes.

    It need not sum to one: a common factor only shifts the loss by a constant (unless smoothing is used).

    >>> check_beta([0.5, -0.5])
    Traceback (most recent call last):
    fedrecall.errors.InputError: beta must not be negative: class 1 has -0.5.
    """
    beta = torch.as_tensor(beta)
    if beta.dim() != 1 or not len(beta):
        raise InputError(f"{name} must have one entry per class, not the shape {tuple(beta.shape)}.")
    if num_classes is not None and len(beta) != num_classes:
        raise InputError(f"{name} has {len(beta)} entries, but there are {num_classes} classes.")
    for rule, broken in (("be finite", ~beta.isfinite()), ("not be negative", beta < 0)):
        if broken.any():
            c = int(broken.nonzero()[0])
            raise InputError(f"{name} must {rule}: class {c} has {beta[c].item():g}.")
    if not beta.any():
        raise InputError(f"{name} is zero for all {len(beta)} classes: there is nothing to weigh them by.")
    return beta


def check_prior(prior: ArrayLike, beta: Tensor) -> Tensor:
    """Return `prior` as a tensor; raise an `InputError` if it is invalid or zero for a class of the client.

    >>> check_prior([1.0, 0.0], torch.tensor([0.5, 0.5]))
    Traceback (most recent call last):
    fedrecall.errors.InputError: prior is zero for class 1, of which the client has samples.
    """
    if isinstance(prior, str):
        raise InputError(f"prior is {prior!r}; the class shares themselves were expected, or None for equal ones.")
    given = prior if isinstance(prior, Tensor) else torch.as_tensor(prior, dtype=torch.float64)
    pi = check_beta(given, len(beta), "prior").to(beta.device)
    never_met = ((pi == 0) & (beta > 0)).nonzero()
    if len(never_met):
        raise InputError(f"prior is zero for class {int(never_met[0])}, of which the client has samples.")
    return pi


def check_targets(target: Tensor, beta: ArrayLike, ignore_index: int = -100, *, smoothing: float = 0.0) -> None:
    """Raise an `InputError` for the first label, hard or soft, that is out of range or has `beta_y = 0`.

    With smoothing above zero no class is absent, so only the range is checked.

    >>> check_targets(torch.tensor([0, 2]), beta=[0.5, 0.5, 0.0])
    Traceback (most recent call last):
    fedrecall.errors.InputError: Label 2 has beta = 0: the client's shares count no sample of it.
    """
    beta = torch.as_tensor(beta, device=target.device)
    if target.is_floating_point():
        by_class = target.movedim(0 if target.dim() == 1 else 1, -1)
        if by_class.shape[-1] != len(beta):
            raise InputError(f"The target has {by_class.shape[-1]} classes, but beta has {len(beta)}.")
        labels = by_class.nonzero()[:, -1]
    else:
        labels = target[target != ignore_index].long()
    outside = labels[(labels < 0) | (labels >= len(beta))]
    if len(outside):
        raise InputError(f"Label {int(outside[0])} is out of range: beta has {len(beta)} classes.")
    absent = labels[beta[labels] == 0]
    if len(absent) and not smoothing:
        raise InputError(f"Label {int(absent[0])} has beta = 0: the client's shares count no sample of it.")


class WSMLoss(nn.Module):
    """`reweighted_cross_entropy` as a module that holds the `beta` of one client.

    `prior` is the target class shares if they are not uniform. `validate` checks the labels of the first batch
    (None), of all (True) or of none (False, as `vmap` needs).

    >>> from fedrecall import class_proportions
    >>> loss = WSMLoss(class_proportions([0, 1, 1], num_classes=3))
    >>> loss(torch.tensor([[2.0, 1.0, 9.0]]), torch.tensor([0]))
    tensor(-0.5472)
    """

    weight: Tensor | None

    def __init__(
        self,
        beta: ArrayLike,
        tau: float = 1.0,
        *,
        smoothing: float = 0.0,
        prior: ArrayLike | None = None,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        validate: bool | None = None,
    ) -> None:
        super().__init__()
        _check_settings(tau, smoothing, label_smoothing, reduction)
        beta = check_beta(beta)
        pi = None if prior is None else check_prior(prior, beta).detach().cpu()
        # Outside the buffer, because .half() would round it, and some devices have no float64.
        self._exact = log_weights(beta.detach().cpu().double(), tau, smoothing, pi)
        self.register_buffer("log_weight", self._exact.float().to(beta.device), persistent=False)
        self.register_buffer("minus_log_weight", -self._exact.float().to(beta.device), persistent=False)
        self.register_buffer("weight", weight, persistent=False)
        self.tau, self.smoothing, self.label_smoothing = tau, smoothing, label_smoothing
        self.prior = None if pi is None else tuple(pi.tolist())
        self.ignore_index, self.reduction, self.validate = ignore_index, reduction, validate
        self._to_check = True
        self._quick = weight is None and not label_smoothing and (reduction, ignore_index) == ("mean", -100)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        if self._to_check:
            _check_length("beta", self._exact, logits)
            if self.validate is not False:
                check_targets(target, self._exact > -math.inf, self.ignore_index)
            self._to_check = bool(self.validate)
        # Not self.log_weight: the attribute lookup of nn.Module takes 5 % of a small step.
        log_weight = cast(Tensor, self._buffers["log_weight"])
        plain = logits.is_cpu and logits.dtype is log_weight.dtype is torch.float32
        if self._quick and plain and logits.dim() == 2 and not target.is_floating_point():
            loss = quick_cross_entropy(logits, target, log_weight, cast(Tensor, self._buffers["minus_log_weight"]))
            if not _is_nan(loss):
                return loss
        if logits.dtype is torch.float64 or log_weight.dtype is not torch.float32:
            log_weight = self._exact.to(logits.device)
        return reweighted_cross_entropy_from_logs(
            logits,
            target,
            log_weight,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )

    def extra_repr(self) -> str:
        names = ("tau", "smoothing", "prior", "ignore_index", "reduction", "label_smoothing", "validate")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
