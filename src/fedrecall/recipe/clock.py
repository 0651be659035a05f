"""The settings of the simulated clock."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fedrecall.config.options import Scale
from fedrecall.recipe.settings import Settings


class ClockSettings(Settings):
    """How long clients would take: their speeds and bandwidths are log-normal, drawn once for the run."""

    section: ClassVar[str] = "clock"
    speed: Scale = Field(
        default=1e9, description="floating-point operations that the median client computes in a second"
    )
    bandwidth: Scale = Field(default=1e6, description="bytes that the median client receives or sends in a second")
    spread: Annotated[float, Field(ge=0, le=10)] = Field(
        default=0.5, description="standard deviation of the logarithm of both over the clients; 0: all are alike"
    )
    deadline: Scale | None = Field(
        default=None,
        description="seconds after which the server waits for nobody; participation.late says what slow clients do",
    )
