"""FedDF: after averaging, the server's model is trained to agree with the clients' models on unlabelled data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrecall.algorithms.base import Algorithm
from fedrecall.algorithms.context import ClientUpdate, ServerContext, UnlabelledData
from fedrecall.backend.torch_state import torch_threads
from fedrecall.config.options import Positive, Scale
from fedrecall.core.vector import FlatModel, Tensors

Target = Literal["avg_logits", "avg_probs", "avg_losses"]


@dataclass(frozen=True)
class FedDF(Algorithm):
    """Ensemble distillation for robust model fusion.

    Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020, arXiv 2006.07242.

    The student starts from the mean of the clients' models, weighted by samples, and minimises KL(teacher || student)
    by `steps` steps of Adam with a cosine rate. The teacher is the softmax of the clients' mean logits (the paper),
    their mean softmax, or each client in turn (`avg_losses`, the default of the authors' code, equal in gradient to
    the mean softmax). The authors evaluate the student on labelled validation data at the server and keep the best;
    here the server has no labels, and the number of steps is fixed. Student and teachers are in eval mode: the student
    has the batch-norm statistics of the clients' mean, which do not drift to the server's data.
    """

    steps: Annotated[Positive, "steps of distillation in a round"] = 1000
    lr: Annotated[Scale, "Adam's rate at the first of them"] = 1e-3
    batch_size: Annotated[Positive, "samples of the server in a step"] = 128
    clip: Annotated[Scale, "largest norm of the gradient"] = 5.0
    target: Annotated[Target, "avg_logits | avg_probs | avg_losses"] = "avg_logits"
    needs: ClassVar[frozenset[str]] = frozenset({"clients", "server_data"})

    def aggregate_updates(self, server: Tensors, updates: Sequence[ClientUpdate], context: ServerContext) -> Tensors:
        data, flat = context.server_data, context.build_model()
        assert data is not None
        total = sum(update.samples for update in updates)
        mean = sum(update.sent["w"].double() * (update.samples / total) for update in updates)
        assert isinstance(mean, Tensor)
        flat.module.eval()
        with torch_threads(1):  # the same bits on every engine
            teacher = self.teacher(flat, data, updates, context)
            flat.load(mean.to(flat.w.dtype), context.buffers)
            self.distil(flat, data, teacher, context)
        return {"w": flat.w.clone()}

    @torch.no_grad()
    def teacher(
        self, flat: FlatModel, data: UnlabelledData, updates: Sequence[ClientUpdate], context: ServerContext
    ) -> Tensor:
        """Return the ensemble's class probabilities of every sample."""
        chunks = torch.split(torch.arange(len(data)), self.batch_size)
        scores = torch.zeros(())
        for update in updates:
            flat.load(update.sent["w"], dict(update.buffers) or context.buffers)
            logits = torch.cat([flat.module(data.batch(chunk)) for chunk in chunks]).double()
            scores = scores + (logits if self.target == "avg_logits" else logits.softmax(1)) / len(updates)
        probabilities = scores.softmax(1) if self.target == "avg_logits" else scores
        return probabilities.to(flat.w.dtype)

    def distil(self, flat: FlatModel, data: UnlabelledData, teacher: Tensor, context: ServerContext) -> None:
        """Train the model towards the teacher's probabilities."""
        parameters, random = [p for p in flat.module.parameters() if p.requires_grad], context.stream()
        adam = torch.optim.Adam(parameters, lr=self.lr, foreach=False)
        size = min(self.batch_size, len(data))
        for step in range(self.steps):
            adam.param_groups[0]["lr"] = self.lr * (1 + math.cos(math.pi * step / self.steps)) / 2
            chosen = torch.from_numpy(random.choice(len(data), size, replace=False))
            flat.g.zero_()
            student = flat.module(data.batch(chosen)).log_softmax(1)
            F.kl_div(student, teacher[chosen], reduction="batchmean").backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, self.clip, foreach=False)
            adam.step()
