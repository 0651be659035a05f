"""Priors, the class shares that a model is meant for: their names, and the logit shift from one to another.

Under label shift, a model for shares p becomes one for shares q by adding log(q_c / p_c) to its logits
(docs/prior.md).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedrecall.config.options import Shares
from fedrecall.errors import InputError

FAR = 0.1  # distance from uniform shares at which a model for them may lose this much accuracy
NEVER = -1e4  # the least shift, for a class of share zero: finite, to avoid NaN
TERMS = range(25, 0, -2)  # of 2 atanh(t) = 2 (t + t^3/3 + t^5/5 + ..), for |t| up to .172
HIGH, LOW = 0.693147180369123816490, 1.90821492927058770002e-10  # log 2 in two parts, the first with few bits


def portable_log(x: Tensor) -> Tensor:
    """Return log(x) in the precision of x.

    On the CPU, unlike torch's own, it has the same bits everywhere: it uses single IEEE operations in float64.

    >>> portable_log(torch.tensor([1.0, 0.5, 0.0]))
    tensor([ 0.0000, -0.6931,    -inf])
    """
    if not x.is_cpu:
        return x.log()
    m, exponent = torch.frexp(x.double())  # x = m 2^exponent, from 1/2 to 1
    small = m < math.sqrt(0.5)
    m, exponent = torch.where(small, 2 * m, m), exponent.double() - small.double()
    t = (m - 1) / (m + 1)
    square, total = t * t, torch.zeros_like(t)
    for k in TERMS:
        total = total * square + 1 / k
    found = exponent * HIGH + (exponent * LOW + 2 * t * total)
    return torch.where((x > 0) & (x < math.inf), found.to(x.dtype), x.log())


def check_length(key: str, prior: str | Shares, num_classes: int) -> None:
    if not isinstance(prior, str) and len(prior) != num_classes:
        raise InputError(f"{key} has {len(prior)} shares, but there are {num_classes} classes")


def unevenness(shares: Tensor) -> float:
    """Return the total variation distance of class shares from uniform ones.

    >>> unevenness(torch.tensor([0.75, 0.25]))
    0.25
    """
    return float((shares - 1 / len(shares)).clamp(min=0).sum())


def shares_of(prior: str | Shares, pooled: Tensor) -> Tensor:
    """Return the float64 shares that a prior stands for; `pooled` are those of all clients together.

    >>> shares_of((3, 1), torch.tensor([0.5, 0.5])), shares_of("uniform", torch.tensor([0.9, 0.1]))
    (tensor([0.7500, 0.2500], dtype=torch.float64), tensor([0.5000, 0.5000], dtype=torch.float64))
    """
    if prior == "pooled":
        return pooled.double()
    given = torch.ones(len(pooled)) if prior == "uniform" else torch.tensor(prior)
    return given.double() / given.double().sum()


def shift(log_trained: Tensor, wanted: Tensor, pooled: Tensor) -> Tensor:
    """Return the logit shift that turns a model trained for shares p into one for the shares `wanted`.

    The logit of a class that no client has stays, and the shares of the others are renormalised. `log_trained` is
    log p up to a constant.

    >>> trained, wanted = torch.tensor([0.5, 0.5]), torch.tensor([0.8, 0.2])
    >>> shift(trained.log(), wanted, pooled=wanted).exp()
    tensor([1.6000, 0.4000])
    """
    known = pooled > 0
    before, after = (
        torch.where(known, logs.double(), -math.inf).log_softmax(0) for logs in (log_trained, portable_log(wanted))
    )
    moved = torch.where(known, after - before, 0.0)
    return moved.clamp(min=NEVER).float()
