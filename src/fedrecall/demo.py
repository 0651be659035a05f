"""The demo: the same recipe with cross-entropy and with WSM, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedrecall.config import Recipe
from fedrecall.progress import ProgressLine
from fedrecall.record import RunFolder
from fedrecall.report.page import write_report
from fedrecall.run import load_federation, recipe_experiment
from fedrecall.running import carry_out

TITLES = {"cross_entropy": "FedAvg", "wsm": "FedAvg + WSM"}


def run_demo(recipe: Recipe, out: Path | None, *, quiet: bool) -> tuple[dict[str, dict[str, Any]], Path]:
    """Both runs, with the same partition, initial weights and sampled clients; their summaries and the report."""
    federation = load_federation(recipe)
    recipes = {name: Recipe(**{**recipe.tree(), "objective": name}) for name in TITLES}
    experiments = {name: recipe_experiment(chosen, federation) for name, chosen in recipes.items()}
    parent = RunFolder.create(out) if out else RunFolder.create_new(Path("runs"), "demo")
    summaries = {}
    for name, title in TITLES.items():
        with ProgressLine(title, recipe.rounds, quiet=quiet) as progress:
            summaries[title] = carry_out(experiments[name], RunFolder.create(parent.path / name), progress)
    report = write_report([parent.path / name for name in TITLES], parent.path / "report.html")
    return summaries, report
