"""What is on the page, how large it is, and that every text stays text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fedrecall import write_report
from fedrecall.errors import InputError
from fedrecall.recipe.display_titles import titles
from fedrecall.report.comparison import group_methods
from fedrecall.report.curves import kept_points
from fedrecall.report.page import charts
from fedrecall.report.page.page import for_script, page_data
from fedrecall.report.paper_results import published, rows
from fedrecall.report.probe_views import label_set, page_probes, participants_first
from fedrecall.runs.reader import find_runs, load_run

WSM = {"name": "wsm", "tau": 1.0, "smoothing": 0.0}


def page_of(path: Path) -> tuple[str, dict]:
    """The page without the library, and the data that its script draws."""
    text = path.read_text(encoding="utf-8")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data
    return text[: data.start()], json.loads(data[1])


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [name for name, _ in attrs]


def test_every_text_of_a_run_is_escaped(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    run = make_run(tmp_path / "<script>alert(1)<" / "script>", objective={"name": "a:b", "class": f"m:{evil}"})
    card = json.loads((run / "partition.json").read_text())
    card["class_names"] = [evil, "'\"&\u2028", "x", "y"]
    card[evil] = evil
    (run / "partition.json").write_text(json.dumps(card))
    (run / "environment.json").write_text(json.dumps({evil: evil}))
    (run / "events.jsonl").write_text(json.dumps({"event": evil, "round": evil, "message": evil}) + "\n")
    path = write_report([run], tmp_path / "report.html")
    text, _ = page_of(path)
    elements = Elements(text)
    assert "script" not in elements.names
    assert "img" not in elements.names
    assert not [name for name in elements.attributes if name.startswith("on")]
    assert path.read_text().count("<script") == 3  # the data, the library, ours


def test_json_in_a_page_cannot_end_its_element() -> None:
    text = for_script({"a": "</script><!--\u2028&"})
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == {"a": "</script><!--\u2028&"}


def test_the_pages_figures_are_what_plotly_knows(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    from plotly.graph_objects import Figure

    runs = [
        make_run(tmp_path / str(n), seed=n % 2, partition={"alpha": alpha}) for n, alpha in enumerate((0.1, 0.1, 1.0))
    ]
    data = page_data(group_methods([load_run(run) for run in runs], titles()))
    figures = [f for f in data["figures"].values() if f] + [
        f for pair in data["clients"].values() for f in pair.values()
    ]
    assert len(figures) > 8
    for figure in figures:
        Figure(data=figure["data"], layout=figure["layout"])  # raises at a name or a value that Plotly does not know


def test_the_means_of_seeds_are_drawn_with_a_band(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    runs = [make_run(tmp_path / str(n), seed=n, final=final) for n, final in enumerate((0.4, 0.6))]
    figure = charts.metric_figure(group_methods([load_run(run) for run in runs], titles()), "test_accuracy", "")
    assert figure
    low, high, mean = (trace["y"] for trace in figure["data"])
    assert mean == [50, 50]  # percent
    assert low == [35.858, 35.858]  # 50 - 20 / sqrt(2)
    assert high == [64.142, 64.142]


def test_single_dots_are_no_chart(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    run = make_run(tmp_path / "a", rounds=1, forgetting={"every": 1}, evaluation={"every": 1, "test_last": 1})
    text, data = page_of(write_report([run], tmp_path / "report.html"))
    assert data["metrics"] == {}
    assert "Over the rounds" not in text
    assert data["heatmaps"]


def test_the_picture_of_the_partition_says_of_how_many_it_is(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    few, many = make_run(tmp_path / "few"), make_run(tmp_path / "many", partition={"clients": 20})
    assert "The classes of 6 clients, in %" in page_of(write_report([few], tmp_path / "few.html"))[0]
    assert "The classes of 12 of 20 clients, in %" in page_of(write_report([many], tmp_path / "many.html"))[0]


def test_lines_at_each_client_have_a_legend(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", objective=WSM)]
    text, _ = page_of(write_report(runs, tmp_path / "report.html"))
    section = text.partition("How the global model does at each client")[2].partition("</section>")[0]
    assert re.findall(r"</svg>([^<]*)</button>", section) == ["FedAvg", "FedAvg + WSM"]


def test_less_learned_is_explained_beside_it(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", objective=WSM)]
    text, _ = page_of(write_report(runs, tmp_path / "report.html"))
    assert text.count("Less learned is not worse") == 2  # on its card, and below its curve


def test_a_diagnosis_brings_its_sentences(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    runs = [make_run(tmp_path / "cross_entropy"), make_run(tmp_path / "wsm", objective=WSM)]
    known = "One seed each: part of a difference between methods may be chance."
    said = {"sentences": ["WSM <removes> it."], "notes": ["Its data have changed.", known]}
    said["runs"] = {"cross_entropy": {}, "wsm": {}}
    (tmp_path / "diagnosis.json").write_text(json.dumps(said))
    text, _ = page_of(write_report(runs, tmp_path / "report.html"))
    assert "<p>WSM &lt;removes&gt; it.</p>" in text
    assert "Note: Its data have changed." in text
    assert text.count(known) == 1
    other = make_run(tmp_path / "other", objective={"name": "mask"})
    assert "removes" not in page_of(write_report([*runs, other], tmp_path / "more.html"))[0]
    (tmp_path / "diagnosis.json").write_text(json.dumps({**said, "sentences": [1]}))
    with pytest.raises(InputError, match=r"diagnosis\.json.*sentences.0 is"):
        write_report(runs, tmp_path / "report.html")


def test_every_number_of_a_chart_is_in_percent_or_points(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    runs = [make_run(tmp_path / str(a), partition={"alpha": a}, final=0.5 + a / 10) for a in (0.1, 1.0)]
    data = page_data(group_methods([load_run(run) for run in runs], titles()))
    figures = {name: figure for name, figure in data["figures"].items() if figure}
    axis = {name: figure["layout"]["yaxis"].get("title") for name, figure in figures.items()}
    assert axis["metric:val_accuracy"] == "val accuracy, %"
    assert axis["metric:forgetting"] == "forgetting, points"
    assert axis["metric:train_loss"] == "train loss"
    assert figures["metric:forgetting"]["data"][-1]["hovertemplate"] == "%{y:+.1f} points"
    assert figures["metric:train_loss"]["layout"]["xaxis"]["dtick"] == 1  # eight rounds
    assert axis["client-accuracy"] == "accuracy on its own data, %"
    assert axis["ablation:alpha"] == "final accuracy, %"
    assert figures["ablation:alpha"]["data"][0]["y"] == pytest.approx([51, 60])
    assert figures["classes"]["data"][0]["z"][0] == [30.0] * 4  # .75 before, .45 after
    assert sum(figures["shares:0"]["data"][0]["z"][0]) == pytest.approx(100, abs=0.2)
    bars = data["clients"][0]["causes"]
    assert bars["layout"]["xaxis"]["title"] == "mean forgetting, points"
    assert max(bars["data"][0]["x"]) > 1


def test_clients_are_sorted_by_their_accuracy(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    figure = charts.client_accuracy_figure(group_methods([load_run(make_run(tmp_path / "a", final=0.5))], titles()))
    assert figure
    (trace,) = figure["data"]
    assert trace["y"] == [25, 50]  # percent; one of the three has no validation data
    assert trace["x"] == [25, 75]
    assert [text.partition(":")[0] for text in trace["text"]] == ["client 2", "client 0"]


def test_thinning_keeps_the_last_rounds_and_the_spikes() -> None:
    values = np.zeros(4000)
    values[1234], values[77] = 5.0, -3.0
    kept = kept_points(values, most=300, last=100)
    assert len(kept) <= 401
    assert {0, 77, 1234, *range(3900, 4000)} <= set(kept.tolist())
    assert kept_points(np.zeros(400)).tolist() == list(range(400))


def test_a_long_run_fits_the_page(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    run = make_run(
        tmp_path / "long",
        rounds=4000,
        partition={"clients": 100},
        clients_per_round=10,
        evaluation={"every": 10, "test_last": 100},
        forgetting={"every": 200},
    )
    path = write_report([run], tmp_path / "report.html")
    text, data = page_of(path)
    assert len(data["heatmaps"][0]["probes"]) == 20
    assert len(json.dumps(data)) + len(text) < 3_000_000
    assert path.stat().st_size < 8_000_000
    assert data["figures"]["metric:test_accuracy"]["data"][0]["x"] == list(range(3901, 4001))


def test_of_too_many_matrices_the_last_is_kept(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    run = load_run(make_run(tmp_path / "a", rounds=40))
    assert [probe["round"] for probe in page_probes(run, 3 * 3 * 6)] == [4, 20, 40]
    assert [probe["round"] for probe in page_probes(run, 1)] == [40]


def test_the_rounds_own_clients_come_first() -> None:
    probe = {"models": np.array([4, 1]), "data": np.array([0, 1, 2, 4, 9])}
    assert probe["data"][participants_first(probe)].tolist() == [4, 1, 0, 2, 9]


def test_label_sets_are_in_words() -> None:
    assert label_set(np.array([1, 0, 3]), ["a", "b", "c"]) == "c 75 %, a 25 %"
    assert label_set(np.ones(9, int), []).endswith("and 3 more")
    assert label_set(np.zeros(2, int), []) == "no training samples"


def test_old_and_unprobed_runs_are_shown(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    old = make_run(tmp_path / "old", old=True)
    none = make_run(tmp_path / "none", forgetting={"every": 0}, algorithm={"name": "scaffold"})
    for name in ("partition.json", "environment.json"):
        (old / name).unlink()
    text, data = page_of(write_report([old, none], tmp_path / "report.html"))
    assert data["figures"]["classes"] is None
    assert [heatmap["method"] for heatmap in data["heatmaps"]] == [0]
    assert "Forgetting was not measured" not in text
    text, _ = page_of(write_report([none], tmp_path / "none.html"))
    assert "Forgetting was not measured" in text


def test_an_unfinished_run_is_reported_as_far_as_it_went(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    run = make_run(tmp_path / "going", finished=False, rounds=20)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:5]) + '{"round": 6, "cli')  # as a killed run leaves it
    text, data = page_of(write_report([run], tmp_path / "report.html"))
    assert "its first 5 of 20 rounds" in text
    assert data["figures"]["metric:train_loss"]["data"][0]["x"] == [1, 2, 3, 4, 5]


def test_a_diverged_run_is_named(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    run = make_run(tmp_path / "a")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[2]["train_loss"] = None  # what JSON has for NaN
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text, _ = page_of(write_report([run], tmp_path / "report.html"))
    assert "diverged: in round 3" in text


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("metrics.jsonl", "", "no finished round"),
        ("metrics.jsonl", '{"round": 1}\n{oh\n', "line 2"),
        ("metrics.jsonl", "[1]\n", "line 1"),
        ("summary.json", "{", "summary.json"),
        ("recipe.yaml", "a: [", "recipe.yaml"),
        ("recipe.yaml", "rounds: 3", "the key 'data' is missing"),
        ("partition.npz", "no zip", "partition.npz"),
        ("clients.jsonl", '{"round": 1}\n', "line 1"),
        ("forgetting/round-00004.npz", "no zip", "round-00004.npz"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, make_run: Callable[..., Path], name: str, content: str, said: str
) -> None:
    run = make_run(tmp_path / "a")
    (run / name).write_text(content)
    with pytest.raises(InputError, match=re.escape(said)):
        write_report([run], tmp_path / "report.html")


def test_a_folder_of_runs_stands_for_them_and_none_counts_twice(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    a, b = make_run(tmp_path / "x" / "a"), make_run(tmp_path / "x" / "b")
    assert find_runs([tmp_path / "x", a]) == [a, b]
    with pytest.raises(InputError, match="no run and has none in it"):
        find_runs([tmp_path])
    with pytest.raises(InputError, match="there is no run's folder"):
        find_runs([tmp_path / "nowhere"])


# Published numbers: read from the paper's tables, not from our file.


def paper(**changes: object) -> dict:
    recipe = {
        "data": {"name": "cifar10"},
        "model": {"name": "resnet18", "norm": "batch"},
        "algorithm": {"name": "fedavg"},
        "objective": WSM,
        "partition": {"name": "dirichlet", "alpha": 0.1, "clients": 100},
        "participation": 0.1,
        "rounds": 4000,
        "local": {"epochs": 3, "batch_size": 64, "lr": 0.05},
    }
    return {**recipe, **changes}


def test_the_papers_number_stands_beside_its_own_setting() -> None:
    found = published(paper())
    assert found
    assert (found.accuracy, found.sd, found.table, found.remark) == (0.858, 0.003, "table4", "")
    plain = published(paper(objective={"name": "cross_entropy"}, model={"name": "resnet18", "norm": "group"}))
    assert plain
    assert plain.accuracy == 0.827
    longer = published(paper(rounds=5000))
    assert longer
    assert longer.remark == "5,000 rounds instead of 4,000"
    assert published(paper(rounds=300)) is None  # a try-out
    assert published(paper(local={"epochs": 1, "batch_size": 64, "lr": 0.05})) is None
    assert len(rows()) == 16 + 108 + 32  # Tables 2, 4 and 5


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": {"name": "wsm", "tau": 0.5}},
        {"objective": {"name": "fedlc"}},
        {"participation": 0.5},
        {"data": {"name": "mnist"}},
        {"partition": {"name": "dirichlet", "alpha": 0.5, "clients": 100}},
        {"local": {"epochs": 3, "batch_size": 64, "lr": 0.06}},
    ],
)
def test_other_settings_have_no_published_number(changes: dict) -> None:
    assert published(paper(**changes)) is None
