"""CCVR: refit the last layer of a trained model on samples of Gaussians, one for the features of each class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

DECAY = 1e-4  # of the refitted weights; with it the best ones are unique
ITERATIONS = 200  # of L-BFGS at most


@dataclass(frozen=True)
class ClassStatistics:
    """The number of samples of each class, and mean and covariance of their features, as one client sends them."""

    counts: np.ndarray  # [C]
    means: np.ndarray  # [C, d], zero for absent classes
    covariances: np.ndarray  # [C, d, d], divided by n - 1; zero for fewer than two samples


def statistics_of(features: np.ndarray, labels: np.ndarray, num_classes: int) -> ClassStatistics:
    """Return a client's statistics from its features, [samples, d]."""
    d = features.shape[1]
    counts = np.bincount(labels, minlength=num_classes)
    means, covariances = np.zeros((num_classes, d)), np.zeros((num_classes, d, d))
    for c in np.flatnonzero(counts):
        own = features[labels == c].astype(np.float64)
        means[c] = own.mean(0)
        if len(own) > 1:
            covariances[c] = np.cov(own.T).reshape(d, d)
    return ClassStatistics(counts, means, covariances)


def pooled_statistics(clients: Iterable[ClassStatistics]) -> ClassStatistics:
    """Return the statistics of all clients' samples together, from each client's alone.

    Luo et al., "No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data", NeurIPS
    2021, arXiv 2106.05001, Eq. 3 and 4: covariances within clients, and between the clients' means.
    """
    known = list(clients)
    counts = np.sum([client.counts for client in known], axis=0)
    n = np.maximum(counts, 1)[:, None]
    means = np.sum([client.counts[:, None] * client.means for client in known], axis=0) / n
    scatter = np.zeros_like(known[0].covariances)
    for client in known:
        within = np.maximum(client.counts - 1, 0)[:, None, None] * client.covariances
        away = client.means - means
        scatter += within + client.counts[:, None, None] * away[:, :, None] * away[:, None, :]
    return ClassStatistics(counts, means, scatter / np.maximum(counts - 1, 1)[:, None, None])


def draw_features(pooled: ClassStatistics, samples: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels drawn from the classes' Gaussians: `samples` for each class that there is."""
    features, labels = [], []
    for c in np.flatnonzero(pooled.counts):
        values, vectors = np.linalg.eigh(pooled.covariances[c])
        root = vectors * np.sqrt(np.maximum(values, 0))
        normal = random.normal(size=(samples, len(values)))
        features.append(pooled.means[c] + normal @ root.T)
        labels.append(np.full(samples, c))
    return np.concatenate(features), np.concatenate(labels)


def refitted(weight: Tensor, bias: Tensor | None, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the weights and the bias of least mean cross-entropy + decay / 2 |w|^2, searched from the given ones."""
    parameters = [tensor.detach().double().clone().requires_grad_() for tensor in (weight, bias) if tensor is not None]
    search = torch.optim.LBFGS(parameters, max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        loss = F.cross_entropy(F.linear(features, parameters[0], *parameters[1:]), labels)
        loss = loss + DECAY / 2 * sum(p.square().sum() for p in parameters)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    search.step(closure)  # type: ignore[no-untyped-call]
    found = [tensor.detach().to(weight.dtype) for tensor in parameters]
    return found[0], found[1] if bias is not None else None
