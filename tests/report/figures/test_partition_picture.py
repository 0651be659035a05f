"""The picture of a partition is written in each format, for few and many classes, whatever the names."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedrecall.errors import InputError
from fedrecall.report.figures.partition_picture import chosen_clients, draw_partition

STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def some_counts(clients: int, classes: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 50, (clients, classes))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Draw, and hand back the figure as it was saved."""

    def draw(counts: np.ndarray, names: list[str] | None = None, **options) -> Figure:
        figures: list[Figure] = []
        monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
        draw_partition(counts, names, tmp_path / "a.png", "a title", **options)
        return figures[0]

    return draw


@pytest.mark.parametrize("suffix", STARTS)
@pytest.mark.parametrize("classes", [10, 100])
def test_the_suffix_chooses_the_format(tmp_path, suffix, classes):
    path = tmp_path / "figures" / f"partition.{suffix}"
    draw_partition(some_counts(20, classes), None, path, "Dirichlet, alpha 0.1")
    assert path.read_bytes().startswith(STARTS[suffix])


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"a\.bmp; it must end in \.png, \.svg, \.pdf"):
        draw_partition(some_counts(2, 2), None, tmp_path / "a.bmp", "")


def test_up_to_twenty_clients_are_all_shown():
    assert chosen_clients(20, most=10, seed=0).tolist() == list(range(20))


def test_of_more_clients_ten_different_ones_are_chosen_by_seed():
    chosen = chosen_clients(100, most=10, seed=0).tolist()
    assert len(set(chosen)) == 10
    assert chosen == sorted(chosen)
    assert chosen == chosen_clients(100, most=10, seed=0).tolist()
    assert chosen != chosen_clients(100, most=10, seed=1).tolist()


def test_bars_are_the_shares_of_the_classes_present(drawn):
    bars = drawn(np.array([[3, 0, 1], [0, 5, 0]])).axes[0].collections
    edges = [[sorted(set(path.vertices[:, 0].tolist())) for path in bar.get_paths()] for bar in bars]
    assert edges == [[[0, 0.75], [0.75, 1]], [[0, 1]]]


def test_a_client_without_samples_has_an_empty_bar(drawn):
    bars = drawn(np.array([[3, 1], [0, 0]])).axes[0].collections
    assert [len(bar.get_paths()) for bar in bars] == [2, 0]


def test_axes_say_what_they_are(drawn):
    axes = drawn(some_counts(100, 10)).axes[0]
    assert axes.get_xlabel() == "share of the client's training samples, %"
    assert axes.get_ylabel() == "client (10 of 100)"
    assert [int(tick.get_text()) for tick in axes.get_yticklabels()] == chosen_clients(100, 10, 0).tolist()


def test_few_classes_have_a_legend_and_many_a_colour_bar(drawn):
    few, many = drawn(some_counts(5, 10)), drawn(some_counts(5, 11))
    assert len(few.legends[0].get_texts()) == 10
    assert len(few.axes) == 1
    assert not many.legends
    assert many.axes[1].get_ylabel() == "class"


def test_each_of_ten_classes_has_a_colour_of_its_own(drawn):
    colours = {patch.get_facecolor() for patch in drawn(some_counts(5, 10)).legends[0].get_patches()}
    assert len(colours) == 10


@pytest.mark.parametrize("classes", [3, 12])
def test_dollars_and_underscores_in_names_are_only_characters(tmp_path, classes):
    names = ["$x_1$", "_hidden", r"$\frac$"] + [f"c{c}" for c in range(3, classes)]
    path = tmp_path / "a.svg"
    # As a formula `$\frac$` would not even parse.
    draw_partition(some_counts(3, classes), names, path, r"costs $5 and $\alpha$")
    drawn_text = re.findall(r"<!-- (.*?) -->", path.read_text())  # the SVG writer notes each text beside its shape
    assert "costs $5 and $\\alpha$" in drawn_text
    assert "$x_1$" in drawn_text
    assert classes > 10 or "_hidden" in drawn_text
    ElementTree.parse(path)


def test_drawing_needs_no_pyplot(tmp_path):
    loaded = "matplotlib.pyplot" in sys.modules
    draw_partition(some_counts(3, 3), None, tmp_path / "a.png", "")
    assert ("matplotlib.pyplot" in sys.modules) == loaded
