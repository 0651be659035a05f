"""The figures: written in each format, not blank, and readable without colour."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib import rc_context
from PIL import Image

from fedrecall.errors import InputError
from fedrecall.recipe.display_titles import titles
from fedrecall.report.comparison import Method, group_methods
from fedrecall.report.figures.heatmaps import DIVERGING, probed_rounds
from fedrecall.report.figures.write import FORMATS, STYLE, figures, write_figures
from fedrecall.runs.reader import load_run

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
