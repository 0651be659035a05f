"""A method keeps its colour, and no method has a colour of the matrices."""

from __future__ import annotations

import colorsys
import re
from importlib import resources

import pytest

from fedrecall.recipe.display_titles import titles
from fedrecall.report.figures.heatmaps import DIVERGING
from fedrecall.report.line_styles import COLOURS, DASHES, GREY, line_styles

WSM = {"name": "wsm"}


def recipe(algorithm: str = "fedavg", objective: str = "cross_entropy", **more: str) -> dict:
    return {"algorithm": {"name": algorithm}, "objective": {"name": objective, **more}}


def test_a_method_keeps_its_colour_among_others() -> None:
    alone = line_styles([recipe("fedavg", "wsm")], titles())[0]
    two = line_styles([recipe(), recipe("fedavg", "wsm")], titles())
    six = [recipe(a, o) for a in ("scaffold", "fedprox", "fedavg") for o in ("wsm", "cross_entropy")]
    assert two[1] == alone
    assert line_styles(six, titles())[4] == alone
    assert line_styles(six, titles())[5] == two[0]
    assert len({look.colour for look in line_styles(six, titles())}) == 6


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


@pytest.mark.parametrize("colour", COLOURS)
def test_no_method_has_a_colour_of_what_is_forgotten_or_gained(colour: str) -> None:
    assert len(scale_colours()) == 12
    for other in scale_colours():
        apart = abs(hue(colour) - hue(other))
        assert min(apart, 360 - apart) > 24, (colour, other)
