"""Types with ranges, for the options of components that a recipe names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

LARGEST_WHOLE = 2**63 - 1  # the largest integer that files and libraries hold
LARGEST_REAL = 3.4028234e38  # the largest float32

Whole = Annotated[int, Field(ge=0, le=LARGEST_WHOLE)]
Positive = Annotated[int, Field(ge=1, le=LARGEST_WHOLE)]
Size = Annotated[int, Field(le=2**24)]  # of a layer; the weights between two such layers still fit a 64-bit count
Rate = Annotated[float, Field(ge=0, le=LARGEST_REAL, allow_inf_nan=False)]
Scale = Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False)]  # its square is still finite in float32
Shares = tuple[float, ...]


def is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def one_of(*names: str) -> Callable[[Any], str | Shares]:
    """Return a validator of priors: one of these names, or a list of class shares."""

    def checked(value: Any) -> str | Shares:
        if isinstance(value, str) and value in names:
            return value
        if isinstance(value, list | tuple) and all(map(is_share, value)) and any(value):
            return tuple(map(float, value))
        raise ValueError(f"{', '.join(names)} or a list of class shares, from 0 up, was expected")

    return checked


checked_prior = one_of("uniform", "pooled")
Prior = Annotated[str | Shares, BeforeValidator(checked_prior)]
checked_judged_prior = one_of("as_trained", "uniform", "pooled")
JudgedPrior = Annotated[str | Shares, BeforeValidator(checked_judged_prior)]
