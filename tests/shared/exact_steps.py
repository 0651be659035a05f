"""PyTorch's own step around a flat model."""

from __future__ import annotations

from fedrecall.algorithms import Algorithm, FedAvg
from fedrecall.client.job import Job
from fedrecall.client.step import ExactStep
from fedrecall.core.vector import FlatModel
from fedrecall.objectives import Objective
from fedrecall.recipe.settings import Local


def exact_step(flat: FlatModel, objective: Objective, algorithm: Algorithm | None = None, **local: object) -> ExactStep:
    return ExactStep(flat, Job(lambda: flat.module, algorithm or FedAvg(), objective, Local(**local), seed=0))
