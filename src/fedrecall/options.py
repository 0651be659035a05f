"""Number types with their ranges, which the options of everything that a recipe names are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

LARGEST_WHOLE = 2**63 - 1  # that files and libraries hold
LARGEST_REAL = 3.4028234e38  # that a float32 holds, in which training computes

Whole = Annotated[int, Field(ge=0, le=LARGEST_WHOLE)]


Positive = Annotated[int, Field(ge=1, le=LARGEST_WHOLE)]


Size = Annotated[int, Field(le=2**24)]  # of a layer: of two such, the weights can still be counted


Rate = Annotated[float, Field(ge=0, le=LARGEST_REAL, allow_inf_nan=False)]


Scale = Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False)]  # its square is a number too
