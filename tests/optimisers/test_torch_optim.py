"""The local optimisers and the clipping, beside those of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedrecall.optimisers import SGD, Adam, AdamW, Optimiser
from fedrecall.optimisers.clipping import clip_gradient

LR, STEPS = 0.01, 12
SINGLE = {"foreach": False, "fused": False}
CASES: dict[str, tuple[Optimiser, Any]] = {
    "sgd": (SGD(), lambda p: torch.optim.SGD(p, lr=LR, **SINGLE)),
    "sgd with momentum": (
        SGD(weight_decay=0.01, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9, weight_decay=0.01, **SINGLE),
    ),
    "adam": (Adam(), lambda p: torch.optim.Adam(p, lr=LR, **SINGLE)),
    "adam with decay": (
        Adam(weight_decay=0.01, beta1=0.8, beta2=0.95, eps=1e-4),
        lambda p: torch.optim.Adam(p, lr=LR, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.01, **SINGLE),
    ),
    "adamw": (AdamW(weight_decay=0.01), lambda p: torch.optim.AdamW(p, lr=LR, weight_decay=0.01, **SINGLE)),
    "adamw without decay": (AdamW(), lambda p: torch.optim.AdamW(p, lr=LR, weight_decay=0.0, **SINGLE)),
}


def draws(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def taken(ours: Optimiser, w: Tensor, gradients: list[Tensor]) -> Tensor:
    """The vector after a step along each gradient."""
    w, moments = w.clone(), ours.init(w)
    for gradient in gradients:
        g = gradient.clone()
        ours.decay(w, g)
        ours.step(w, g, moments, LR)
    return w


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1, 37, 1024])
@pytest.mark.parametrize("case", CASES)
def test_steps_have_the_bits_of_torch(case: str, length: int, dtype: torch.dtype) -> None:
    ours, make = CASES[case]
    w, gradients = draws(length, dtype=dtype), [draws(length, seed=k + 1, dtype=dtype) for k in range(STEPS)]
    parameter = torch.nn.Parameter(w.clone())
    theirs = make([parameter])
    for gradient in gradients:
        parameter.grad = gradient.clone()
        theirs.step()
    assert torch.equal(taken(ours, w, gradients), parameter.detach())


@pytest.mark.parametrize("case", CASES)
def test_rows_are_vectors_of_their_own(case: str) -> None:
    ours = CASES[case][0]
    w, gradients = draws(3, 40), [draws(3, 40, seed=k + 1) for k in range(STEPS)]
    together = taken(ours, w, gradients)
    for row in range(3):
        alone = taken(ours, w[row], [gradient[row] for gradient in gradients])
        torch.testing.assert_close(together[row], alone, rtol=1e-6, atol=1e-7)


def test_the_first_step_of_adam_by_hand() -> None:
    """m = 0.1 g and v = 0.001 g^2, whose corrections leave g and g^2: a step of lr against the sign."""
    w = torch.tensor([1.0, 1.0], dtype=torch.float64)
    Adam().step(w, torch.tensor([4.0, -0.25], dtype=torch.float64), moments := Adam().init(w), lr=0.5)
    torch.testing.assert_close(w, torch.tensor([0.5, 1.5], dtype=torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(moments["v"], torch.tensor([0.016, 0.0000625], dtype=torch.float64))
    assert moments["t"].tolist() == [1.0]


def test_padding_stays_zero() -> None:
    w, g = torch.zeros(4), torch.tensor([0.0, 0.0, 1.0, 0.0])
    Adam(eps=1e-37).step(w, g, Adam().init(w), lr=0.1)
    assert w.tolist()[:2] == [0.0, 0.0]
    assert bool(w.isfinite().all())


@pytest.mark.parametrize("most", [0.5, 1e6])
@pytest.mark.parametrize("length", [1, 37, 70_001])
def test_clipping_has_the_bits_of_torch_on_one_vector(length: int, most: float) -> None:
    g, parameter = draws(length), torch.nn.Parameter(torch.zeros(length))
    parameter.grad = g.clone()
    torch.nn.utils.clip_grad_norm_([parameter], most, foreach=False)
    clip_gradient(g, most)
    assert torch.equal(g, parameter.grad)


def test_each_row_is_clipped_by_its_own_norm() -> None:
    g = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    clip_gradient(g, most=1.0)
    torch.testing.assert_close(g, torch.tensor([[0.6, 0.8], [0.3, 0.4]]), rtol=1e-5, atol=0)
