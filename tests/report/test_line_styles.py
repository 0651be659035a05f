"""A method keeps its colour, and no method has a colour of the matrices."""

from __future__ import annotations

import colorsys
import re
from importlib import resources

import pytest

from fedrecall.recipe.display_titles import titles
from fedrecall.report.figures.heatmaps import DIVERGING
from fedrecall.report.line_styles import COLOURS, DASHES, GREY, SHADES, LineStyle, line_styles

WSM = {"name": "wsm"}


def recipe(algorithm: str = "fedavg", objective: str = "cross_entropy", **more: str) -> dict:
    return {"algorithm": {"name": algorithm}, "objective": {"name": objective, **more}}


def look(style: LineStyle) -> tuple[str, str, str]:
    return style.colour, style.dash, style.marker


def test_a_method_keeps_its_colour_among_others_of_its_algorithm() -> None:
    alone = line_styles([recipe("fedavg", "wsm")], titles())[0]
    two = line_styles([recipe(), recipe("fedavg", "wsm")], titles())
    three = line_styles([recipe(), recipe("fedavg", "mask"), recipe("fedavg", "wsm")], titles())
    assert two[1] == three[2] == alone
    assert three[0] == two[0]
    assert len({each.colour for each in three}) == 3


def test_of_several_algorithms_each_has_a_colour_and_each_objective_a_dash() -> None:
    algorithms, objectives = ("scaffold", "fedprox", "fedavg"), ("wsm", "cross_entropy")
    six = line_styles([recipe(a, o) for a in algorithms for o in objectives], titles())
    assert [each.colour for each in six[::2]] == [each.colour for each in six[1::2]]
    assert [each.marker for each in six[::2]] == [each.marker for each in six[1::2]]
    assert len({each.colour for each in six}) == len({each.marker for each in six}) == 3
    assert {each.dash for each in six[::2]} == {"dash"}
    assert {each.dash for each in six[1::2]} == {"solid"}  # cross-entropy, wherever it stands


def test_an_algorithm_in_two_settings_keeps_its_colour() -> None:
    four = line_styles([recipe("fedavg"), recipe("scaffold"), recipe("fedavg"), recipe("scaffold")], titles())
    assert (four[0].colour, four[1].colour) == (four[2].colour, four[3].colour)
    assert len(set(map(look, four))) == 4


@pytest.mark.parametrize(("algorithms", "objectives"), [(16, 1), (8, 2), (5, 3), (4, 4), (2, 8), (1, 16), (13, 1)])
def test_no_two_methods_up_to_16_look_alike(algorithms: int, objectives: int) -> None:
    recipes = [recipe(f"mine:A{a}", f"mine:L{o}") for a in range(algorithms) for o in range(objectives)]
    styles = line_styles(recipes, titles())
    assert len({(style.colour, style.dash) for style in styles}) == len(recipes)  # as on the page, without markers
    if algorithms == 1:
        assert len({(style.colour, style.marker) for style in styles}) == len(recipes)
    if (algorithms, objectives) == (8, 2):
        assert len({(style.colour, style.marker) for style in styles}) == len({style.colour for style in styles}) == 8


def test_a_namesake_in_another_setting_takes_no_ones_colour() -> None:
    before = line_styles([recipe(), recipe("fedavg", "wsm")], titles())
    after = line_styles([recipe(), recipe(), recipe("fedavg", "wsm")], titles())
    assert [after[0], after[2]] == before
    assert after[1] not in before


def test_no_two_of_28_methods_look_the_same() -> None:
    found = line_styles([recipe("fedavg", "python", **{"class": f"mine:Loss{n}"}) for n in range(28)], titles())
    assert len({(look.colour, look.dash) for look in found}) == len(COLOURS) * len(DASHES) == 28
    assert len({look.colour for look in found[:7]}) == 7


def test_bounds_are_grey() -> None:
    assert line_styles([recipe("centralised"), recipe()], titles())[0].colour == GREY


def hue(colour: str) -> float:
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return 360 * colorsys.rgb_to_hsv(red, green, blue)[0]


def scale_colours() -> list[str]:
    script = (resources.files("fedrecall.report.page") / "page.js").read_text()
    stops = [stop for line in re.findall(r"diverging: (.*)", script) for stop in re.findall("#[0-9a-f]{6}", line)]
    ends = [f"#{''.join(f'{round(255 * part):02x}' for part in DIVERGING(at)[:3])}" for at in (0.0, 0.25, 0.75, 1.0)]
    return [stop for place, stop in enumerate(stops) if place % 5 != 2] + ends  # the middle is no colour


@pytest.mark.parametrize("colour", COLOURS + SHADES)
def test_no_method_has_a_colour_of_what_is_forgotten_or_gained(colour: str) -> None:
    assert len(scale_colours()) == 12
    for other in scale_colours():
        apart = abs(hue(colour) - hue(other))
        assert min(apart, 360 - apart) > 24, (colour, other)
