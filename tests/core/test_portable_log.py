import math
from decimal import Decimal, getcontext

import pytest
import torch

from fedrecall.core.priors import portable_log

getcontext().prec = 40


@pytest.mark.parametrize("value", [1e-30, 0.003, 0.1, 0.25, 0.7071, 0.7072, 0.999, 1.0, 1.001, 3.0, 1e30])
def test_logarithm_is_right_to_two_units_in_the_last_place(value: float) -> None:
    exact = Decimal(value).ln()  # of the very float64
    (found,) = portable_log(torch.tensor([value], dtype=torch.float64)).tolist()
    assert abs(Decimal(found) - exact) <= 2 * Decimal(math.ulp(float(exact)))


def test_float32_logarithms_are_float64_ones_rounded_once() -> None:
    x = torch.rand(100_000, generator=torch.Generator().manual_seed(0)).clamp(min=1e-6)
    expected = torch.tensor([math.log(value) for value in x.tolist()], dtype=torch.float64).float()
    assert torch.equal(portable_log(x), expected)


def test_special_values_are_those_of_torch() -> None:
    special = torch.tensor([0.0, math.inf, -1.0, math.nan])
    assert str(portable_log(special)) == str(special.log())


def test_it_works_under_vmap() -> None:
    x = torch.rand(3, 4)
    assert torch.equal(torch.func.vmap(portable_log)(x), portable_log(x))
