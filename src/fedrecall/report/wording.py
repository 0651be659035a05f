"""Settings and numbers in words a reader knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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
        return ", ".join(f"{key} {in_words(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(in_words, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    return str(value).replace("_", " ") if isinstance(value, str) and ":" not in value else str(value)


def percent(value: float) -> str:
    return f"{100 * value:.1f}\u00a0%"


def points(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", MINUS)


def count_of(count: int, thing: str) -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def join_words(words: Iterable[str]) -> str:
    """`a, b and c`."""
    *first, last = list(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def plain(text: object) -> str:
    """Text in which a dollar is a dollar, not the start of a formula in matplotlib."""
    return str(text).replace("$", r"\$")


def settings(recipe: Mapping[str, Any], titles: Titles) -> list[tuple[str, str]]:
    """The settings of a run, a line each: a title, and a sentence."""
    local, partition = recipe.get("local", {}), recipe["partition"]
    lines = [
        ("Data", titles.of("data", recipe["data"])),
        ("Partition", _partition(partition)),
        ("Model", _options(titles.of("model", recipe["model"]), recipe["model"])),
        ("Batch norm", _batch_norm(recipe)),
        ("Rounds", f"{number(recipe['rounds'])}, {_participation(recipe)}" if "rounds" in recipe else ""),
        ("A client trains", _local(local)),
        ("Seeds", f"{recipe.get('seed', '?')} for the run, {partition.get('seed', '?')} for the partition"),
    ]
    return [(title, text) for title, text in lines if text]


def _options(name: str, chosen: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in chosen.items() if key not in ("name", "class") and value is not None}
    return f"{name} ({in_words(rest)})" if rest else name


def _partition(chosen: Mapping[str, Any]) -> str:
    if chosen["name"] == "python":
        return "given in Python"
    parts = [in_words(chosen["name"])]
    if "alpha" in chosen:
        parts.append(f"alpha {number(chosen['alpha'])}")
    if chosen.get("clients"):
        parts.append(count_of(int(chosen["clients"]), "client"))
    if chosen.get("validation"):
        parts.append(f"{number(100 * chosen['validation'])} % of each client's samples for validation")
    if chosen.get("held_out"):
        parts.append(f"{count_of(int(chosen['held_out']), 'client')} held out")
    return ", ".join(parts)


def _batch_norm(recipe: Mapping[str, Any]) -> str:
    without_norm = recipe["model"]["name"] in ("lenet", "mlp") or recipe["model"].get("norm") in ("group", "none")
    if without_norm:
        return "none in the model"
    if recipe.get("batch_norm", "average") == "local":
        return "statistics stay with the client (local)"
    return "statistics are averaged, weighted by samples (average); F uses each client's own"


def _participation(recipe: Mapping[str, Any]) -> str:
    if recipe.get("clients_per_round"):
        return f"{count_of(int(recipe['clients_per_round']), 'client')} in each"
    return (
        f"{number(100 * recipe['participation'])} % of the clients in each" if recipe.get("participation") else ""
    )


def _local(local: Mapping[str, Any]) -> str:
    parts = [count_of(int(local[key]), key.removesuffix("s")) for key in ("epochs", "steps") if local.get(key)]
    for key, name in (("batch_size", "batches of"), ("lr", "rate"), ("momentum", "momentum")):
        if local.get(key):
            parts.append(f"{name} {number(local[key])}")
    if local.get("weight_decay"):
        parts.append(f"weight decay {local['weight_decay']:g}")
    schedule = local.get("schedule") or {}
    if schedule.get("name", "constant") != "constant" or schedule.get("warmup"):
        parts.append(f"schedule {in_words(schedule)}")
    return ", ".join(parts)
