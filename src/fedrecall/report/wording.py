"""Settings and numbers as text for readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from fedrecall.config.titles import Titles
from fedrecall.display import count_of as count_of
from fedrecall.display import printable_lines

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
    """Return whole numbers in full, others with four significant digits, other values in words."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value_text(value)
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:.4g}"


def value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{str(key).replace('_', ' ')} {value_text(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    return str(value).replace("_", " ") if isinstance(value, str) and ":" not in value else str(value)


def rounded_share(value: float) -> float:
    """Return a share in percent or points, rounded as it is shown.

    >>> rounded_share(0.12345), rounded_share(-0.0004)
    (12.3, 0.0)
    """
    return round(100 * value, 1) + 0.0  # the sum turns -0.0 into 0.0


def in_hundred(value: float, *, signed: bool = False) -> str:
    """Return a share in percent or points as text, without the unit."""
    shown = rounded_share(value)
    return f"{shown:+.1f}".replace("-", MINUS) if signed else f"{shown:.1f}".replace("-", MINUS)


def with_deviation(mean: float, deviation: float | None, *, signed: bool = False) -> str:
    """Return shares as `85.8 ± 0.3`, or the mean alone without a deviation."""
    text = in_hundred(mean, signed=signed)
    return text if deviation is None else f"{text} ± {in_hundred(deviation)}"


def percent(value: float) -> str:
    return f"{in_hundred(value)}\u00a0%"


def points(value: float) -> str:
    return in_hundred(value, signed=True)


def points_range(found: tuple[float, float] | None) -> str:
    """Return an interval as `+3.0 to +13.0`, or a hyphen if there is none."""
    return f"{points(found[0])} to {points(found[1])}" if found else "-"


def join_words(words: Iterable[str]) -> str:
    """Return the words as `a, b and c`."""
    *first, last = list(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def figure_text(text: object) -> str:
    """Return printable text for matplotlib, with dollars escaped, which would start a formula."""
    return printable_lines(str(text)).replace("$", r"\$")


def thing_name(section: str, chosen: Mapping[str, Any], titles: Titles) -> str:
    """Return the name of a recipe's data or model: its class or file if it is the user's own, else its title."""
    if chosen.get("class"):
        return str(chosen["class"])
    name = str(chosen["name"])
    if isinstance(chosen.get("path"), str) and ":" not in name:
        # On the Hugging Face Hub, the whole path is the name.
        return str(chosen["path"]) if name == "hf" else PurePath(chosen["path"]).name or str(chosen["path"])
    return name if ":" in name else titles.of(section, chosen)
