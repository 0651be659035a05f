"""Number types with their ranges, which the options of everything that a recipe names are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Whole = Annotated[int, Field(ge=0)]


Positive = Annotated[int, Field(ge=1)]


Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
