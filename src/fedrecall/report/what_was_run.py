"""The settings of runs in words: those that all methods share, then those that differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrecall.config.titles import Titles
from fedrecall.report.comparison import Method
from fedrecall.report.wording import count_of, join_words, number, thing_name, value_text

Lines = list[tuple[str, str]]  # titles and texts


def what_was_run(methods: list[Method]) -> tuple[Lines, list[Lines]]:
    """Return the lines that all methods share, and the other lines of each method."""
    lines = [settings(method) for method in methods]
    shared = [line for line in lines[0] if all(line in other for other in lines)]
    return shared, [[line for line in own if line not in shared] for own in lines]


def settings(method: Method) -> Lines:
    """Return the settings of a method, one per line."""
    recipe, titles = method.recipe, method.titles
    lines = [
        ("Data", _data(recipe["data"], titles)),
        ("Partition", _partition(recipe["partition"])),
        ("Model", _options(thing_name("model", recipe["model"], titles), recipe["model"])),
        ("Batch norm", _batch_norm(recipe)),
        ("Algorithm", _options(titles.of("algorithm", recipe["algorithm"]), recipe["algorithm"])),
        ("Objective", _options(_objective(recipe["objective"], titles), recipe["objective"])),
        ("Rounds", _rounds(recipe)),
        ("A client trains", _local(recipe.get("local", {}))),
        (
            "Updates",
            ", then ".join(_options(value_text(stage["name"]), stage) for stage in recipe.get("updates", ())),
        ),
        ("Seeds", _seeds(method)),
    ]
    return [(title, text) for title, text in lines if text]


def _options(name: str, chosen: Mapping[str, Any]) -> str:
    aside = ("name", "class", "path")
    rest = {key: value for key, value in chosen.items() if key not in aside and value not in (None, {})}
    return f"{name} ({value_text(rest)})" if rest else name


def _data(chosen: Mapping[str, Any], titles: Titles) -> str:
    name, kind = thing_name("data", chosen, titles), titles.of("data", chosen)
    return name if name == kind or ":" in name else f"{name} ({value_text(kind)})"


def _objective(chosen: Mapping[str, Any], titles: Titles) -> str:
    return titles.of("objective", chosen) or "cross-entropy"


def _partition(chosen: Mapping[str, Any]) -> str:
    if chosen["name"] == "python":
        return "given in Python"
    parts = [value_text(chosen["name"])]
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
    """Return a text on batch norm; empty if the recipe does not tell whether the model has any."""
    name, norm = recipe["model"]["name"], recipe["model"].get("norm")
    if name in ("lenet", "mlp", "embedding") or (name == "resnet18" and norm in ("group", "none")):
        return "none in the model"
    if recipe.get("batch_norm", "average") == "local":
        return "statistics stay with the client (local)"
    if name == "resnet18":
        return "statistics are averaged, weighted by samples (average); F uses each client's own"
    return ""


def _rounds(recipe: Mapping[str, Any]) -> str:
    parts = [number(recipe["rounds"]) if "rounds" in recipe else "", _participation(recipe)]
    return ", ".join(filter(None, parts))


def _participation(recipe: Mapping[str, Any]) -> str:
    if recipe.get("clients_per_round"):
        return f"{count_of(int(recipe['clients_per_round']), 'client')} in each"
    share = recipe.get("participation")
    if isinstance(share, Mapping):  # the user's own sampling
        return _options(f"clients by {share['name']}", share)
    return f"{number(100 * share)} % of the clients in each" if share else ""


def _local(local: Mapping[str, Any]) -> str:
    parts = [count_of(int(local[key]), key.removesuffix("s")) for key in ("epochs", "steps") if local.get(key)]
    for key, name in (("batch_size", "batches of"), ("lr", "rate"), ("momentum", "momentum")):
        if local.get(key):
            parts.append(f"{name} {number(local[key])}")
    if local.get("weight_decay"):
        parts.append(f"weight decay {local['weight_decay']:g}")
    optimiser = local.get("optimiser") or {"name": "sgd"}
    if local.get("clip_norm"):
        parts.append(f"gradients clipped at {number(local['clip_norm'])}")
    if optimiser["name"] != "sgd" or optimiser.get("state", "reset") != "reset":
        parts.append(f"optimiser {_options(optimiser['name'], optimiser)}")
    schedule = local.get("schedule") or {}
    if schedule.get("name", "constant") != "constant" or schedule.get("warmup"):
        parts.append(f"schedule {value_text(schedule)}")
    return ", ".join(parts)


def _seeds(method: Method) -> str:
    parts = []
    for place, what in enumerate(("run", "partition")):
        found = list(dict.fromkeys(str(run.seeds[place]) for run in method.runs if run.seeds[place] is not None))
        if found:
            parts.append(f"{join_words(found)} for the {what}{'s' if len(found) > 1 else ''}")
    return ", ".join(parts)
