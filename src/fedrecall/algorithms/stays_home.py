"""FedPer and FedBN: some layers of the model stay with their client and never enter the mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedrecall.algorithms.base import Algorithm, Finished, LocalSteps
from fedrecall.core.vector import Tensors, TensorSlot

Spans = tuple[tuple[int, int], ...]  # beginnings and ends in the flat vector


@dataclass(frozen=True)
class StaysHome(Algorithm):
    """FedAvg of all parameters but those at `home`, which are the client's state.

    y = (body, own) is a client's model. It starts from (body of x, own) and sends (body of y, home of x): what is
    at home in x keeps its initial values, which travel in its place, so that vectors have one length.
    """

    home: Spans = ()  # set for the model

    def for_home(self, slots: Sequence[TensorSlot]) -> Self:
        """Return the algorithm with these parameters at home."""
        return replace(self, home=tuple((slot.offset, slot.offset + slot.shape.numel()) for slot in slots))

    def model_for(self, client: Tensors, server: Tensors) -> Tensor:
        return self._with_home(server["w"], client["own"]) if "own" in client else server["w"]

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        return {"w": self._with_home(y, self._at_home(server["w"]))}, {"own": self._at_home(y)}

    def _at_home(self, w: Tensor) -> Tensor:
        return torch.cat([w[:0], *(w[start:stop] for start, stop in self.home)])

    def _with_home(self, w: Tensor, own: Tensor) -> Tensor:
        w, done = w.clone(), 0
        for start, stop in self.home:
            w[start:stop] = own[done : done + stop - start]
            done += stop - start
        return w


@dataclass(frozen=True)
class FedPer(StaysHome):
    """The head, which is the last nn.Linear, stays with its client; the body is averaged.

    Arivazhagan et al., "Federated Learning with Personalization Layers", 2019, arXiv 1912.00818. Body and head are
    trained together in every local step.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"head"})


@dataclass(frozen=True)
class FedBN(StaysHome):
    """Batch norm stays with its client, scales and shifts as well as statistics; all else is averaged.

    Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021, arXiv
    2102.07623. With `batch_norm: local` and another algorithm, only the statistics stay at home (SiloBN, Andreux et
    al. 2020, arXiv 2008.07424).
    """

    title: ClassVar[str] = "FedBN"
    keeps_statistics: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"batch_norm"})
