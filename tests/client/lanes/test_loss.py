"""The functions that the loss in the kernels is made of, beside NumPy's in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrecall.client.lanes.jit import Code, host
from fedrecall.client.lanes.kernels.ir import LANES, Function, Module
from fedrecall.client.lanes.kernels.loss import exp, log


def values_of(function, x: np.ndarray) -> np.ndarray:
    """A kernel with nothing but this function, on any number of floats."""
    f = Function(Module(), "apply", "px", "py", "iunits")
    f.loop("%iunits", lambda i: f.store(function(f, f.load(f.at("%px", i))), f.at("%py", i)))
    f.done()
    units = -(-len(x) // LANES)
    given, found = torch.zeros(units * LANES), torch.zeros(units * LANES)
    given[: len(x)] = torch.from_numpy(x.astype(np.float32))
    code = Code(f.module.text(), host())
    code.function(f)(given.data_ptr(), found.data_ptr(), units)
    return found[: len(x)].double().numpy()


def test_exp_is_numpys_down_to_where_it_is_nothing() -> None:
    x = np.linspace(-86.9, 0, 100_003).astype(np.float32)
    assert np.allclose(values_of(exp, x), np.exp(x.astype(np.float64)), rtol=2.5e-7, atol=0)
    assert values_of(exp, np.array([0.0, -0.0])).tolist() == [1, 1]
    assert values_of(exp, np.array([-87.1, -1e30, -np.inf])).tolist() == [0, 0, 0]


def test_log_is_numpys_from_one_on() -> None:
    x = np.concatenate([np.linspace(1, 3, 50_001), np.geomspace(1, 1e6, 50_001)]).astype(np.float32)
    assert np.allclose(values_of(log, x), np.log(x.astype(np.float64)), rtol=2.5e-7, atol=6e-8)
    assert values_of(log, np.array([1.0])).tolist() == [0]


@pytest.mark.parametrize("function", [exp, log])
def test_what_is_not_a_number_stays_so(function) -> None:
    found = values_of(function, np.array([1.0, np.nan, 1.0]))
    assert np.isnan(found).tolist() == [False, True, False]
