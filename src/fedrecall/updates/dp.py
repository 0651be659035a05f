"""Client-level central differential privacy: clipped updates, and Gaussian noise on their sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from fedrecall.config.options import Scale
from fedrecall.core.vector import Tensors
from fedrecall.updates.base import Stage, StageContext

Relation = Literal["add-or-remove-one", "replace-one"]
SamplingMethod = Literal["poisson", "without-replacement", "no-amplification"]


@dataclass(frozen=True)
class DifferentialPrivacy(Stage):
    """Clips each client's update and adds Gaussian noise to the round's sum, by the server.

    McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018, arXiv 1710.06963,
    with equal weights and the fixed-denominator estimator. The options have Flower's names.

    D_i <- D_i min(1, C / |D_i|) over all tensors of an update together;
    x <- x + (sum_S D_i + N(0, z^2 C^2 I)) / m, m the expected number of clients, whoever answers.
    """

    clipping_norm: Annotated[Scale, "C: the largest norm of an update, all its tensors together"]
    noise_multiplier: Annotated[Scale, "z: the noise on the sum has the standard deviation z C"]
    target_delta: Annotated[float, Field(gt=0, lt=1), "the delta at which epsilon is counted"] = 1e-5
    neighboring_relation: Annotated[Relation | None, "null: that of the sampling method"] = None
    sampling_method: Annotated[SamplingMethod | None, "null: the one by which clients are really chosen"] = None
    max_epsilon: Annotated[Scale | None, "a run that would spend more is refused before it starts"] = None
    equal_weights: ClassVar[bool] = True
    needs_every_round: ClassVar[bool] = True  # a round without noise would tell that nobody was chosen

    def receive(self, sent: Tensors, at: StageContext) -> Tensors:
        """Return the clipped change, in float64 so that adding it to the model does not lengthen it.

        The server clips what the other stages have decoded, so that no stage can exceed the norm.
        """
        change = {name: tensor.double() for name, tensor in sent.items()}
        # NumPy's sum does not depend on the number of threads.
        norm = float(np.sqrt(sum(np.square(tensor.numpy()).sum() for tensor in change.values())))
        factor = self.clipping_norm / norm if norm > self.clipping_norm else 1.0
        return {name: tensor * factor for name, tensor in change.items()}

    def aggregate(self, sums: Tensors, totals: dict[str, float], at: StageContext) -> Tensors:
        random, noisy, deviation = at.stream(), Tensors(), self.noise_multiplier * self.clipping_norm
        for name in sorted(sums):
            noise = torch.from_numpy(random.normal(0.0, deviation, sums[name].shape))
            noisy[name] = sums[name] + noise
        return noisy

    def divisors(self, totals: dict[str, float], at: StageContext) -> dict[str, float]:
        return dict.fromkeys(totals, float(at.expected))
