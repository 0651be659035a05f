"""The figures: written in each format, not blank, and readable without colour."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib import rc_context
from PIL import Image

from fedrecall.errors import InputError
from fedrecall.recipe.display_titles import titles
from fedrecall.report.comparison import Method, group_methods
from fedrecall.report.curves import curve
from fedrecall.report.figures.heatmaps import DIVERGING, probed_rounds
from fedrecall.report.figures.options import STYLE, FigureOptions
from fedrecall.report.figures.write import FORMATS, figures, plot, write_figures
from fedrecall.runs.reader import RunRecord, load_run

STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
WSM = {"name": "wsm", "tau": 1.0, "smoothing": 0.0}


@pytest.fixture
def methods(tmp_path: Path, make_run: Callable[..., Path]) -> list[Method]:
    runs = [
        make_run(tmp_path / f"{n}-{alpha}", objective=objective, partition={"alpha": alpha}, scale=0.2 * (n + 1))
        for n, objective in enumerate(({"name": "cross_entropy"}, WSM))
        for alpha in (0.1, 1.0)
    ]
    return group_methods([load_run(run) for run in runs], titles())


def test_every_figure_is_written_in_every_format_and_shows_something(methods: list[Method], tmp_path: Path) -> None:
    paths = write_figures(methods, tmp_path / "figures")
    names = {"forgetting-round-00008", "forgetting", "convergence", "class-shares", "accuracy-alpha"}
    assert {path.name for path in paths} == {f"{name}.{kind}" for name in names for kind in FORMATS}
    for path in paths:
        assert path.read_bytes().startswith(STARTS[path.suffix[1:]]), path.name
    for path in (path for path in paths if path.suffix == ".png"):
        with Image.open(path) as image:
            grey = np.asarray(image.convert("L"))
        assert grey.shape[1] > 900, path.name
        assert (grey < 128).mean() > 0.003, path.name  # ink that is dark also in grey
        assert len(np.unique(grey)) > 20, path.name


def test_the_matrices_share_one_scale_with_the_zero_in_its_middle(methods: list[Method]) -> None:
    with rc_context(STYLE):
        figure = figures(methods)["forgetting-round-00008"]
    images = [axes.images[0] for axes in figure.axes if axes.images]
    lost = images[::2]
    assert len(lost) == 4
    assert len({image.get_clim() for image in lost}) == 1
    low, high = lost[0].get_clim()
    assert low == -high
    assert DIVERGING(0.5)[:3] == pytest.approx((1, 1, 1), abs=0.01)
    ticks = [text.get_text() for axes in figure.axes for text in axes.get_xticklabels()]
    assert "0" in ticks


def test_forgetting_is_darker_than_gaining_in_grey() -> None:
    grey = DIVERGING(np.linspace(0, 1, 101))[:, :3] @ [0.299, 0.587, 0.114]
    assert (np.diff(grey[50:]) < 0).all()
    assert grey[100] < grey[0] - 0.2


def test_lines_differ_in_more_than_colour(methods: list[Method]) -> None:
    with rc_context(STYLE):
        lines = figures(methods)["convergence"].axes[0].lines
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == len(methods) == 4


def test_rounds_can_be_chosen(methods: list[Method]) -> None:
    assert probed_rounds(methods) == [4, 8]
    with rc_context(STYLE):
        assert "forgetting-round-00004" in figures(methods, (4,))
    with pytest.raises(InputError, match="round 5 was not probed in these runs; probed rounds: 4, 8"):
        figures(methods, (5,))


def test_of_many_clients_only_the_rounds_own_are_drawn(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    run = load_run(make_run(tmp_path / "many", partition={"clients": 60}, clients_per_round=5))
    with rc_context(STYLE):
        figure = figures(group_methods([run], titles()))["forgetting-round-00008"]
    assert figure.axes[0].images[0].get_array().shape == (5, 5)


def test_runs_without_probes_or_counts_have_the_curves(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    run = load_run(make_run(tmp_path / "a", forgetting={"every": 0}, old=True))
    with rc_context(STYLE):
        assert list(figures(group_methods([run], titles()))) == ["convergence"]


def test_sixteen_methods_have_sixteen_lines_that_differ(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    algorithms = ("fedavg", "fedprox", "scaffold", "fednova", "fedavgm", "fedadam", "feddyn", "moon")
    runs = [
        make_run(tmp_path / f"{name}-{n}", algorithm={"name": name}, objective=objective)
        for name in algorithms
        for n, objective in enumerate(({"name": "cross_entropy"}, WSM))
    ]
    lines = plot(group_methods([load_run(run) for run in runs], titles())).axes[0].lines
    assert len(lines) == 16
    seen = {(line.get_color(), line.get_linestyle(), line.get_marker(), line.get_markerfacecolor()) for line in lines}
    assert len(seen) == 16
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 8  # an algorithm each


def test_figures_have_the_size_and_the_letters_that_are_asked_for(methods: list[Method], tmp_path: Path) -> None:
    for size, expected in (("3.5x2.5", (3.5, 2.5)), ("column", (3.25, None)), ("5", (5.0, None))):
        options = FigureOptions(size=size, font_size=7)
        for figure in (plot(methods, options=options), *figures(methods, options=options).values()):
            width, height = figure.get_size_inches()
            assert width == expected[0]
            assert expected[1] in (None, height)
    text = plot(methods, options=FigureOptions(font_size=7)).axes[0].xaxis.label
    assert text.get_fontsize() == 7
    write_figures(methods, tmp_path, names=["convergence"], options=FigureOptions(size="3.5x2.5"))
    with Image.open(tmp_path / "convergence.png") as image:
        assert image.size == (700, 500)  # 200 dots an inch


def test_methods_are_chosen_and_keep_their_looks(methods: list[Method]) -> None:
    with rc_context(STYLE):
        every = {line.get_label(): line.get_color() for line in plot(methods).axes[0].lines}
        some = plot(methods, options=FigureOptions(methods=["wsm"])).axes[0].lines
    assert len(some) == 2
    assert all(every[line.get_label()] == line.get_color() for line in some)
    with pytest.raises(InputError, match=r"there is no method .mask.; the methods are .FedAvg, alpha 0\.1., "):
        plot(methods, options=FigureOptions(methods=["mask"]))


def test_bands_are_worked_out_by_hand(tmp_path: Path, make_run: Callable[..., Path]) -> None:
    runs = [make_run(tmp_path / str(seed), seed=seed) for seed in range(3)]
    for n, run in enumerate(runs):
        lines = [{"round": 1, "val_accuracy": 0.1 * (n + 1)}, {"round": 2, "val_accuracy": 0.2}]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (method,) = group_methods([RunRecord(run) for run in runs], titles())
    # .1 .2 .3: mean .2, deviation .1; Student's 97.5 % point with 2 degrees of freedom is 4.303.
    expected = {"deviation": (0.1, 0.3), "range": (0.1, 0.3), "interval": (0.2 - 0.24843, 0.2 + 0.24843)}
    for band, (low, high) in expected.items():
        found = curve(method, "val_accuracy", band)
        assert found is not None
        assert (found.low[0], found.high[0]) == pytest.approx((low, high), abs=1e-4)  # type: ignore[index]
        assert (found.low[1], found.high[1]) == pytest.approx((0.2, 0.2))  # type: ignore[index]
    none = curve(method, "val_accuracy", "none")
    assert none is not None
    assert none.low is none.high is None
    titles_of = {band: plot([method], options=FigureOptions(band=band)).legends[0].get_title() for band in expected}
    assert titles_of["interval"].get_text() == "mean, and its 95 % interval over 3 seeds"


def test_a_notebook_shows_a_plot(methods: list[Method]) -> None:
    assert plot(methods)._repr_png_().startswith(STARTS["png"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"band": "sd"}, "band is 'sd', which is not known"),
        ({"size": "big"}, "size is 'big'; inches from 1 to 40 were expected"),
        ({"size": "3x0.1"}, "size is '3x0.1'; inches"),
        ({"font_size": 0}, "font size is 0; a number from 3 to 40 was expected"),
    ],
)
def test_wrong_options_are_sentences(wrong: dict, said: str) -> None:
    with pytest.raises(InputError) as found:
        FigureOptions(**wrong)
    assert said in str(found.value)


def test_an_unknown_metric_is_a_sentence(methods: list[Method]) -> None:
    with pytest.raises(InputError, match="there is no metric 'val_acuracy' in these runs; did you mean"):
        plot(methods, ["val_acuracy"])


def test_a_figure_that_does_not_fit_is_a_sentence(methods: list[Method], tmp_path: Path) -> None:
    for size, fits in (("1x1", False), ("column", True)):
        options = FigureOptions(size=size, font_size=8)
        if fits:
            assert write_figures(methods, tmp_path / "figures", options=options)
        else:
            with pytest.raises(InputError, match="does not fit into 1 x 1 inches; a larger --size"):
                write_figures(methods, tmp_path / "figures", options=options)
