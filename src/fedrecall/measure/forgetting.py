"""Local client forgetting: the accuracy that one client's training costs the model on the others' data.

F[i, k] = Acc_k(global model before the round) - Acc_k(client i's model after its local steps), where Acc_k is the
accuracy on client k's validation data. Pure functions on arrays; unmeasured values (a client without validation
data, a class without a sample) are NaN and left out of the means. `models` are the client ids of the rows, `data`
those of the columns (0, 1, 2, .. by default).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def client_accuracy(correct: np.ndarray, owners: np.ndarray, clients: int) -> np.ndarray:
    """Return [K]: the accuracy on each client's samples, from one flag per pooled sample.

    >>> client_accuracy(np.array([True, False, True]), np.array([0, 0, 1]), 3)
    array([0.5, 1. , nan])
    """
    return group_mean(correct, owners, clients)


def group_mean(values: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    """Return [count]: the mean of the values of each group; NaN for an empty group."""
    total = np.bincount(groups, weights=values.astype(np.float64), minlength=count)
    there = np.bincount(groups, minlength=count)
    means: np.ndarray = np.divide(total, there, out=np.full(count, np.nan), where=there > 0)
    return means


def mean_of_known(values: np.ndarray) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def means_of_known(values: np.ndarray, axis: int) -> np.ndarray:
    """Return `mean_of_known` along an axis."""
    known = ~np.isnan(values)
    there = known.sum(axis)
    total = np.where(known, values, 0.0).sum(axis)
    means: np.ndarray = np.divide(total, there, out=np.full(there.shape, np.nan), where=there > 0)
    return means


def own_pairs(matrix: np.ndarray, models: np.ndarray, data: np.ndarray | None = None) -> np.ndarray:
    """Return [m, k]: whether column k is the data of model i's own client."""
    columns = np.arange(matrix.shape[1]) if data is None else data
    own: np.ndarray = models[:, None] == columns[None, :]
    return own


def without_own_data(matrix: np.ndarray, models: np.ndarray, data: np.ndarray | None = None) -> np.ndarray:
    """Return the matrix with NaN in place of each model's own data."""
    return np.where(own_pairs(matrix, models, data), np.nan, matrix)


def forgetting_matrix(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return F[i, k] from before [k] and after [i, k]; positive means forgotten."""
    matrix: np.ndarray = before[None, :] - after
    return matrix


def mean_forgetting(matrix: np.ndarray, models: np.ndarray, data: np.ndarray | None = None) -> float:
    """Return the mean over all pairs of a model i and another client's data k != i."""
    return mean_of_known(without_own_data(matrix, models, data))


def forgotten_by_model(matrix: np.ndarray, models: np.ndarray, data: np.ndarray | None = None) -> np.ndarray:
    """Return [m]: the forgetting of model i, the mean over the others' data k != i."""
    return means_of_known(without_own_data(matrix, models, data), axis=1)


def forgotten_on_data(matrix: np.ndarray, models: np.ndarray, data: np.ndarray | None = None) -> np.ndarray:
    """Return [k]: the forgetting on client k's data, the mean over the others' models i != k: F_k of the paper."""
    return means_of_known(without_own_data(matrix, models, data), axis=0)


def standard_error(
    matrix: np.ndarray, models: np.ndarray, data: np.ndarray | None = None, population: int | None = None
) -> float:
    """Return the standard error of the mean forgetting, if the columns are sampled without replacement.

    It is the standard deviation of the columns' means over the root of their number, times the finite population
    correction sqrt(1 - columns / population).
    """
    columns = forgotten_on_data(matrix, models, data)
    columns = columns[~np.isnan(columns)]
    if len(columns) < 2:
        return float("nan")
    left = 1.0 if population is None else max(0.0, 1 - len(columns) / population)
    return float(columns.std(ddof=1) / np.sqrt(len(columns)) * np.sqrt(left))


def learned(matrix: np.ndarray, models: np.ndarray, data: np.ndarray | None = None) -> np.ndarray:
    """Return [m]: the gain of model i on its own client's data, after[i, i] - before[i]; NaN without a column."""
    return means_of_known(np.where(own_pairs(matrix, models, data), -matrix, np.nan), axis=1)


def learned_in_probe(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return [m]: `learned` from the arrays of a probe's file. If its columns are a sample of the clients, the
    models' own data are measured separately."""
    if "own_before" in arrays:
        gained: np.ndarray = arrays["own_after"] - arrays["own_before"]
        return gained
    return learned(forgetting_matrix(arrays["before"], arrays["after"]), arrays["models"], arrays["data"])


def drops_and_rises(matrix: np.ndarray, models: np.ndarray, data: np.ndarray | None = None) -> tuple[float, float]:
    """Return the means of max(F, 0) and max(-F, 0) over the pairs of `mean_forgetting`, which is their difference.

    They are separate, so that a gain on one client's data does not hide a loss on another's.
    """
    values = without_own_data(matrix, models, data)
    return mean_of_known(np.maximum(values, 0.0)), mean_of_known(np.maximum(-values, 0.0))


def present_and_absent(class_before: np.ndarray, class_after: np.ndarray, present: np.ndarray) -> tuple[float, float]:
    """Return the mean forgetting per class, from [C] and [m, C]: over the pairs of a model and a class that its
    client trains on, and over the pairs with a class that the client lacks."""
    lost = forgetting_matrix(class_before, class_after)
    return mean_of_known(lost[present]), mean_of_known(lost[~present])


def lost_by_aggregation(after: np.ndarray, after_aggregation: np.ndarray) -> np.ndarray:
    """Return [k]: mean_i after[i, k] minus the accuracy of the aggregated model."""
    lost: np.ndarray = means_of_known(after, axis=0) - after_aggregation
    return lost


def global_forgetting(previous: np.ndarray, now: np.ndarray) -> float:
    """Return mean_c max(0, A_c(t - 1) - A_c(t)), from the per-class accuracies of two global models."""
    return mean_of_known(np.maximum(previous - now, 0.0))


def global_forgetting_from_best(earlier: np.ndarray, now: np.ndarray) -> float:
    """Return mean_c max_{t' < t} (A_c(t') - A_c(t)), from all earlier models [t, C]; negative: never better."""
    return mean_of_known((earlier - now).max(axis=0))


def probe_metrics(arrays: Mapping[str, np.ndarray], measurable: int) -> dict[str, float]:
    """Return the metrics of a probe, from its arrays and the number of clients with validation data."""
    models, data, after = arrays["models"], arrays["data"], arrays["after"]
    matrix = forgetting_matrix(arrays["before"], after)
    drops, rises = drops_and_rises(matrix, models, data)
    metrics = {"forgetting": mean_forgetting(matrix, models, data)}
    if "own_before" in arrays:  # the columns are a sample
        metrics["forgetting_se"] = standard_error(matrix, models, data, measurable)
    metrics["learned"] = mean_of_known(learned_in_probe(arrays))
    metrics |= {"forgotten_drops": drops, "forgotten_rises": rises}
    if "present" in arrays:  # absent if labels stay with the clients
        present, absent = present_and_absent(arrays["class_before"], arrays["class_after"], arrays["present"])
        metrics |= {"forgotten_present": present, "forgotten_absent": absent}
    if "after_global_statistics" in arrays:
        with_global = forgetting_matrix(arrays["before"], arrays["after_global_statistics"])
        metrics["forgetting_global_statistics"] = mean_forgetting(with_global, models, data)
    metrics["lost_by_aggregation"] = mean_of_known(lost_by_aggregation(after, arrays["after_aggregation"]))
    return metrics
