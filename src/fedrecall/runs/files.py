"""The names of the files in a run's folder."""

from __future__ import annotations

from pathlib import Path

RECIPE = "recipe.yaml"
ENVIRONMENT = "environment.json"
ORIGIN = "origin.json"
METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"
CLIENTS = "clients.jsonl"
EVENTS = "events.jsonl"
CARD = "partition.json"
PARTITION = "partition.npz"
MODEL = "model.safetensors"
SUMMARY = "summary.json"
REPORT = "report.html"
LOCK = "lock"
TRACKERS = "trackers.json"  # the ids of the run at its trackers
NODES = "nodes.json"  # of a run on a federation: its name at the nodes, and their descriptions of their data

FORGETTING = "forgetting"
CHECKPOINTS = "checkpoints"
STATES = "clients"

STUDY = "study.yaml"  # in the folder of a study; its runs are two levels below `RUNS`
RUNS = "runs"

LINES = (METRICS, TIMINGS, CLIENTS, EVENTS)  # one line per round or event
DESCRIPTIONS = (ENVIRONMENT, ORIGIN, CARD, PARTITION)  # written once, before the first round


def probe_file(run: Path, round: int) -> Path:
    return run / FORGETTING / f"round-{round:05d}.npz"


def probe_files(run: Path) -> dict[int, Path]:
    """Return the files of the probed rounds, by round; other file names are ignored."""
    paths = {path.stem.removeprefix("round-"): path for path in (run / FORGETTING).glob("round-*.npz")}
    return dict(sorted((int(number), path) for number, path in paths.items() if number.isdecimal()))
