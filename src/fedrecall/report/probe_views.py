"""Views of a run's probes: the matrices F[i, k], and forgetting by class and by client."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrecall.measure import forgetting
from fedrecall.report.comparison import Method
from fedrecall.runs.reader import RunRecord

MOST_CELLS = 200_000  # of all matrices of a page, at ten bytes per cell
MOST_COLUMNS = 200
MOST_LABELS = 6
SCALE = 10_000  # accuracies are written as whole numbers of 1 / SCALE

ProbeArrays = dict[str, np.ndarray]


@dataclass
class Clients:
    """Mean forgetting and learning of each client over a run's probes, by descending forgetting."""

    ids: np.ndarray
    values: np.ndarray
    learned: np.ndarray


def participants_first(probe: ProbeArrays) -> np.ndarray:
    """Return the column order with the round's own clients first, in row order, so that the diagonal shows."""
    places = {int(client): place for place, client in enumerate(probe["data"])}
    first = [places[int(client)] for client in probe["models"] if int(client) in places]
    others = np.setdiff1d(np.arange(len(probe["data"])), first)
    return np.array([*first, *others.tolist()], dtype=np.int64)


def probed_run(method: Method) -> RunRecord | None:
    """Return the first run with probes, or None. Seeds sample different clients: their matrices have no mean."""
    return next((run for run in method.runs if run.probes), None)


def page_probes(run: RunRecord, most_cells: int) -> list[dict[str, Any]]:
    """Return a run's matrices for the page: as many evenly spaced rounds as fit, always with the last."""
    rounds = list(run.probes)
    cells = max(probe["after"].shape[0] * min(probe["after"].shape[1], MOST_COLUMNS) for probe in run.probes.values())
    room = max(1, most_cells // max(cells, 1))
    if len(rounds) > room:
        chosen = np.linspace(len(rounds) - 1, 0, room).round().astype(int)  # always the last
        rounds = [rounds[place] for place in sorted(set(chosen.tolist()))]
    return [_page_probe(number, run.probes[number]) for number in rounds]


def _page_probe(number: int, probe: ProbeArrays) -> dict[str, Any]:
    columns = participants_first(probe)[:MOST_COLUMNS]
    return {
        "round": number,
        "models": probe["models"].tolist(),
        "data": probe["data"][columns].tolist(),
        "before": as_whole(probe["before"][columns]),
        "after": [as_whole(row[columns]) for row in probe["after"]],
        "forgotten": [as_whole(row[columns]) for row in matrix_of(probe)],
    }


def as_whole(values: np.ndarray) -> list[int | None]:
    """Return accuracies or their differences in units of 1 / `SCALE`; None without validation data."""
    return [None if np.isnan(value) else round(float(value) * SCALE) for value in values]


def label_sets(run: RunRecord, clients: set[int]) -> dict[int, str]:
    """Return each client's classes, the most frequent first; older runs have them only in their probes."""
    names = class_names(run)
    found = {}
    if run.class_counts is not None:
        for client in clients:
            if 0 <= client < len(run.class_counts):
                found[client] = label_set(run.class_counts[client], names)
        return found
    for probe in run.probes.values():
        for client, present in zip(probe["models"].tolist(), probe.get("present", [])):
            found[client] = label_set(np.asarray(present, dtype=np.int64), names, shares=False)
    return found


def label_set(counts: np.ndarray, names: list[str], *, shares: bool = True) -> str:
    """Return class shares as `Bag 60 %, Coat 40 %`."""
    total, order = max(int(counts.sum()), 1), np.argsort(-counts, kind="stable")
    present = [int(c) for c in order if counts[c] > 0]
    words = [
        (f"{name_of(names, c)} {counts[c] / total:.0%}".replace("%", " %") if shares else name_of(names, c))
        for c in present[:MOST_LABELS]
    ]
    more = len(present) - len(words)
    return ", ".join(words) + (f" and {more} more" if more else "") if present else "no training samples"


def class_names(run: RunRecord) -> list[str]:
    names = run.card.get("class_names")
    return [str(name) for name in names] if isinstance(names, list) else []


def name_of(names: list[str], c: int) -> str:
    return names[c] if c < len(names) else str(c)


def by_class(method: Method) -> tuple[np.ndarray, np.ndarray] | None:
    """Return mean forgetting by class over models, probes and seeds, for clients with and without the class."""
    present, absent = [], []
    for run in method.runs:
        for probe in run.probes.values():
            if not {"class_before", "class_after", "present"} <= set(probe):
                continue
            lost = forgetting.forgetting_matrix(probe["class_before"], probe["class_after"])
            has = probe["present"].astype(bool)
            present.append(np.where(has, lost, np.nan))
            absent.append(np.where(has, np.nan, lost))
    if not present:
        return None
    means = [forgetting.means_of_known(np.concatenate(parts), axis=0) for parts in (present, absent)]
    return means[0], means[1]


def who_suffers(run: RunRecord) -> Clients:
    """Return `forgotten_on_data[k]`, the mean over other clients' models, averaged over all probes."""
    return _collected(run, "data", forgetting.forgotten_on_data)


def who_causes(run: RunRecord) -> Clients:
    """Return `forgotten_by_model[i]`, the mean over other clients' data, averaged over all probes."""
    return _collected(run, "models", forgetting.forgotten_by_model)


def _collected(run: RunRecord, whose: str, function: Callable[..., np.ndarray]) -> Clients:
    values, learned = dict[int, list[float]](), dict[int, list[float]]()
    for probe in run.probes.values():
        means = function(matrix_of(probe), probe["models"], probe["data"])
        for client, value in zip(probe[whose].tolist(), means):
            values.setdefault(client, []).append(float(value))
        for client, value in zip(probe["models"].tolist(), forgetting.learned_in_probe(probe)):
            learned.setdefault(client, []).append(float(value))
    gained = [forgetting.mean_of_known(np.array(learned.get(client, [np.nan]))) for client in values]
    means = np.array([forgetting.mean_of_known(np.array(each)) for each in values.values()])
    known = ~np.isnan(means)
    order = np.argsort(-means[known], kind="stable")
    return Clients(np.array(list(values))[known][order], means[known][order], np.array(gained)[known][order])


def matrix_of(probe: ProbeArrays) -> np.ndarray:
    """Return F[i, k]."""
    return forgetting.forgetting_matrix(probe["before"], probe["after"])


def largest(methods: list[Method]) -> float:
    """Return the end of the shared colour scale: the largest |F| in any matrix, rounded up to a tenth."""
    found = [0.1]
    for run in filter(None, map(probed_run, methods)):
        found += [float(np.nanmax(np.abs(matrix_of(p)), initial=0.0)) for p in run.probes.values()]
    return min(1.0, math.ceil(max(found) * 10 - 1e-9) / 10)
