from fractions import Fraction

import pytest
import torch
from torch import nn

from fedrecall.models.uniform_draws import UniformDraws


def test_draws_are_rounded_once() -> None:
    """u has 24 bits: low + u (high - low) is worked out in fractions."""
    low, high = -0.11547005, 0.31
    bits = torch.rand(2000, generator=torch.Generator().manual_seed(3))
    with UniformDraws():
        found = torch.empty(2000).uniform_(low, high, generator=torch.Generator().manual_seed(3))
    a, b = (torch.tensor(value).item() for value in (low, high))
    span = torch.tensor(b - a).item()  # of two float32
    exact = [Fraction(a) + Fraction(u) * Fraction(span) for u in bits.tolist()]
    expected = torch.tensor([float(value) for value in exact], dtype=torch.float64).float()
    assert torch.equal(found, expected)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="torch rounds twice without FMA")
def test_layers_have_the_weights_that_torch_gives_them() -> None:
    torch.manual_seed(5)
    expected = [nn.Linear(40, 30), nn.Conv2d(3, 16, 5)]
    torch.manual_seed(5)
    with UniformDraws():
        found = [nn.Linear(40, 30), nn.Conv2d(3, 16, 5)]
    for ours, theirs in zip(found, expected):
        assert torch.equal(ours.weight, theirs.weight)
        assert torch.equal(ours.bias, theirs.bias)


def test_other_types_are_drawn_by_torch() -> None:
    expected = torch.empty(9, dtype=torch.float64).uniform_(-1, 2, generator=torch.Generator().manual_seed(1))
    with UniformDraws():
        found = torch.empty(9, dtype=torch.float64).uniform_(-1, 2, generator=torch.Generator().manual_seed(1))
    assert torch.equal(found, expected)
