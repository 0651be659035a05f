"""The headline and the tiles of the page: the result, with the difference first."""

from __future__ import annotations

from dataclasses import dataclass

from fedrecall.measure.metrics import metric_of
from fedrecall.report.comparison import Method, blocks, competitors
from fedrecall.report.intervals import distinguishable, paired_interval
from fedrecall.report.wording import count_of, in_hundred, percent, points, points_range, rounded_share

Pair = tuple[Method, Method]


@dataclass(frozen=True)
class Headline:
    """The difference in a few words (empty if nothing is compared), and a sentence."""

    lead: str
    sentence: str


@dataclass(frozen=True)
class TileValue:
    method: Method
    text: str
    better: bool = False


@dataclass(frozen=True)
class Tile:
    """One number for each method in large type, with a hint on which direction is better."""

    title: str
    key: str
    values: list[TileValue]
    hint: str


NOT_WORSE = (
    "Less learned is not worse: training that forgets less of the others' data also bends less to its own, and "
    "what counts is the accuracy of the averaged model."
)


def headline(methods: list[Method]) -> Headline:
    """Return a comparison with cross-entropy if methods are comparable, else a ranking or a description."""
    pairs = comparable_pairs(methods)
    if len(pairs) == 1:
        return Headline(_lead(*pairs[0]), _comparison(*pairs[0]))
    if pairs:
        return _comparisons(pairs)
    if len(methods) == 1:
        return Headline("", _alone(methods[0]))
    ranked = competitors(methods) if len(blocks(methods)) == 1 else []
    if len(ranked) > 1:
        return _ranking(ranked)
    return Headline("", f"{len(methods)} methods or settings, side by side where they compare like for like.")


def comparable_pairs(methods: list[Method]) -> list[Pair]:
    """Return for each setting cross-entropy and the best rival with the same algorithm.

    Only the first algorithm with a rival counts. Methods with unfinished runs do not compete.
    """
    pairs = []
    for block in blocks(methods):
        for plain in block:
            if plain.recipe["objective"]["name"] != "cross_entropy" or plain.bound or not plain.finished:
                continue
            rivals = [m for m in block if m.recipe["algorithm"] == plain.recipe["algorithm"] and m is not plain]
            rivals = [m for m in rivals if m.finished and _both(plain, m)]
            if rivals:
                pairs.append((plain, max(rivals, key=_merit)))
                break
    return pairs


def _both(plain: Method, rival: Method) -> bool:
    """Whether both have final accuracies or both have forgetting."""
    return any(plain.values(key) and rival.values(key) for key in ("final_accuracy", "forgetting"))


def _merit(method: Method) -> tuple[bool, float]:
    """Return the sort key of rivals: the final accuracy, or less forgetting if nothing was tested."""
    tested = bool(method.values("final_accuracy"))
    return tested, method.mean("final_accuracy") if tested else -method.mean("forgetting")


def tiles(methods: list[Method]) -> list[Tile]:
    """Return the tiles for one or two methods; for more, none, because the table is clearer."""
    if len(methods) > 2:
        return []
    found = []
    for title, key in (
        ("final test accuracy", "final_accuracy"),
        ("forgotten on the others' data, points", "forgetting"),
        ("learned on its own data, points", "learned"),
    ):
        shown = [method for method in methods if method.values(key)]
        if shown:
            text = percent if key == "final_accuracy" else points
            better = _better(shown, key)
            values = [TileValue(method, text(method.mean(key)), method is better) for method in shown]
            found.append(Tile(title, key, values, _hint(key) if len(shown) > 1 else ""))
    return found


def _hint(key: str) -> str:
    return NOT_WORSE if key == "learned" else f"{metric_of(key).better} is better"


def _better(methods: list[Method], key: str) -> Method | None:
    """Return the better one of two methods that can be told apart; None for `learned`, see `NOT_WORSE`."""
    direction = metric_of(key).better
    if len(methods) != 2 or key == "learned" or direction is None:
        return None
    first, second = methods
    # A single seed does not tell, however large the difference.
    if paired_interval(first, second, key) is None or not distinguishable(first, second, key):
        return None
    ranked = sorted(methods, key=lambda method: method.mean(key))
    return ranked[-1] if direction == "higher" else ranked[0]


def _lead(plain: Method, rival: Method) -> str:
    """Return the lead, as in `WSM: +8.6 points; forgetting 9.8 → 2.2`."""
    parts = []
    if plain.values("final_accuracy") and rival.values("final_accuracy"):
        parts.append(f"{points(_gap(plain, rival))} points")
    if plain.values("forgetting") and rival.values("forgetting"):
        parts.append(f"forgetting {_cost(plain)} → {_cost(rival)}")
    return f"{_method_name(rival)}: {'; '.join(parts)}"


def _method_name(method: Method) -> str:
    return method.titles.of("objective", method.recipe["objective"]) or method.short


def _gap(plain: Method, rival: Method) -> float:
    return rival.mean("final_accuracy") - plain.mean("final_accuracy")


def _comparison(plain: Method, rival: Method) -> str:
    parts = []
    if plain.values("final_accuracy") and rival.values("final_accuracy"):
        parts.append(
            f"{rival.label} ends at {percent(rival.mean('final_accuracy'))} test accuracy, {plain.label} with "
            f"cross-entropy at {percent(plain.mean('final_accuracy'))}{_doubt(plain, rival)}"
        )
    if plain.values("forgetting") and rival.values("forgetting"):
        cost = (
            f"a client's training {_costs(plain)} of accuracy with cross-entropy and "
            f"{_costs(rival, after=plain)} with {_method_name(rival)}"
        )
        if plain.values("learned") and rival.values("learned"):
            cost += f", while it {_gain_words(plain)} and {_gain_words(rival, after=plain)} on its own data"
        parts.append(cost)
    sentence = "; ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _doubt(plain: Method, rival: Method) -> str:
    """Return the interval of the difference over the seeds, or a remark that it may be chance."""
    found = paired_interval(rival, plain, "final_accuracy")
    if found is not None:
        shared = len(set(rival.by_seeds("final_accuracy")) & set(plain.by_seeds("final_accuracy")))
        zero = "" if found[0] > 0 or found[1] < 0 else ", which includes zero"
        return f" (95 % interval over {shared} seeds: {points_range(found)} points{zero})"
    return "" if distinguishable(rival, plain, "final_accuracy") else ", a difference that may be chance"


def _comparisons(pairs: list[Pair]) -> Headline:
    """Return in how many settings the rival is better, and the smallest and largest differences."""
    tested = [pair for pair in pairs if all(method.values("final_accuracy") for method in pair)]
    probed = [pair for pair in pairs if all(method.values("forgetting") for method in pair)]
    names = " or ".join(dict.fromkeys(rival.short for _, rival in pairs))
    bases = " or ".join(dict.fromkeys(plain.short for plain, _ in pairs))
    lead, parts = "", []
    if tested:
        gaps = [_gap(*pair) for pair in tested]
        least, most = points(min(gaps)), points(max(gaps))
        higher = sum(gap > 0 for gap in gaps)
        lead = f"{' or '.join(dict.fromkeys(_method_name(rival) for _, rival in tested))}: {least} to {most} points"
        parts.append(
            f"ends higher than {bases} with cross-entropy in {higher} of {len(tested)} settings, by {least} to "
            f"{most} points of accuracy"
        )
    if probed:
        less = sum(rival.mean("forgetting") < plain.mean("forgetting") for plain, rival in probed)
        parts.append(f"forgets less{'' if tested else f' than {bases}'} in {less} of {len(probed)}")
    return Headline(lead, f"{names} {', and '.join(parts)}.")


def _ranking(ranked: list[Method]) -> Headline:
    """Return the first of comparable methods, and whether its lead over the second may be chance."""
    first, second, *others = ranked
    gap = points(_gap(second, first))
    if distinguishable(first, second, "final_accuracy"):
        whom = f"{len(ranked) - 1} others" if others else second.label
        sentence = f"{first.label} is ahead of {whom}: {_alone(first)}"
    else:
        sentence = (
            f"{first.label} has the highest final accuracy of {len(ranked)} methods, {gap} points above "
            f"{second.label}, which may be chance: {_alone(first)}"
        )
    return Headline(f"{first.label}: {gap} points over {second.label}", sentence)


def _cost(method: Method) -> str:
    return in_hundred(method.mean("forgetting"))


def _costs(method: Method, after: Method | None = None) -> str:
    """Return `costs the others 9.8 points`, or `brings the others 0.7 points`; after a method with the same verb,
    the number alone."""
    brings = rounded_share(method.mean("forgetting")) < 0
    shown = in_hundred(abs(method.mean("forgetting")))
    if after is None:
        return f"{'brings' if brings else 'costs'} the others {shown} points"
    same = brings == (rounded_share(after.mean("forgetting")) < 0)
    return shown if same else f"{'brings' if brings else 'costs'} them {shown}"


def _gain_words(method: Method, after: Method | None = None) -> str:
    """Return `gains +6.1`, or `loses 0.7`; after a method with the same verb, the number alone."""
    lost = rounded_share(method.mean("learned")) < 0
    shown = in_hundred(-method.mean("learned")) if lost else points(method.mean("learned"))
    if after is not None and lost == (rounded_share(after.mean("learned")) < 0):
        return shown
    return f"{'loses' if lost else 'gains'} {shown}"


def _alone(method: Method) -> str:
    parts = []
    if method.finished and method.values("final_accuracy"):
        parts.append(f"{method.label} ends at {percent(method.mean('final_accuracy'))} test accuracy")
    else:
        parts.append(f"{method.label}, {count_of(method.runs[0].rounds_done, 'round')}")
    if method.values("forgetting") and method.values("learned"):
        parts.append(f"a client's training {_costs(method)} of accuracy and {_gain_words(method)} on its own data")
    return f"{'; '.join(parts)}."
