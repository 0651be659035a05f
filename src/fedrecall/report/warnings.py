"""Warnings about the numbers of a page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedrecall.report.comparison import Method, blocks, differing_keys, flatten, origin_key, recipe_key, same_seeds
from fedrecall.report.intervals import CLAIM
from fedrecall.report.wording import count_of, in_hundred, join_words, percent
from fedrecall.runs.reader import RunRecord, is_number


@dataclass(frozen=True)
class Warning:
    """A sentence, and the labels of the methods it concerns (none if it concerns the whole page)."""

    text: str
    about: tuple[str, ...]


def warnings(methods: list[Method]) -> list[Warning]:
    """Return each sentence once, with the methods it concerns."""
    found: dict[str, list[str]] = {}
    for method in methods:
        for text in dict.fromkeys(_of_method(method)):
            found.setdefault(text, []).append(method.label)
    everywhere = len(methods)
    result = [Warning(text, tuple(about) if len(about) < everywhere else ()) for text, about in found.items()]
    return result + [Warning(text, ()) for text in _of_all(methods)]


def _of_method(method: Method) -> Iterator[str]:
    guessing = [run for run in method.runs if _guesses(run)]
    if len(guessing) == 1:
        accuracy = percent(guessing[0].summary["final_accuracy"])
        yield f"{guessing[0].path} ended with an accuracy of {accuracy}, no better than guessing."
    elif guessing:
        of_all = f"{len(guessing)} of {count_of(len(method.runs), 'run')}"
        yield f"{of_all} ended no better than guessing, {guessing[0].path} the first of them."
    for run in method.runs:
        yield from _unfinished(run)
        yield from _diverged(run)
        yield from _one_class(run)
        yield from _events(run)
    for run in method.repeats:
        yield f"{run.path} has the seeds of another run of the same method: it is a repeat, and not counted again."


def _events(run: RunRecord) -> Iterator[str]:
    """Yield the run's events; equal ones of several rounds are one, with their number."""
    rounds: dict[tuple[str, str], list[Any]] = {}
    for event in run.events:
        kind, message = str(event.get("event")), str(event.get("message") or "")
        if kind != "warning":
            rounds.setdefault((kind, message), []).append(event.get("round", "?"))
        elif message:
            yield f"{message.rstrip('.')}."
    for (kind, message), which in rounds.items():
        several = f"{len(which)} times, first in " if len(which) > 1 else ""
        yield f"{several}round {which[0]}, {kind}: {message}"


def _unfinished(run: RunRecord) -> Iterator[str]:
    if not run.finished:
        total = run.recipe.get("rounds", "?")
        yield (
            f"{run.path} is still going or was stopped: what is shown is its first {run.rounds_done} of {total} "
            "rounds, and it does not compete."
        )


def _diverged(run: RunRecord) -> Iterator[str]:
    if run.diverged:
        yield f"{run.path} diverged: in round {run.diverged} the training loss was not a number."


def _guesses(run: RunRecord) -> bool:
    accuracy, classes = run.summary.get("final_accuracy"), run.card.get("classes")
    return is_number(accuracy) and is_number(classes) and accuracy <= 1.2 / classes


def _one_class(run: RunRecord) -> Iterator[str]:
    count = run.card.get("one_class_clients", {}).get("count", 0)
    said = any("one class" in str(event.get("message")) for event in run.events)  # the run's own words are better
    if count and not said:
        of_all = f"{count:,} of {count_of(run.card['clients'], 'client')}"
        yield f"{of_all} {'has' if count == 1 else 'have'} one class only."


def _few_samples(methods: list[Method]) -> Iterator[str]:
    """Yield warnings if the 95 % interval of an accuracy, from the sample count alone, is wider than ± `CLAIM`."""
    widest: dict[tuple[int, float], float] = {}
    for run in (run for method in methods for run in method.runs):
        samples = run.card.get("samples", {}).get("validation")
        _, values = run.curve("val_accuracy")
        if is_number(samples) and samples > 0 and len(values):
            p = min(max(float(values[-1]), 0.05), 0.95)
            key = int(samples), float(run.card.get("validation_size", {}).get("median", 0))
            widest[key] = max(widest.get(key, 0), 1.96 * math.sqrt(p * (1 - p) / samples))
    for (samples, each), half in widest.items():
        if half > CLAIM:
            yield (
                f"Too few validation samples for a 1 % claim: with {samples:,} in all, an accuracy on them is "
                f"known to ±{in_hundred(half)} points; with about {each:.0f} a client, a single F[i, k] is coarse."
            )


def _made_of_other_things(methods: list[Method]) -> Iterator[str]:
    """Yield a warning for any two methods whose recipes differ only in seeds, but whose origins differ."""
    for at, method in enumerate(methods):
        for other in methods[:at]:
            if recipe_key(method.recipe) == recipe_key(other.recipe):
                first, second = flatten(origin_key(other.runs[0])), flatten(origin_key(method.runs[0]))
                keys = dict.fromkeys([*differing_keys(first, second), *differing_keys(second, first)])
                what = join_words(dict.fromkeys(key.partition(".")[0] for key in keys))
                both = f"{other.label} and {method.label}"
                yield f"{both} have the same recipe but not the same {what}: two methods."


def _of_all(methods: list[Method]) -> Iterator[str]:
    yield from _few_samples(methods)
    rivals = [method for method in methods if not method.bound]
    if len(rivals) > 1 and all(len(method.runs) == 1 for method in rivals):
        yield "One seed each: part of a difference between methods may be chance."
    yield from _made_of_other_things(methods)
    for block in blocks(methods):
        if len(block) > 1 and not same_seeds(block):
            yield f"The seeds of {join_words(method.label for method in block)} are not the same."
