"""The random draws of partitions: class shares, classes without replacement, and samples of classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Ints = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]


def dirichlet_shares(rng: Generator, alpha: float, shape: tuple[int, int]) -> Floats:
    """Draw rows from Dir(alpha, .., alpha).

    Gammas are drawn as logarithms, G(alpha) = G(alpha + 1) U^(1 / alpha): plain ones underflow to 0 / 0 at small
    alpha, and `Generator.dirichlet` rounds small shares to zero more often in the later entries.
    """
    alpha = max(alpha, 1e-300)  # below this, 1 / alpha overflows, and a draw is one class anyway
    log_gamma = np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / alpha
    gamma = np.exp(log_gamma - log_gamma.max(axis=1, keepdims=True))
    shares: Floats = gamma / gamma.sum(axis=1, keepdims=True)
    return shares


def draw_classes(rng: Generator, q: Floats, left: Ints, size: int) -> Ints:
    """Draw `size` classes with probabilities q, none more often than `left` of it, in the order of single draws.

    Many draws are made at once. Dropping draws of a class that is used up by then, and drawing again in their
    place, is the same as drawing from the renormalised rest.
    """
    left, parts = left.copy(), []
    while size > 0:
        p = np.where(left > 0, q, 0.0)
        if p.any():
            part = rng.choice(len(q), size, p=p / p.sum())
            for c in np.flatnonzero(np.bincount(part, minlength=len(q)) > left):
                part = np.delete(part, np.flatnonzero(part == c)[left[c] :])
        else:  # q underflowed to zero in all remaining classes: all remaining samples are equally likely
            part = rng.permutation(np.repeat(np.arange(len(q)), rng.multivariate_hypergeometric(left, size)))
        left -= np.bincount(part, minlength=len(q))
        size -= len(part)
        parts.append(part)
    return np.concatenate(parts)


def samples_of(rng: Generator, drawn: Ints, labels: Ints) -> Ints:
    """Return a random sample of its class for each entry of `drawn`, none twice."""
    mixed = rng.permutation(len(labels))
    by_class = mixed[np.argsort(labels[mixed], kind="stable")]
    label = labels[by_class]
    place_in_class = np.arange(len(label)) - np.searchsorted(label, label)
    taken = place_in_class < np.bincount(drawn, minlength=label[-1] + 1)[label]
    samples = np.empty(len(drawn), np.int64)
    samples[np.argsort(drawn, kind="stable")] = by_class[taken]
    return samples
