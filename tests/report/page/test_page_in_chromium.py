"""The page in a real browser: drawn, without an error, without the network, and no text of a run taken as code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chromium import PROGRAM, Chromium

from fedrecall import write_report

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium here (Debian's package: chromium)"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    chromium = Chromium(tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


@pytest.fixture
def page(tmp_path: Path, make_run: Callable[..., Path]) -> Path:
    """Cross-entropy and WSM, two seeds each."""
    runs = [
        make_run(
            tmp_path / f"{name}-{seed}", final=final + seed / 100, scale=scale, objective={"name": name}, seed=seed
        )
        for name, final, scale in (("cross_entropy", 0.5, 0.4), ("wsm", 0.6, 0.1))
        for seed in (0, 1)
    ]
    return write_report(runs, tmp_path / "report.html")


def test_all_is_drawn_without_a_complaint_and_without_the_network(browser: Chromium, page: Path) -> None:
    browser.open(page)
    browser.value("[...drawn.keys()].filter((div) => !div.dataset.drawn).forEach(drawNow)")
    browser.wait("[...document.querySelectorAll('.chart')].every((div) => div.querySelector('.main-svg'))")
    assert browser.value("document.querySelectorAll('#heatmaps .hm image').length") == 4  # two matrices a method
    # Two methods in three charts of curves, each a line and the two edges of its band.
    assert browser.value("document.querySelectorAll('.scatterlayer .js-line').length") >= 3 * 2 * 2
    widths = browser.value("[...document.querySelectorAll('.js-line')].map((line) => line.getBBox().width)")
    assert min(widths) > 100
    assert browser.value("document.querySelectorAll('.bars .point').length") > 4
    assert browser.complaints() == []


def test_hovering_a_matrix_shows_both_clients_their_labels_and_f(browser: Chromium, page: Path) -> None:
    browser.open(page)
    browser.point_at("document.querySelector('#heatmaps .hm image')")
    browser.wait("document.querySelectorAll('#heatmaps .hovertext').length > 0")
    text = browser.value("document.querySelector('#heatmaps .hovertext').textContent")
    assert re.search(r"model of client \d: .*cat \d+ %", text), text
    assert re.search(r"data of client \d: .*cat \d+ %", text), text
    assert re.search(r"F = [+−]\d+\.\d points \(before \d+\.\d %, after \d+\.\d %\)", text), text  # noqa: RUF001


def test_matrices_shrink_with_the_window_and_keep_the_labels_that_fit(
    browser: Chromium, tmp_path: Path, make_run: Callable[..., Path]
) -> None:
    runs = [
        make_run(tmp_path / name, objective={"name": name}, partition={"clients": 30}, clients_per_round=10)
        for name in ("cross_entropy", "wsm")
    ]
    for run in runs:
        card = json.loads((run / "partition.json").read_text())
        card["client_names"] = [f"<b>Hospital</b> {k}" for k in range(30)]
        (run / "partition.json").write_text(json.dumps(card))
    browser.open(write_report(runs, tmp_path / "report.html"), 1400)
    browser.value("[...drawn.keys()].filter((div) => !div.dataset.drawn).forEach(drawNow)")
    chart = "document.querySelector('#heatmaps .chart')"
    browser.wait(f"{chart}.querySelectorAll('.xtick').length > 0")
    assert browser.value(f"{chart}.querySelector('.xtick').textContent") == "<b>Hospital</…"
    gaps = (
        f"(() => {{ const x = [...{chart}.querySelectorAll('.xtick text')].map((text) => text.getCTM().e);"
        " return Math.min(...x.slice(1).map((v, i) => v - x[i])); })()"
    )
    for width in (800, 390, 1400):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        browser.wait(f"{gaps} > 13")  # a line of text, on end
        browser.wait(f"{chart}.querySelector('.main-svg').getBoundingClientRect().width <= {width}")
        browser.wait(f"document.documentElement.scrollWidth <= {width}")
    assert browser.complaints() == []


def test_the_definition_of_a_metric_shows_when_pointed_at(browser: Chromium, page: Path) -> None:
    from fedrecall.measure.metrics import SUMMARY

    browser.open(page)
    browser.point_at(
        "[...document.querySelectorAll('thead th')].find((th) => th.textContent.startsWith('learned'))"
        ".querySelector('.tip')"
    )
    shown = "[...document.querySelectorAll('.bubble')].filter((b) => b.checkVisibility()).map((b) => b.textContent)"
    assert browser.value(shown) == [SUMMARY["learned"].words.replace("`", "")]


def test_the_table_has_the_numbers_of_the_runs(browser: Chromium, page: Path) -> None:
    browser.open(page)
    rows = browser.value(
        "[...document.querySelectorAll('.results tbody tr')]"
        ".map((tr) => [...tr.children].map((cell) => cell.textContent))"
    )
    named = {row[0]: row for row in rows}
    # 0.50 and 0.51, 0.60 and 0.61: the sample standard deviation of two numbers is their distance over sqrt(2).
    assert named["FedAvg"][2] == "50.5 ± 0.7"
    assert named["FedAvg + WSM"][2].startswith("60.5 ± 0.7")
    assert "★" in named["FedAvg + WSM"][2]
    for method, name in (("FedAvg", "cross_entropy"), ("FedAvg + WSM", "wsm")):
        lines = [
            [json.loads(line) for line in (page.parent / f"{name}-{seed}" / "metrics.jsonl").read_text().splitlines()]
            for seed in (0, 1)
        ]
        means = [sum(x["forgetting"] for x in run if "forgetting" in x) / 2 for run in lines]  # two probes each
        assert f"{100 * sum(means) / 2:+.1f}" in " ".join(named[method])


def test_a_metric_can_be_chosen_and_a_method_hidden(browser: Chromium, page: Path) -> None:
    browser.open(page)
    browser.value("byId('metric-chart').scrollIntoView()")  # charts far from the window are not drawn
    browser.value("byId('metric').value = 'train_loss'; byId('metric').dispatchEvent(new Event('change'))")
    browser.wait("byId('metric-chart').textContent.includes('train loss')")
    assert "weighted by their training samples" in browser.value("byId('definition').textContent")
    # The lines are drawn after the title; until all are there, one less would not be told from one not yet drawn.
    lines, methods = (
        f"document.querySelectorAll('{path}').length" for path in ("#metric-chart .js-line", ".legend button")
    )
    browser.wait(f"{lines} >= {methods}")
    before = browser.value(lines)
    browser.value("document.querySelector('.legend button').click()")
    browser.wait(f"{lines} < {before}")


@pytest.mark.parametrize("kind", ["csv", "latex"])
def test_the_table_can_be_copied(browser: Chromium, page: Path, kind: str) -> None:
    browser.open(page)
    browser.value("navigator.clipboard.writeText = async (text) => { window.got = text; }")
    browser.value(f"document.querySelector('[data-copy={kind}]').click()")
    browser.wait("byId('copied').textContent === 'Copied.'")
    text = browser.value("window.got")
    start = {"csv": "setting,method,seeds,", "latex": r"\begin{tabular}{lrr"}[kind]
    assert text.startswith(start)
    assert "60.5" in text
    assert browser.complaints() == []


def test_where_the_clipboard_is_closed_the_text_can_be_copied_by_hand(browser: Chromium, page: Path) -> None:
    browser.open(page)
    browser.value("navigator.clipboard.writeText = async () => { throw new Error('no'); }")
    browser.value("document.execCommand = () => false; document.querySelector('[data-copy=csv]').click()")
    browser.wait("byId('copied').textContent.includes('copy it from here')")
    assert browser.value("byId('to-copy').checkVisibility() && byId('to-copy').value").startswith("setting,method")
    assert browser.value("getSelection().toString() || byId('to-copy').selectionEnd") != 0


def test_three_methods_with_seeds_fit_and_stand_below_each_other_on_a_phone(
    browser: Chromium, tmp_path: Path, make_run: Callable[..., Path]
) -> None:
    runs = [
        make_run(
            tmp_path / f"{name}-{seed}", algorithm={"name": name}, final=0.5 + seed / 70, seed=seed,
            partition={"clients": 100}, clients_per_round=10,
        )
        for name in ("fedavg", "scaffold", "fedprox")
        for seed in range(3)
    ]  # fmt: skip
    page = write_report(runs, tmp_path / "report.html")
    overflow = "(() => { const b = document.querySelector('.scroll'); return b.scrollWidth - b.clientWidth; })()"
    display = "getComputedStyle(document.querySelector('.results td')).display"
    browser.open(page, 1400)
    assert browser.value(overflow) <= 0
    assert browser.value(display) == "table-cell"
    browser.open(page, 390, 844)
    assert browser.value(overflow) <= 0
    assert browser.value(display) == "flex"
    label = "getComputedStyle(document.querySelectorAll('.results td')[1], '::before').content"
    assert browser.value(label) == '"final accuracy, %"'


def test_a_page_without_curves_is_drawn(browser: Chromium, tmp_path: Path, make_run: Callable[..., Path]) -> None:
    run = make_run(tmp_path / "a", rounds=1, forgetting={"every": 1}, evaluation={"every": 1, "test_last": 1})
    browser.open(write_report([run], tmp_path / "report.html"))
    browser.value("[...drawn.keys()].filter((div) => !div.dataset.drawn).forEach(drawNow)")
    browser.wait("[...document.querySelectorAll('.chart')].every((div) => div.querySelector('.main-svg'))")
    assert browser.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_wider_than_the_screen(browser: Chromium, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width, 844, dark=dark)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value("visualViewport.scale") == 1  # a phone shrinks a page that is too wide
    back = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", back))) < 150) == dark
    assert browser.complaints() == []


def test_what_looks_like_code_is_text(browser: Chromium, tmp_path: Path, make_run: Callable[..., Path]) -> None:
    evil = "<script>alert(1)</script>"
    run = make_run(
        tmp_path / evil, objective={"name": f"mine:{evil}", "class": f"mine:{evil}<img src=x onerror=alert(2)>"}
    )
    other = make_run(tmp_path / "other")
    card = json.loads((run / "partition.json").read_text())
    card["class_names"] = [evil, "<b>bold</b>", "</script><script>alert(3)</script>", "%{x} ${1}"]
    (run / "partition.json").write_text(json.dumps(card))
    (run / "events.jsonl").write_text(json.dumps({"event": "warning", "round": 0, "message": f"beware {evil}"}) + "\n")
    browser.open(write_report([run, other], tmp_path / "report.html"))
    browser.value("[...drawn.keys()].filter((div) => !div.dataset.drawn).forEach(drawNow)")
    browser.wait("[...document.querySelectorAll('.chart')].every((div) => div.querySelector('.main-svg'))")
    assert browser.value(f"document.body.innerText.includes({json.dumps('beware ' + evil)})")
    assert evil in browser.value("document.querySelector('main').textContent")
    assert evil in browser.value("document.querySelector('[data-figure=classes]').textContent")
    assert browser.value("document.querySelectorAll('script').length") == 3
    assert browser.value("document.querySelectorAll('img').length") == 0
    assert browser.complaints() == []


def test_a_large_comparison_is_drawn_soon(browser: Chromium, tmp_path: Path, make_run: Callable[..., Path]) -> None:
    runs = [
        make_run(tmp_path / str(n), local={"lr": 0.01 * (n + 1)}, partition={"clients": 30}, clients_per_round=10)
        for n in range(12)
    ]
    browser.open(write_report(runs, tmp_path / "report.html"))
    browser.value("[...drawn.keys()].filter((div) => !div.dataset.drawn).forEach(drawNow)")
    browser.wait("[...document.querySelectorAll('.chart')].every((div) => div.querySelector('.main-svg'))")
    assert browser.value("document.querySelectorAll('#heatmaps .hm image').length") == 24
    assert browser.complaints() == []
