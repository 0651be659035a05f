"""How figures look: their size, letters and bands, and which methods they show."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from matplotlib import rc_context
from matplotlib.figure import Figure

from fedrecall.errors import InputError, nearest
from fedrecall.report.comparison import Method

Band = Literal["deviation", "interval", "range", "none"]
# Inches. The widths of a column and of the text in the style of ICML; IEEE's and ACM's differ by less than a tenth.
WIDTHS = {"column": 3.25, "page": 6.75}
LEAST, MOST = 1.0, 40.0  # inches
FONT = 9.0
STYLE: dict[Any, Any] = {
    "font.size": FONT,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",  # keep text as text
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
    "svg.hashsalt": "fedrecall",  # equal runs give equal files
}


class ShownFigure(Figure):
    """A figure that a notebook shows, with the style that it was drawn with."""

    options: FigureOptions

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        with rc_context(self.options.style):
            self.savefig(picture, format="png")
        return picture.getvalue()


@dataclass(frozen=True)
class FigureOptions:
    """The options of figures; `methods` are labels or parts of labels, in the order of the legend."""

    methods: Sequence[str] = ()
    band: Band = "deviation"
    size: str | None = None  # "3.5x2.4" in inches, "3.5" wide, "column" or "page"
    font_size: float = FONT

    def __post_init__(self) -> None:
        if self.band not in get_args(Band):
            raise InputError(f"band is {self.band!r}, which is not known; {nearest(str(self.band), get_args(Band))}")
        if not 3 <= self.font_size <= 40:
            raise InputError(f"font size is {self.font_size}; a number from 3 to 40 was expected")
        _ = self.inches

    @property
    def style(self) -> dict[Any, Any]:
        """Return matplotlib's settings."""
        return {**STYLE, "font.size": self.font_size, "axes.titlesize": 10 / FONT * self.font_size}

    @property
    def inches(self) -> tuple[float | None, float | None]:
        """The width and the height, each None if it is the figure's own."""
        if self.size is None:
            return None, None
        if self.size in WIDTHS:
            return WIDTHS[self.size], None
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:x(\d+(?:\.\d+)?))?", str(self.size))
        sides = [float(side) for side in found.groups() if side] if found else []
        if not sides or not all(LEAST <= side <= MOST for side in sides):
            raise InputError(
                f"size is {self.size!r}; inches from {LEAST:g} to {MOST:g} were expected, as in 3.5x2.4 or 3.5, or "
                f"{' or '.join(WIDTHS)}"
            )
        return sides[0], sides[1] if len(sides) > 1 else None

    def new_figure(self, width: float, height: float) -> ShownFigure:
        """Return an empty figure of this size, or of the size that is asked for."""
        wide, high = self.inches
        shrunk = height * min(1.0, max(0.75, wide / width)) if wide else height  # with room for the legend
        figure = ShownFigure(figsize=(wide or width, high or shrunk), layout="constrained")
        figure.options = self
        return figure

    def resize(self, figure: Figure) -> None:
        """Give a drawn figure of several panels the size that is asked for; a width alone leaves its height."""
        wide, high = self.inches
        if wide is not None:
            figure.set_size_inches(wide, high or figure.get_figheight())

    def choose(self, methods: Sequence[Method]) -> list[Method]:
        """Return the methods to show, with the looks that they have among all."""
        if not self.methods:
            return list(methods)
        found: dict[int, Method] = {}
        for wanted in self.methods:
            same = [method for method in methods if method.label.lower() == wanted.lower()]
            alike = same or [method for method in methods if wanted.lower() in method.label.lower()]
            if not alike:
                known = ", ".join(repr(method.label) for method in methods)
                raise InputError(f"there is no method {wanted!r}; the methods are {known}")
            found |= {id(method): method for method in alike}
        return list(found.values())


DEFAULT = FigureOptions()
