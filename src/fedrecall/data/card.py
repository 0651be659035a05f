"""The card of a partition: its sizes, classes and label skew, as in `partition.json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedrecall.core.class_sharing import ClassSharing
from fedrecall.data.assignment import Assignment, label_counts
from fedrecall.data.federation import Federation
from fedrecall.data.partition_draws import Ints
from fedrecall.errors import InputError

MOST_LISTED = 20


def federation_card(federation: Federation) -> dict[str, Any]:
    """Return the card of a federation."""
    labels = federation.train.y if federation.knows_labels else None
    names = {"class_names": federation.class_names, "client_names": federation.client_names}
    return card(federation.assignment, labels, federation.num_classes, **names)


def card(
    assignment: Assignment,
    labels: Ints | None,
    num_classes: int,
    class_names: Sequence[str] | None = None,
    client_names: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the content of `partition.json`. Without labels, which stay with real clients, it leaves out classes.

    Sizes, classes and skew are those of the clients that train; held-out clients count only in `samples` and in
    the pooled shares.

    classes_missing, one_class_clients: by the training samples, whose labels the loss knows.
    label_skew: the mean over clients of the total variation distance, 1/2 sum_c |p_k(c) - p(c)|, between the class
    shares p_k of all samples of client k (training and validation) and the class shares p of all assigned samples.
    0: every client has the same mix. For balanced classes it is at most 1 - 1/C, with one class per client.
    class_counts: training samples of each class over all clients, in the order of class_names.
    class_sharing: which pairs of classes have clients in common, see `ClassSharing`.
    client_names: only where clients have names, of all clients in the order of their numbers.
    """
    client, training = assignment.client, assignment.population
    if labels is None:
        by_class, labels, counted = False, np.zeros(len(client), np.int64), 1
    else:
        by_class, counted = True, num_classes
    every = label_counts(client, labels, assignment.clients, counted)
    train = label_counts(np.where(assignment.validation, -1, client), labels, assignment.clients, counted)
    return {
        "clients": assignment.clients,
        "held_out": assignment.held_out,
        "samples": {
            "total": len(client),
            "train": int(train[:training].sum()),
            "validation": int(assignment.validation.sum()),
            "held_out": int(every[training:].sum()),
            "unassigned": int((client < 0).sum()),
        },
        "train_size": _spread(train[:training].sum(axis=1), "median"),
        "validation_size": _spread((every - train)[:training].sum(axis=1), "median"),
        "classes": num_classes,
        **(_skew(every, train, training) if by_class else {}),
        "class_names": _names(class_names, num_classes),
        **({"class_counts": train[:training].sum(axis=0).tolist()} if by_class else {}),
        **({"client_names": list(client_names)} if client_names else {}),
        "digest": assignment.digest(),
    }


def _skew(every: Ints, train: Ints, training: int) -> dict[str, Any]:
    """Return how the clients' classes differ, from the number of samples by client and class."""
    missing = (train[:training] == 0).sum(axis=1)
    one_class = np.flatnonzero(missing == train.shape[1] - 1)
    return {
        "classes_missing": _spread(missing, "mean"),
        "one_class_clients": {"count": len(one_class), "first": one_class[:MOST_LISTED].tolist()},
        "label_skew": _label_skew(every, training),
        "class_sharing": ClassSharing.of(train[:training]).tree(),
    }


def _names(class_names: Sequence[str] | None, num_classes: int) -> list[str]:
    names = range(num_classes) if class_names is None else class_names
    if len(names) != num_classes:
        raise InputError(f"class_names has {len(names)} names; one for each of {num_classes} classes is needed")
    return [str(name) for name in names]


def _spread(values: Ints, middle: str) -> dict[str, float]:
    centre = np.median(values) if middle == "median" else np.mean(values)
    return {"min": int(values.min()), middle: float(centre), "max": int(values.max())}


def _label_skew(counts: Ints, training: int) -> float:
    pooled = counts.sum(axis=0) / counts.sum()
    shares = counts[:training] / counts[:training].sum(axis=1, keepdims=True)
    return float((np.abs(shares - pooled).sum(axis=1) / 2).mean())
