"""Local client forgetting: what one client's training makes the model lose on the others' data.

F[i, k] = Acc_k(global model before the round) - Acc_k(client i's model after its local steps), where Acc_k is the
accuracy on client k's validation data. Pure functions on arrays; clients without validation data are NaN.
"""

from __future__ import annotations

import numpy as np


def client_accuracy(correct: np.ndarray, owners: np.ndarray, clients: int) -> np.ndarray:
    """[K]: the accuracy on each client's samples, from one flag per pooled sample.

    >>> client_accuracy(np.array([True, False, True]), np.array([0, 0, 1]), 3)
    array([0.5, 1. , nan])
    """
    right = np.bincount(owners, weights=correct.astype(np.float64), minlength=clients)
    there = np.bincount(owners, minlength=clients)
    accuracy: np.ndarray = np.divide(right, there, out=np.full(clients, np.nan), where=there > 0)
    return accuracy


def forgetting_matrix(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """F[i, k] from before [k] and after [i, k]. Positive: forgotten."""
    matrix: np.ndarray = before[None, :] - after
    return matrix


def mean_forgetting(matrix: np.ndarray, models: np.ndarray) -> float:
    """The headline: the mean over all pairs of a model i and another client's data k != i."""
    others = models[:, None] != np.arange(matrix.shape[1])[None, :]
    values = matrix[others & ~np.isnan(matrix)]
    return float(values.mean()) if len(values) else float("nan")


def mean_learned(matrix: np.ndarray, models: np.ndarray) -> float:
    """What the same models gained on their own data: a model that learns nothing forgets nothing."""
    own = -matrix[np.arange(len(models)), models]
    return float(np.nanmean(own)) if not np.isnan(own).all() else float("nan")
