"""Settings and numbers in words a reader knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from fedrecall.display import printable_lines
from fedrecall.titles import Titles

MINUS = "\u2212"
KEY_NAMES = {
    "partition.alpha": "alpha",
    "partition.clients": "clients",
    "local.lr": "rate",
    "local.epochs": "epochs",
    "local.steps": "steps",
    "local.batch_size": "batch",
    "local.momentum": "momentum",
    "local.weight_decay": "weight decay",
    "participation": "fraction",
    "clients_per_round": "clients a round",
    "model.name": "model",
    "model.norm": "norm",
    "data.name": "data",
    "partition.name": "partition",
    "batch_norm": "BN statistics",
    "evaluation.prior": "judging prior",
}


def number(value: Any) -> str:
    """Short, and exact where it is whole."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return in_words(value)
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:.4g}"


def in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{str(key).replace('_', ' ')} {in_words(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(in_words, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    return str(value).replace("_", " ") if isinstance(value, str) and ":" not in value else str(value)


def rounded(value: float) -> float:
    """Return a share in percent or points, as it is shown.

    >>> rounded(0.12345), rounded(-0.0004)
    (12.3, 0.0)
    """
    return round(100 * value, 1) + 0.0  # the sum makes -0.0 plain


def in_hundred(value: float, *, signed: bool = False) -> str:
    """Return a share in percent or points as text, without the unit."""
    shown = rounded(value)
    return f"{shown:+.1f}".replace("-", MINUS) if signed else f"{shown:.1f}".replace("-", MINUS)


def with_deviation(mean: float, deviation: float | None, *, signed: bool = False) -> str:
    """Return `85.8 ± 0.3` of shares, or the mean alone."""
    text = in_hundred(mean, signed=signed)
    return text if deviation is None else f"{text} ± {in_hundred(deviation)}"


def percent(value: float) -> str:
    return f"{in_hundred(value)}\u00a0%"


def points(value: float) -> str:
    return in_hundred(value, signed=True)


def points_range(found: tuple[float, float] | None) -> str:
    """Return an interval as `+3.0 to +13.0`, or a hyphen if there is none."""
    return f"{points(found[0])} to {points(found[1])}" if found else "-"


def count_of(count: int, thing: str) -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def join_words(words: Iterable[str]) -> str:
    """`a, b and c`."""
    *first, last = list(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def plain(text: object) -> str:
    """Text in which a dollar is a dollar, not the start of a formula in matplotlib; all of it can be drawn."""
    return printable_lines(str(text)).replace("$", r"\$")


def thing_name(section: str, chosen: Mapping[str, Any], titles: Titles) -> str:
    """What a recipe's data or model are called: by their file or class, where they are the user's own."""
    if chosen.get("class"):
        return str(chosen["class"])
    name = str(chosen["name"])
    if isinstance(chosen.get("path"), str) and ":" not in name:
        # A path on the Hugging Face Hub is a name.
        return str(chosen["path"]) if name == "hf" else PurePath(chosen["path"]).name or str(chosen["path"])
    return name if ":" in name else titles.of(section, chosen)
