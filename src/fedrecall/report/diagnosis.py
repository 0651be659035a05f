"""Describe in sentences what one round makes a model forget, from the arrays of two probes.

Pure functions. Words follow the rounded numbers, so that nothing is called a loss of 0.0 points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedrecall.measure.forgetting import (
    forgetting_matrix,
    forgotten_by_model,
    forgotten_on_data,
    means_of_known,
    probe_metrics,
)
from fedrecall.report.client_names import client_title, printable_line
from fedrecall.report.wording import join_words, rounded_share
from fedrecall.runs.reader import RunRecord, read_tree
from fedrecall.runs.schema import DIAGNOSIS_KEYS
from fedrecall.storage.safe_parsing import json_value

NAMED = 3  # most clients or classes named in a sentence
GUESSING = 1.2  # an accuracy of up to this times 1 / C is no better than guessing
SMALL = 1.0  # points: less forgetting may be chance, so no share of it is stated

DIAGNOSIS = "diagnosis.json"  # in the parent folder of the runs

Ranking = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Findings:
    """Results of one probe. Accuracies and their differences are shares, from -1 to 1; NaN: not measured."""

    before: float  # accuracy of the model sent to the clients, on the pooled validation data
    averaged: float  # accuracy of the new global model on the same data
    forgetting: float
    learned: float
    drops: float
    rises: float
    absent: float  # forgotten on classes that the client lacks
    present: float  # forgotten on classes that the client has
    causes: Ranking  # forgetting caused by each client's training, descending
    suffers: Ranking  # forgetting on each client's data by the others' training, descending
    classes: tuple[tuple[str, float], ...]  # forgetting by class, mean over the round's models
    standard_error: float | None = None  # of `forgetting`, if measured on a sample of the clients
    global_statistics: float | None = None  # `forgetting` with the global batch-norm statistics


def findings(arrays: Mapping[str, np.ndarray], class_names: Sequence[str], population: int) -> Findings:
    """Return the findings of a probe's arrays (docs/metrics.md), given the number of clients that may train."""
    models, data = arrays["models"], arrays["data"]
    matrix = forgetting_matrix(arrays["before"], arrays["after"])
    metrics = probe_metrics(arrays, population)
    lost = means_of_known(forgetting_matrix(arrays["class_before"], arrays["class_after"]), axis=0)
    return Findings(
        before=_pooled(arrays["before"], arrays["samples"]),
        averaged=_pooled(arrays["after_aggregation"], arrays["samples"]),
        forgetting=metrics["forgetting"],
        learned=metrics["learned"],
        drops=metrics["forgotten_drops"],
        rises=metrics["forgotten_rises"],
        absent=metrics["forgotten_absent"],
        present=metrics["forgotten_present"],
        causes=_ranked(models, forgotten_by_model(matrix, models, data)),
        suffers=_ranked(data, forgotten_on_data(matrix, models, data)),
        classes=tuple((printable_line(class_names[c]), value) for c, value in _ranked(np.arange(len(lost)), lost)),
        standard_error=metrics.get("forgetting_se"),
        global_statistics=metrics.get("forgetting_global_statistics"),
    )


def _pooled(accuracy: np.ndarray, samples: np.ndarray) -> float:
    """Return the accuracy over all samples, each with the same weight."""
    return float(np.nansum(accuracy * samples) / samples.sum())


def _ranked(ids: np.ndarray, values: np.ndarray) -> Ranking:
    known = [(int(each), float(value)) for each, value in zip(ids, values) if not np.isnan(value)]
    return tuple(sorted(known, key=lambda pair: (-pair[1], pair[0])))


def opening(start: str, found: Findings, clients: int, population: int, classes: int, *, initial: bool) -> str:
    """Return which clients train from which `start`, and whether that model has anything to forget."""
    who = f"all {population} clients" if clients == population else f"{clients} of {population} clients"
    sentence = (
        f"One round with {who}, from {start} (accuracy on the clients' validation data: "
        f"{rounded_share(found.before):.1f} %)."
    )
    if initial:
        return (
            f"{sentence} It is untrained, and a model that knows nothing forgets nothing: give trained "
            "weights (--weights FILE.safetensors, or a finished run; in Python, weights=) to see what they lose."
        )
    if found.before <= GUESSING / classes:
        return f"{sentence} That is no better than guessing, and a model that knows nothing forgets nothing."
    return sentence


def sentences(plain: Findings, wsm: Findings, clients: Sequence[str] = ()) -> list[str]:
    """Return a text on cross-entropy, one on WSM, and one on the difference, given the clients' names if any."""
    both = [_described("Cross-entropy", plain, clients), _described("WSM", wsm, clients)]
    return [*both, _compared(plain, wsm)]


def _described(name: str, found: Findings, clients: Sequence[str]) -> str:
    by_whom = _by_whom(found, clients)
    return " ".join([f"{name}: {_how_much(found)}", *_statistics(found), by_whom, _on_classes(found)])


def _how_much(found: Findings) -> str:
    if math.isnan(found.forgetting):
        return "what is forgotten could not be measured, for want of other clients' validation data."
    error = "" if found.standard_error is None else f" (standard error {rounded_share(found.standard_error):.1f})"
    text = f"after local training a client's model is {_worse(found.forgetting)}{error} on the other clients' data"
    if math.isnan(found.learned):
        return f"{text}, on the average; on its own it could not be measured, for want of validation data."
    return f"{text} and {_worse(-found.learned)} on its own, on the average."


def _worse(lost: float) -> str:
    return _by_sign(lost, "as good as before", "{} worse", "{} better")


def _lose(lost: float) -> str:
    return _by_sign(lost, "stay as they were", "lose {}", "gain {}")


def _gains(learned: float) -> str:
    return _by_sign(learned, "gains nothing", "gains {}", "loses {}")


def _by_sign(value: float, zero: str, above: str, below: str) -> str:
    """Return the words for the sign of the rounded value, with the points in place of the braces."""
    shown = rounded_share(value)
    words = zero if shown == 0 else above if shown > 0 else below
    return words.format(f"{abs(shown):.1f} points")


def _statistics(found: Findings) -> list[str]:
    """Return a sentence on forgetting with global batch-norm statistics, if it differs."""
    if found.global_statistics is None or rounded_share(found.global_statistics) == rounded_share(found.forgetting):
        return []
    return [f"With the batch-norm statistics that it was sent it is {_worse(found.global_statistics)} there."]


def _by_whom(found: Findings, clients: Sequence[str]) -> str:
    if not found.causes:
        return ""
    causes, suffers = _leaders(found.causes, clients), _leaders(found.suffers, clients)
    costs = "No client's training costs the others anything on the average."
    if causes:
        first, rest = causes
        costs = f"The training of {first[0]} costs the others most ({first[1]} points){rest}."
        if len(found.causes) == 1:
            costs = f"All of it comes from {first[0]}, the only one that trained."
    if not suffers:
        return f"{costs} No client's data suffer on the average."
    first, rest = suffers
    return f"{costs} {first[0][:1].upper()}{first[0][1:]} suffers most ({first[1]} points){rest}."


def _leaders(ranking: Ranking, clients: Sequence[str]) -> tuple[tuple[str, str], str] | None:
    """Return the first client with its points, and the next ones in words; None if no value is positive."""
    losers = [
        (client_title(clients, client), f"{rounded_share(value):.1f}")
        for client, value in ranking
        if rounded_share(value) > 0
    ][:NAMED]
    if not losers:
        return None
    first, *rest = losers
    return first, f", then {join_words([f'{name} ({value})' for name, value in rest])}" if rest else ""


def _on_classes(found: Findings) -> str:
    if math.isnan(found.absent):
        text = f"Every client that trained has every class; the classes {_lose(found.present)}."
    elif math.isnan(found.present):
        text = f"Classes that a client lacks {_lose(found.absent)}."
    else:
        text = f"Classes that a client lacks {_lose(found.absent)}, those that it has {_lose(found.present)}."
    hit = [f"{name} ({rounded_share(value):.1f})" for name, value in found.classes if rounded_share(value) > 0][:NAMED]
    return f"{text} Hit hardest: {join_words(hit)}." if hit else f"{text} No class loses on the average."


def _compared(plain: Findings, wsm: Findings) -> str:
    parts = [
        f"Averaged, the clients' models have an accuracy of {rounded_share(wsm.averaged):.1f} % with WSM and "
        f"{rounded_share(plain.averaged):.1f} % with cross-entropy "
        f"({rounded_share(plain.before):.1f} % before the round).",
        _change(plain, wsm),
    ]
    if not math.isnan(plain.learned + wsm.learned):
        second = _gains(plain.learned)
        if rounded_share(wsm.learned) > 0 and rounded_share(plain.learned) > 0:
            second = f"{rounded_share(plain.learned):.1f}"
        parts.append(f"On its own data a client {_gains(wsm.learned)} with WSM and {second} with cross-entropy.")
        if rounded_share(wsm.learned) <= 0 < rounded_share(plain.learned) and rounded_share(
            wsm.forgetting
        ) < rounded_share(plain.forgetting):
            parts.append("WSM learns nothing here, and a model that learns nothing forgets nothing.")
    return " ".join(parts)


def _change(plain: Findings, wsm: Findings) -> str:
    """Return a sentence on how WSM changes the forgetting."""
    if math.isnan(plain.forgetting + wsm.forgetting):
        return "What WSM changes could not be measured."
    before, after = rounded_share(plain.forgetting), rounded_share(wsm.forgetting)
    both = f"{before:.1f} points with cross-entropy, {after:.1f} with WSM"
    if before <= 0 and after <= 0:
        return "On balance neither cross-entropy nor WSM forgets anything here."
    if before <= 0:
        return f"On balance cross-entropy forgets nothing here, and WSM {after:.1f} points: it makes this worse."
    if after == before:
        return f"WSM changes nothing about the forgetting: {both}."
    if after > before:
        return f"WSM forgets more here: {both}."
    if after <= 0:
        drops, rises = rounded_share(wsm.drops), rounded_share(wsm.rises)
        rest = f" (drops of {drops:.1f} points, outweighed by rises of {rises:.1f})" if drops > 0 else ""
        return f"On balance WSM removes the forgetting: {before:.1f} points with cross-entropy, none with WSM{rest}."
    if before < SMALL:
        return f"Little is forgotten in any case: {both}."
    share = min(99, max(1, round(100 * (1 - wsm.forgetting / plain.forgetting))))
    return f"WSM removes {share} % of the forgetting: {both}."


def saved_sentences(runs: Sequence[RunRecord]) -> tuple[list[str], list[str]]:
    """Return the saved sentences and notes of these runs; empty lists if they are not the runs of a diagnosis."""
    folders = {run.path.resolve().parent for run in runs}
    path = folders.pop() / DIAGNOSIS if len(folders) == 1 else None
    tree = read_tree(path, json_value, DIAGNOSIS_KEYS) if path else None
    if path is None or tree is None or set(tree.get("runs") or ()) != {run.path.resolve().name for run in runs}:
        return [], []
    return tree.get("sentences") or [], tree.get("notes") or []
