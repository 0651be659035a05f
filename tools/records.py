"""Keep the small records of a study's finished runs in one file, and make run folders of them again.

    python tools/records.py pack runs/reproduce/table5 results/table5/runs.jsonl
    python tools/records.py unpack results/table5/runs.jsonl runs/reproduce/table5

A record has the recipe, the environment, the summary and some lines of metrics.jsonl: enough for the study's table
and for `fedrecall reproduce` to count the run as done, without models, checkpoints and metrics by client.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

EVERY = 200  # rounds between two whole lines of metrics
LAST = 100  # rounds at the end whose accuracies are kept
KEPT = ("round", "train_loss", "val_accuracy", "test_accuracy")


def thinned(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep whole lines at some rounds, and the accuracies of the last ones."""
    last = lines[-1]["round"]
    whole = {line["round"] for line in lines if line["round"] % EVERY == 0 or "forgetting" in line} | {last}
    return [
        line if line["round"] in whole else {key: line[key] for key in KEPT if key in line}
        for line in lines
        if line["round"] in whole or line["round"] > last - LAST
    ]


def pack(study: Path, out: Path) -> int:
    """Write a line for every finished run of a study, beside those that `out` has of runs which are not there."""
    records = {}
    if out.exists():
        records = {record["folder"]: record for record in map(json.loads, out.read_text().splitlines())}
    for summary in sorted(study.glob("runs/*/*/summary.json")):
        run, told = summary.parent, json.loads(summary.read_text())
        if told["status"] not in ("finished", "diverged"):
            continue
        folder = str(run.relative_to(study))
        if folder in records and records[folder]["summary"] == told:
            continue
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        records[folder] = {
            "folder": folder,
            "recipe": {k: v for k, v in yaml.safe_load((run / "recipe.yaml").read_text()).items() if k != "execution"},
            "environment": json.loads((run / "environment.json").read_text()),
            "origin": json.loads((run / "origin.json").read_text()),
            "summary": told,
            "metrics": thinned(lines),
        }
    out.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(records[folder], sort_keys=True) + "\n" for folder in sorted(records))
    out.write_text(text)
    shutil.copy(study / "study.yaml", out.parent / "study.yaml")
    return len(records)


def unpack(records: Path, study: Path) -> int:
    """Make a folder for every record whose run is not there."""
    made = 0
    study.mkdir(parents=True, exist_ok=True)
    if not (study / "study.yaml").exists():
        shutil.copy(records.parent / "study.yaml", study / "study.yaml")
    for record in map(json.loads, records.read_text().splitlines()):
        run = study / record["folder"]
        if (run / "summary.json").exists():
            continue
        run.mkdir(parents=True, exist_ok=True)
        (run / "recipe.yaml").write_text(yaml.safe_dump(record["recipe"], sort_keys=False))
        for name in ("environment", "origin", "summary"):
            (run / f"{name}.json").write_text(json.dumps(record[name], indent=2) + "\n")
        lines = "".join(json.dumps(line) + "\n" for line in record["metrics"])
        (run / "metrics.jsonl").write_text(lines)
        made += 1
    return made


if __name__ == "__main__":
    what, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    print({"pack": pack, "unpack": unpack}[what](source, target), "runs")
