"""CCVR: pooled statistics are those of pooled samples, draws have them, and the refitted layer is the optimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedrecall.measure.class_gaussians import DECAY, draw_features, pooled_statistics, refitted, statistics_of

RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.normal(size=(90, 4)) @ RANDOM.normal(size=(4, 4))
LABELS = np.repeat([0, 1, 2], [50, 39, 1])  # class 3 is nowhere, class 2 has one sample


def test_pooled_statistics_are_those_of_all_samples_together() -> None:
    owner = RANDOM.integers(0, 3, 90)
    pooled = pooled_statistics(statistics_of(FEATURES[owner == k], LABELS[owner == k], 4) for k in range(3))
    assert pooled.counts.tolist() == [50, 39, 1, 0]
    for c in (0, 1):
        own = FEATURES[c == LABELS]
        np.testing.assert_allclose(pooled.means[c], own.mean(0), rtol=1e-10)
        np.testing.assert_allclose(pooled.covariances[c], np.cov(own.T), rtol=1e-9)
    np.testing.assert_allclose(pooled.means[2], FEATURES[-1])
    assert not pooled.covariances[2:].any()


def test_draws_have_the_mean_and_covariance_of_their_class() -> None:
    known = statistics_of(FEATURES, LABELS, 4)
    x, y = draw_features(known, 20_000, np.random.default_rng(1))
    assert np.bincount(y, minlength=4).tolist() == [20_000, 20_000, 20_000, 0]
    spread = np.abs(np.cov(FEATURES[:50].T)).max()
    assert np.abs(np.cov(x[y == 0].T) - np.cov(FEATURES[:50].T)).max() < 0.05 * spread
    np.testing.assert_allclose(x[y == 2], np.tile(FEATURES[-1], (20_000, 1)), atol=1e-12)


@pytest.mark.parametrize("with_bias", [True, False])
def test_the_gradient_is_zero_at_the_refitted_layer(with_bias: bool) -> None:
    x, y = torch.from_numpy(FEATURES), torch.from_numpy(LABELS)
    weight, bias = refitted(torch.zeros(4, 4).double(), torch.zeros(4).double() if with_bias else None, x, y)
    parameters = [tensor.requires_grad_() for tensor in (weight, bias) if tensor is not None]
    loss = F.cross_entropy(F.linear(x, *parameters), y) + DECAY / 2 * sum(p.square().sum() for p in parameters)
    assert all(float(g.abs().max()) < 1e-4 for g in torch.autograd.grad(loss, parameters))
