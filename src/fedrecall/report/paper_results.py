"""The accuracies that the paper reports, for the settings in which it reports them."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fedrecall.report.wording import number

PLAIN_WSM = {"tau": 1.0, "smoothing": 0.0, "prior": "uniform"}
OBJECTIVES = {"cross_entropy": "ce", "wsm": "wsm"}
SEEDS = 3  # runs of each setting, according to the paper's text


@dataclass(frozen=True)
class Published:
    """A published accuracy: mean and standard deviation over a number of seeds."""

    accuracy: float
    sd: float
    seeds: int
    remark: str = ""  # how the settings differ, or may differ, from ours
    table: str = ""  # of the paper


@cache
def rows() -> list[dict[str, str]]:
    text = (resources.files("fedrecall.report") / "paper_results.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def published(recipe: dict[str, Any]) -> Published | None:
    """Return the paper's number for this data set, model, norm, method, rate and participation, or None."""
    objective = OBJECTIVES.get(recipe["objective"]["name"])
    options = {key: value for key, value in recipe["objective"].items() if key != "name" and value}
    if objective == "wsm" and any(options.get(key, value) != value for key, value in PLAIN_WSM.items()):
        return None
    if objective is None or set(options) - set(PLAIN_WSM):
        return None
    for row in rows():
        if objective == row["objective"] and _same_setting(recipe, row):
            accuracy, sd = float(row["accuracy"]), float(row["std"])
            return Published(accuracy, sd, SEEDS, _differences(recipe, row), row["table"])
    return None


def _same_setting(recipe: dict[str, Any], row: dict[str, str]) -> bool:
    partition, local = recipe["partition"], recipe.get("local", {})
    clients = int(partition.get("clients") or 0)
    share: Any = recipe.get("participation") or int(recipe.get("clients_per_round") or 0) / max(clients, 1)
    optimiser = local.get("optimiser", {"name": "sgd"})["name"]
    if isinstance(share, dict) or recipe.get("updates") or optimiser != "sgd":
        return False
    return (
        recipe["data"]["name"] == row["dataset"]
        and recipe["model"]["name"] == row["model"]
        and row["norm"] in (recipe["model"].get("norm", "none"), "best")
        and recipe["algorithm"]["name"] == row["algorithm"]
        and partition["name"] == "dirichlet"
        and float(partition.get("alpha", 0)) == 0.1
        and clients == int(row["clients"])
        and round(share * clients) == round(float(row["fraction"]) * clients)
        and (not row["lr"] or float(row["lr"]) == local.get("lr"))
        and not _is_shorter(recipe, row)
    )


def _is_shorter(recipe: dict[str, Any], row: dict[str, str]) -> bool:
    """Return whether a run trains less than the published ones: a try-out, which is not set beside them."""
    return (recipe.get("rounds") or 0) < int(row["rounds"]) or (recipe.get("local", {}).get("epochs") or 3) < 3


def _differences(recipe: dict[str, Any], row: dict[str, str]) -> str:
    local, found = recipe.get("local", {}), []
    if recipe.get("rounds") != int(row["rounds"]):
        found.append(f"{number(recipe.get('rounds'))} rounds instead of {number(int(row['rounds']))}")
    if local.get("epochs") != 3:
        found.append("not 3 local epochs")
    if local.get("batch_size") != 64:
        found.append(f"batches of {local.get('batch_size')} instead of 64")
    if row["norm"] == "best":
        found.append("the paper does not say with which norm")
    if not row["lr"]:
        found.append("the paper does not say with which rate")
    return "; ".join(found)
