"""The page's first sentence: what came out, with the numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrecall.report.comparison import Method, best, blocks
from fedrecall.report.wording import MINUS, percent, points


@dataclass(frozen=True)
class Tile:
    """One number for each of the methods, large."""

    title: str
    key: str
    values: list[tuple[int, str, str]]  # the method's place on the page, its label, and the number


def headline(methods: list[Method]) -> str:
    """A comparison with cross-entropy where there is one like for like; else what there is."""
    pairs = comparable_pairs(methods)
    if pairs:
        return _comparison(*pairs[0]) if len(pairs) == 1 else _comparisons(pairs)
    if len(methods) == 1:
        return _alone(methods[0])
    leader = best(methods) if len(blocks(methods)) == 1 else None
    if leader:
        return f"{leader.label} is ahead of {len(methods) - 1} others: {_alone(leader)}"
    return f"{len(methods)} methods or settings, side by side where they compare like for like."


def comparable_pairs(methods: list[Method]) -> list[tuple[Method, Method]]:
    """In each setting, cross-entropy and the best rival with its algorithm; of several algorithms the first."""
    pairs = []
    for block in blocks(methods):
        for plain in block:
            if plain.recipe["objective"]["name"] != "cross_entropy" or plain.bound:
                continue
            rivals = [m for m in block if m.recipe["algorithm"] == plain.recipe["algorithm"] and m is not plain]
            rivals = [m for m in rivals if m.values("final_accuracy")]
            if rivals and plain.values("final_accuracy"):
                pairs.append((plain, max(rivals, key=lambda method: mean(method, "final_accuracy"))))
                break
    return pairs


def tiles(methods: list[Method]) -> list[Tile]:
    """For one or two methods: what matters, at a glance. With more, the table is clearer."""
    if len(methods) > 2:
        return []
    found = []
    for title, key, signed in (
        ("final test accuracy", "final_accuracy", False),
        ("forgotten on the others' data, points", "forgetting", True),
        ("learned on its own data, points", "learned", True),
    ):
        values = [
            (place, method.label, points(mean(method, key)) if signed else percent(mean(method, key)))
            for place, method in enumerate(methods)
            if method.values(key)
        ]
        if values:
            found.append(Tile(title, key, values))
    return found


def mean(method: Method, key: str) -> float:
    return float(np.mean(method.values(key)))


def _comparison(plain: Method, rival: Method) -> str:
    a, b = mean(plain, "final_accuracy"), mean(rival, "final_accuracy")
    sentence = (
        f"{rival.label} ends at {percent(b)} test accuracy, {plain.label} with cross-entropy at {percent(a)}"
    )
    if plain.values("forgetting") and rival.values("forgetting"):
        sentence += (
            f"; a client's training costs the others {_cost(plain)} points of accuracy with cross-entropy and "
            f"{_cost(rival)} with {rival.short.partition(' + ')[2] or rival.short}"
        )
    if plain.values("learned") and rival.values("learned"):
        gains = [points(mean(method, "learned")) for method in (plain, rival)]
        sentence += f", while it gains {gains[0]} and {gains[1]} on its own data"
    return f"{sentence}."


def _comparisons(pairs: list[tuple[Method, Method]]) -> str:
    """Over several settings: in how many the rival is ahead, and by how much at the least and at the most."""
    ahead = [mean(rival, "final_accuracy") - mean(plain, "final_accuracy") for plain, rival in pairs]
    names = " or ".join(dict.fromkeys(rival.short for _, rival in pairs))
    bases = " or ".join(dict.fromkeys(plain.short for plain, _ in pairs))
    sentence = (
        f"{names} ends ahead of {bases} with cross-entropy in {sum(gap > 0 for gap in ahead)} of {len(pairs)} "
        f"settings, by {points(min(ahead))} to {points(max(ahead))} points of accuracy"
    )
    probed = [pair for pair in pairs if all(method.values("forgetting") for method in pair)]
    if probed:
        less = sum(mean(rival, "forgetting") < mean(plain, "forgetting") for plain, rival in probed)
        sentence += f", and forgets less in {less} of {len(probed)}"
    return f"{sentence}."


def _cost(method: Method) -> str:
    return f"{100 * mean(method, 'forgetting'):.1f}".replace("-", MINUS)


def _alone(method: Method) -> str:
    parts = []
    if method.values("final_accuracy"):
        parts.append(f"{method.label} ends at {percent(mean(method, 'final_accuracy'))} test accuracy")
    else:
        parts.append(f"{method.label}, {method.runs[0].rounds_done} rounds")
    if method.values("forgetting") and method.values("learned"):
        parts.append(
            f"a client's training costs the others {_cost(method)} points of accuracy and gains "
            f"{points(mean(method, 'learned'))} on its own data"
        )
    return f"{'; '.join(parts)}."
