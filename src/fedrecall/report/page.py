"""The page about one or more runs: a table and the curves, in one file that works offline."""

from __future__ import annotations

import html
import io
import json
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from fedrecall.errors import InputError
from fedrecall.record import read_lines

# Okabe and Ito's colours, which colour-blind readers can tell apart; the dashes tell them apart in grey.
COLOURS = ["#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
DASHES = ["-", "--", "-.", ":"]

STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .4rem .6rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; }
figure { margin: 1.5rem 0; }
svg { width: 100%; height: auto; background: #fff; border-radius: .4rem; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid var(--line); border-radius: .4rem; font-size: .85rem; }
.note { border-left: .25rem solid #E69F00; padding-left: .8rem; }
"""


def write_report(runs: list[Path], out: Path) -> Path:
    """Write the page to `out`."""
    loaded = [load(path) for path in runs]
    name_apart(loaded)
    body = [
        "<h1>fedrecall report</h1>",
        table(loaded),
        *warnings(loaded),
        figure(loaded, "val_accuracy", "accuracy on the pooled validation data", "Accuracy"),
        figure(loaded, "forgetting", "mean forgetting F[i, k], k ≠ i", "Forgetting"),
        *[recipe(run) for run in loaded],
    ]
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>fedrecall report</title><style>{STYLE}</style></head>
<body>
{chr(10).join(part for part in body if part)}
</body></html>
"""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"the report {str(out)!r} cannot be written: {error.strerror}") from None
    return out


def load(path: Path) -> dict[str, Any]:
    """What the page needs of a run's folder."""
    try:
        settings = yaml.safe_load((path / "recipe.yaml").read_text(encoding="utf-8"))
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{str(path)!r} is not a finished run: {Path(error.filename).name} is missing") from None
    return {
        "name": f"{settings['algorithm']['name']} + {settings['objective']['name']}",
        "folder": path.name,
        "recipe": settings,
        "summary": summary,
        "metrics": read_lines(path / "metrics.jsonl"),
        "events": read_lines(path / "events.jsonl"),
    }


def name_apart(runs: list[dict[str, Any]]) -> None:
    """Runs of the same method are told apart by their folders."""
    names = [run["name"] for run in runs]
    for run, name in zip(runs, names):
        if names.count(name) > 1:
            run["name"] = f"{name} ({run['folder']})"


def table(runs: list[dict[str, Any]]) -> str:
    columns = [
        ("final accuracy", "final_accuracy"),
        ("over rounds", "final_accuracy_rounds"),
        ("forgetting", "forgetting"),
        ("learned", "learned"),
        ("seconds", "seconds"),
    ]
    head = "".join(f"<th>{title}</th>" for title, _ in columns)
    rows = "".join(
        f"<tr><td>{html.escape(run['name'])}</td>"
        + "".join(f"<td>{number(run['summary'].get(key))}</td>" for _, key in columns)
        + "</tr>"
        for run in runs
    )
    return (
        f'<div class="wide"><table><tr><th>method</th>{head}</tr>{rows}</table></div>'
        "<p>Final accuracy: mean test accuracy of the global model over the last rounds. Forgetting: how much "
        "accuracy a client's local training costs on the other clients' validation data, mean over probed rounds. "
        "Learned: what it gains on the client's own.</p>"
    )


def number(value: Any) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def warnings(runs: list[dict[str, Any]]) -> list[str]:
    return [
        f'<p class="note"><b>{html.escape(run["name"])}</b>: {html.escape(event["message"])}</p>'
        for run in runs
        for event in run["events"]
        if event["event"] == "warning"
    ]


def curves(runs: list[dict[str, Any]], key: str, label: str) -> Figure | None:
    """A metric over the rounds, a line for each run; None if no run has it."""
    drawn = Figure(figsize=(8, 4), layout="constrained")
    axes = drawn.subplots()
    for position, run in enumerate(runs):
        points = [(line["round"], line[key]) for line in run["metrics"] if line.get(key) is not None]
        if points:
            rounds, values = zip(*points)
            name = run["name"].replace("$", r"\$")
            axes.plot(
                rounds, values, label=name, lw=2, color=in_turn(COLOURS, position), ls=in_turn(DASHES, position)
            )
    if not axes.lines:
        return None
    axes.set_xlabel("round")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return drawn


def in_turn(choices: list[str], position: int) -> str:
    return choices[position % len(choices)]


def figure(runs: list[dict[str, Any]], key: str, label: str, title: str) -> str:
    """Curves as an inline SVG."""
    drawn = curves(runs, key, label)
    if drawn is None:
        return ""
    text = io.StringIO()
    drawn.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return f"<figure><h2>{title}</h2>{svg[svg.index('<svg') :]}</figure>"


def recipe(run: dict[str, Any]) -> str:
    text = yaml.safe_dump(run["recipe"], sort_keys=False, allow_unicode=True)
    return (
        f"<details><summary>Recipe of {html.escape(run['name'])}</summary><pre>{html.escape(text)}</pre></details>"
    )
