"""The gradient of a step in lanes against the one that PyTorch computes in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from case_runs import nudged
from random_cases import Case
from torch import Tensor, nn
from torch.func import functional_call

from fedrecall import Federation, Images, Local
from fedrecall.algorithms import ALGORITHM
from fedrecall.client import batch as client_batch
from fedrecall.client.job import Job
from fedrecall.client.lanes.decision import decide_steps
from fedrecall.client.lanes.samples import LanesStep
from fedrecall.core.labels import Labels
from fedrecall.core.vector import FlatModel, Tensors
from fedrecall.objectives import OBJECTIVE, WSM, CrossEntropy

NUDGE = 1e-5  # of the weights, relative: more than the rounding of a float32 step does to what is compared
TIMES_EAGER = 4.0  # the error that a step in lanes may have, in those of PyTorch's own float32 step
ROUNDING = 2.0**-20  # and some roundings of the largest entries, where PyTorch's own happens to have next to none


@dataclass
class Batch:
    """A batch as models and as kernels take it, and the labels of its client."""

    x: Tensor  # float64, normalised
    stored: Tensor
    target: Tensor
    labels: Labels
    teacher: Tensor

    def only(self, kept: Tensor) -> Batch:
        return Batch(self.x[kept], self.stored[kept], self.target[kept], self.labels, self.teacher[kept])


def lanes_problems(case: Case) -> list[str] | None:
    """Compare a step of a case; None if its steps are not in lanes, or no sample is far from all ties."""
    federation = case.federation()
    flat = FlatModel(copy.deepcopy(case.instance))
    local = Local(**case.local)
    given = ALGORITHM.from_python(case.algorithm), OBJECTIVE.from_python(case.objective), local
    steps = decide_steps(Job(case.module, *given, case.number), federation, flat, on_cpu=True)
    if steps.job.lowering is None:
        return None
    objective, lowering = steps.job.objective, steps.job.lowering
    batch = first_batch(case, federation, flat.w.dtype)
    module = copy.deepcopy(case.instance).double()
    batch = batch.only(far_from_ties(module, batch, objective))
    if not len(batch.x):
        return None
    loss, exact = gradient(module, batch, objective)
    own_loss, own = gradient(case.instance, batch, objective, torch.float32)
    step = LanesStep(lowering, flat, objective, local)
    prepared = objective.prepare(batch.labels) if objective.knows_labels else {}
    step.begin_client(0.1, prepared)
    rows = torch.arange(local.batch_size) % len(batch.x)
    taken(step, batch.only(rows), prepared)  # a whole batch, which must leave nothing to the one behind it
    found_loss = taken(step, batch, prepared)
    found = torch.cat([slot.view(flat.g).reshape(-1) for slot in flat.parameter_slots]).double()
    allowed = TIMES_EAGER * float((own - exact).norm()) + ROUNDING * float(exact.norm())
    problems = []
    if not float((found - exact).norm()) <= allowed + 1e-30:
        problems.append(f"the gradient is {float((found - exact).norm()):.3g} off, and {allowed:.3g} is allowed")
    if not abs(found_loss - loss) <= TIMES_EAGER * abs(own_loss - loss) + ROUNDING * (1 + abs(loss)):
        problems.append(f"the loss is {found_loss}, PyTorch's {own_loss}, and in float64 {loss}")
    return problems


def taken(step: LanesStep, batch: Batch, prepared: Tensors) -> float:
    """Take a step; return the loss."""
    x = batch.stored if step.reads_bytes else batch.x.float()
    return float(step(client_batch.Batch(x, batch.target, prepared, batch.teacher.float())))


def first_batch(case: Case, federation: Federation, dtype: torch.dtype) -> Batch:
    """The first samples of the first client, without augmentation."""
    indices = torch.from_numpy(federation.train_indices(0)[: case.local["batch_size"]])
    stored, target = federation.train.gather(indices)
    x, transform = stored.double(), federation.transform
    if isinstance(transform, Images):
        mean, std = (torch.tensor(numbers, dtype=torch.float64) for numbers in (transform.mean, transform.std))
        x = ((x / 255 - mean) / std).permute(0, 3, 1, 2)
    else:
        stored = stored.to(dtype)
    random = torch.Generator().manual_seed(case.number)
    teacher = torch.randn(len(x), case.classes, generator=random, dtype=torch.float64)
    return Batch(x, stored, target, federation.labels(0, with_pooled=True), teacher)


def loss_of(logits: Tensor, batch: Batch, objective: Any) -> Tensor:
    """The loss: of those that kernels compute, in plain words of PyTorch."""
    rows = torch.arange(len(logits))
    own = logits[rows, batch.target]
    if type(objective) is CrossEntropy:
        return (logits.logsumexp(1) - own).mean()
    if type(objective) is WSM and not objective.distill:
        return ((logits + wsm_offset(batch.labels, objective).to(logits)).logsumexp(1) - own).mean()
    client = objective.prepare(batch.labels) if objective.knows_labels else {}
    client = {name: tensor.to(logits) if tensor.is_floating_point() else tensor for name, tensor in client.items()}
    loss: Tensor = objective(logits, batch.target, client, batch.teacher.to(logits))
    return loss


def wsm_offset(labels: Labels, objective: WSM) -> Tensor:
    """tau log((1 - lam) beta + lam / C), or with a prior pi, tau log(((1 - lam) beta + lam pi) / pi)."""
    beta, lam = labels.counts.double() / labels.counts.sum(), objective.smoothing
    if objective.tau == 0:
        return torch.zeros_like(beta)
    if objective.prior == "uniform":
        return objective.tau * ((1 - lam) * beta + lam / len(beta)).log()
    assert labels.pooled is not None
    ratio = ((1 - lam) * beta + lam * labels.pooled) / labels.pooled
    return objective.tau * torch.where(labels.pooled > 0, ratio, torch.tensor(lam, dtype=torch.float64)).log()


def gradient(
    module: nn.Module, batch: Batch, objective: Any, dtype: torch.dtype = torch.float64
) -> tuple[float, Tensor]:
    """The loss of a batch and its gradient as one vector, in float64 numbers."""
    parameters = {name: p.detach().requires_grad_(p.requires_grad) for name, p in module.named_parameters()}
    loss = loss_of(functional_call(module, parameters, (batch.x.to(dtype),)), batch, objective)
    trained = [parameter for parameter in parameters.values() if parameter.requires_grad]
    parts = torch.autograd.grad(loss, trained, allow_unused=True)
    whole = [torch.zeros_like(p) if g is None else g for p, g in zip(trained, parts)]
    return loss.item(), torch.cat([part.reshape(-1) for part in whole]).double()


def far_from_ties(module: nn.Module, batch: Batch, objective: Any) -> Tensor:
    """Where no rounding decides a maximum or a sign: whose gradient hardly changes when all weights do."""
    near = nudged(copy.deepcopy(module), NUDGE)
    kept = []
    for place in range(len(batch.x)):
        alone = batch.only(torch.tensor([place]))
        (_, here), (_, there) = (gradient(model, alone, objective) for model in (module, near))
        kept.append(bool((here - there).norm() <= 100 * NUDGE * here.norm()))
    return torch.tensor(kept).nonzero()[:, 0]
