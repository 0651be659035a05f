"""Build the page about one or more runs: one file that works offline, on a phone and on a wide screen."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedrecall.config.titles import Titles
from fedrecall.errors import InputError
from fedrecall.measure.metrics import METRICS, SUMMARY, metric_of
from fedrecall.report import probe_views as matrices
from fedrecall.report.ablation import ablations
from fedrecall.report.client_names import client_names, client_title, short_client_name
from fedrecall.report.comparison import Method, group_methods
from fedrecall.report.curves import measured_metrics
from fedrecall.report.diagnosis import saved_sentences
from fedrecall.report.headline import NOT_WORSE, headline, tiles
from fedrecall.report.page import charts
from fedrecall.report.paper_results import published
from fedrecall.report.table_texts import result_csv, result_latex
from fedrecall.report.tables import TABLE_WORDS, card_lines, final_rounds, mean_and_deviation, result_table
from fedrecall.report.warnings import Warning, warnings
from fedrecall.report.what_was_run import what_was_run
from fedrecall.report.wording import join_words, thing_name
from fedrecall.runs.reader import RunRecord, find_runs, load_run
from fedrecall.storage.atomic_files import remove_dead_versions, write_text
from fedrecall.version import __version__

# The first metrics in the page's chooser, in order; others follow.
FIRST = ("val_accuracy", "test_accuracy", "val_accuracy_mean", "val_accuracy_worst", "val_accuracy_macro")
DASH_ARRAYS = {"solid": "", "dash": "7 4", "dot": "2 3", "dashdot": "8 3 2 3"}


def write_report_page(runs: list[Path], out: Path, titles: Titles) -> Path:
    """Write the page about the runs in these folders to `out`."""
    return write_page(group_methods([load_run(path) for path in find_runs(runs)], titles), out)


def write_page(methods: list[Method], out: Path) -> Path:
    text = page(methods)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the report {str(out)!r} cannot be written: {error.strerror}") from None
    remove_dead_versions(out)
    write_text(out, text)
    return out


def page(methods: list[Method]) -> str:
    """Return the page's HTML. Jinja escapes every value except the style, the scripts and their data."""
    from plotly.offline import get_plotlyjs

    library, script = get_plotlyjs(), _file("page.js")
    data = page_data(methods)
    table, found = result_table(methods), warnings(methods)
    shared, own = what_was_run(methods)
    data["copies"] = {"csv": result_csv(table), "latex": result_latex(table)}
    environment = Environment(
        loader=PackageLoader("fedrecall.report.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.globals["dash_arrays"] = DASH_ARRAYS
    return environment.get_template("page.html").render(
        title=title(methods),
        style=Markup(_file("page.css")),
        library=Markup(library),
        script=Markup(script),
        hashes=[content_hash(text) for text in (library, script)],
        data=Markup(for_script(data)),
        version=__version__,
        headline=headline(methods),
        tiles=tiles(methods),
        not_worse=NOT_WORSE,
        diagnosis=diagnosis(methods, found),
        words=definitions(),
        methods=methods,
        table=table,
        warnings=found,
        probed=bool(data["heatmaps"]),
        metrics=data["metrics"],
        ablations=data["ablations"],
        figures=data["figures"],
        shared=shared,
        own=own,
        partitions=partitions(methods),
        card_lines=card_lines,
        commands=commands(methods),
        recipe_text=recipe_text,
        as_link=as_link,
        quoted=lambda path: shlex.quote(str(path)),
        footnotes=footnotes(methods),
        final_rounds=final_rounds(methods),
        several_seeds=any(len(method.runs) > 1 for method in methods),
    )


def page_data(methods: list[Method]) -> dict[str, Any]:
    """Return the figures, matrices and texts that page.js draws."""
    figures: dict[str, Any] = {
        "classes": charts.class_figure(methods),
        "client-accuracy": charts.client_accuracy_figure(methods),
    }
    keys = [key for key in measured_metrics(methods) if key != "lr"] + ["lr"]
    keys.sort(key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))
    metrics = {}
    for key in keys:
        figure = charts.metric_figure(methods, key, key.replace("_", " "))
        if figure:
            figures[f"metric:{key}"] = figure
            metrics[key] = metric_of(key).words.replace("`", "")
    heatmaps = _heatmaps(methods)
    clients = {}
    for position, method in enumerate(methods):
        bars = charts.client_figures(method)
        if bars:
            clients[position] = {"suffers": bars[0], "causes": bars[1]}
    for number, (run, _) in enumerate(partitions(methods)):
        figures[f"shares:{number}"] = charts.share_figure(run)
    found = ablations(methods)
    for ablation in found:
        figures[f"ablation:{ablation.name}"] = charts.ablation_figure(ablation)
    return {
        "methods": [charts.escape(method.label) for method in methods],
        "figures": figures,
        "metrics": metrics,
        "heatmaps": heatmaps,
        "clients": clients,
        "largest": matrices.largest(methods),
        "ablations": {ablation.name: ablation.title for ablation in found},
    }


def _heatmaps(methods: list[Method]) -> list[dict[str, Any]]:
    probed = [(position, run) for position, m in enumerate(methods) if (run := matrices.probed_run(m)) is not None]
    found = []
    for position, run in probed:
        probes = matrices.page_probes(run, matrices.MOST_CELLS // len(probed))
        seen = {client for probe in probes for key in ("models", "data") for client in probe[key]}
        labels, names = matrices.label_sets(run, seen), client_names(run)
        named = {client: charts.escape(client_title(names, client)) for client in sorted(seen)} if names else {}
        ticks = {client: charts.escape(short_client_name(names, client)) for client in named}
        found.append(
            {
                "method": position,
                "probes": probes,
                "about": _about(methods[position]),
                "left_out": len(run.probes) - len(probes),
                "labels": {client: charts.escape(text) for client, text in labels.items()},
                "names": named,
                "ticks": ticks,
            }
        )
    return found


def diagnosis(methods: list[Method], warned: list[Warning]) -> tuple[list[str], list[str]]:
    """Return the sentences and notes of a diagnosis, without notes that repeat the page's warnings."""
    sentences, notes = saved_sentences([run for method in methods for run in method.runs])
    texts = tuple(warning.text for warning in warned)
    return sentences, [note for note in notes if not note.endswith(texts)]


def _about(method: Method) -> str:
    """Return a caption with mean forgetting and learning over all probes."""
    if not (method.values("forgetting") and method.values("learned")):
        return ", points"
    lost, gained = (mean_and_deviation(method.values(key), signed=True) for key in ("forgetting", "learned"))
    return f", points; over all probes {lost}, learned {gained}"


def definitions() -> dict[str, str]:
    """Return the definition of each number in the tables; a run's definition takes precedence over a round's."""
    words = {name: metric.words for name, metric in {**METRICS, **SUMMARY}.items()} | TABLE_WORDS
    return {key: text.replace("`", "") for key, text in words.items()}


def footnotes(methods: list[Method]) -> list[str]:
    found = [published(method.recipe) for method in methods]
    return list(dict.fromkeys(value.remark for value in found if value and value.remark))


def title(methods: list[Method]) -> str:
    data = {thing_name("data", m.recipe["data"], m.titles) for m in methods}
    models = {thing_name("model", m.recipe["model"], m.titles) for m in methods}
    return f"{join_words(sorted(models))} on {join_words(sorted(data))}"


def partitions(methods: list[Method]) -> list[tuple[RunRecord, str]]:
    """Return each partition once (at most `MOST_CARDS`), with the methods that use it unless all do."""
    users: dict[str, tuple[RunRecord, list[str]]] = {}
    for method in methods:
        for run in method.runs:
            if run.card:
                names = users.setdefault(str(run.card.get("digest")), (run, []))[1]
                names += [method.label] if method.label not in names else []
    return [(run, join_words(names) if len(names) < len(methods) else "") for run, names in users.values()][:MOST_CARDS]


MOST_CARDS = 6  # of partitions; cards of more seeds add nothing


def commands(methods: list[Method]) -> list[tuple[RunRecord, str]]:
    """Return each run with the command that repeats it; empty if parts of the run were given in Python."""
    found = []
    for method in methods:
        for run in method.runs:
            given = any(run.recipe[section]["name"] == "python" for section in ("data", "partition", "model"))
            found.append((run, "" if given else f"fedrecall run {file_name(run)}"))
    return found


def file_name(run: RunRecord) -> str:
    """Return the file name of a recipe saved from the page, in characters that need no quoting in any shell."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in run.path.resolve().name)
    return f"{name.strip('-.') or 'run'}.yaml"


def recipe_text(run: RunRecord) -> str:
    return yaml.safe_dump(run.recipe, sort_keys=False, allow_unicode=True)


def as_link(text: str) -> str:
    return f"data:text/yaml;base64,{base64.b64encode(text.encode()).decode()}"


def for_script(value: Any) -> str:
    """Return JSON that is safe in a script element: no text in it can close the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def content_hash(text: str) -> str:
    """Return the hash that allows a script to run under the page's content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _file(name: str) -> str:
    return (resources.files("fedrecall.report.page") / name).read_text(encoding="utf-8")
