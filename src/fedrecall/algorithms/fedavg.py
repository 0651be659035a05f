"""FedAvg: the weighted mean of the clients' models."""

from __future__ import annotations

from dataclasses import dataclass

from fedrecall.algorithms.base import Algorithm


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """The mean of the clients' models, weighted by their samples.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
    arXiv 1602.05629.

    x <- sum_i p_i y_i with p_i = n_i / sum_S n. The models themselves are summed, not their differences to x, so
    that one client alone gives its own model bitwise.
    """
