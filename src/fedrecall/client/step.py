"""The loss and the gradient of one batch: eager, or the same calls traced once and run without autograd.

`exact` is traced where that gives the bits of the eager step, which is checked, then and again later, and eager
elsewhere. `fast` may also pad channels, and `lanes` runs kernels of our own: other roundings, the same on every
engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._python_dispatch import _disable_current_modes

from fedrecall.algorithms.base import Algorithm
from fedrecall.client.draws import has_draws
from fedrecall.client.graph import (
    UntraceableError,
    finish,
    hoist,
    pad_channels,
    pool_before_relu,
    trace,
    without_views_of_views,
)
from fedrecall.client.hidden_state import CHANGES, fingerprint, generators
from fedrecall.client.loss_scale import LossScale
from fedrecall.models.representation import Representation
from fedrecall.objectives.base import Objective
from fedrecall.recipe.settings import Local
from fedrecall.vector import FlatModel, Tensors

if TYPE_CHECKING:
    from fedrecall.client.lanes.samples import LanesStep

TRACE_AFTER = 150  # steps with batches of one shape: tracing takes a second or so, most of it imports
MOST_GRAPHS = 8
NOT_SHARED = "what is neither a parameter nor a buffer is not shared between processes, nor kept in checkpoints"
CHECK_EVERY = 1024  # traced steps, at the latest: then an eager one is taken beside it
# How far a step may be from an eager one, beside the gradient's length. In a max-pooling two values may be so near
# each other that rounding decides which is the largest; a kernel that is wrong is so by far more than that.
TOLERANCES = {"exact": 0.0, "fast": 1e-3, "lanes": 1e-2}


@dataclass(frozen=True)
class Compared:
    """What other models make of a batch, where the objective or the algorithm asks for it."""

    teacher: Tensor | None = None
    global_features: Tensor | None = None
    previous_features: Tensor | None = None

    def tensors(self) -> Tensors:
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}


NOTHING = Compared()


class Step:
    """Fills `flat.g` with the gradient of a batch and returns its loss."""

    def __init__(self, flat: FlatModel, objective: Objective, algorithm: Algorithm, local: Local) -> None:
        self.flat, self.objective, self.algorithm, self.local = flat, objective, algorithm, local
        wanted = "features" in algorithm.needs
        self.representation = Representation(flat.module, algorithm.representation) if wanted else None
        self.note: str | None = None  # why nothing is traced, or in lanes, if so
        self.way: str = local.step  # `lanes` becomes `exact` where there is no kernel for the model
        self._traces = True
        self.scale: LossScale | None = None  # of float16
        self._seen: dict[torch.Size, int] = {}
        self._graphs: dict[torch.Size, Traced | LanesStep] = {}
        self._recorded: list[Any] = []  # what the recordings rely on, as it was then
        # All parameters, frozen ones too, and all buffers: a graph must not hide a tensor.
        self._tensors = {**dict(flat.module.named_parameters()), **dict(flat.module.named_buffers())}
        if self.way == "lanes":
            refuse_processor()

    def __call__(self, x: Tensor, target: Tensor, client: Tensors, compared: Compared = NOTHING) -> Tensor:
        if self.scale is not None:
            return self._scaled(self.scale, x, target, client, compared)
        graph = self._graphs.get(self._key(x))
        if graph is not None:
            graph.steps += 1
            if graph.steps == graph.next_check:
                return self._checked(graph, x, target, client, compared)
            return graph(x, target, client, compared)
        if self._due(x):
            return self._first_traced(x, target, client, compared)
        return self.eager(x, target, client, compared)

    def _key(self, x: Tensor) -> torch.Size:
        """What a graph is for: batches of one shape, in lanes of any size."""
        return x.shape[1:] if self.way == "lanes" else x.shape

    def _due(self, x: Tensor) -> bool:
        """Is this the batch at which its shape is traced?"""
        if not self._traces:
            return False
        if self.way == "lanes":
            return True
        if self.way == "fast":  # by the shape alone, so that every worker does the same
            return len(x) == self.local.batch_size
        self._seen[x.shape] = self._seen.get(x.shape, 0) + 1
        return self._seen[x.shape] > TRACE_AFTER and len(self._graphs) < MOST_GRAPHS

    def begin_client(self) -> None:
        """Nothing is kept from one client to the next."""
        self.scale = LossScale() if self.local.precision == "float16" else None

    def eager(
        self, x: Tensor, target: Tensor, client: Tensors, compared: Compared, scale: float | None = None
    ) -> Tensor:
        self.flat.g.zero_()
        with precision(self.local, x.device):
            logits = self.flat.module(x)
        features = self.representation.take() if self.representation else None
        loss = self.loss(logits, features, target, client, compared)
        (loss if scale is None else loss * scale).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _scaled(self, scale: LossScale, x: Tensor, target: Tensor, client: Tensors, compared: Compared) -> Tensor:
        """A step in float16, taken again with a smaller scale where its gradient overflows."""
        start = Snapshot.of(self.flat)
        while True:
            loss = self.eager(x, target, client, compared, scale.value)
            self.flat.g.mul_(1 / scale.value)
            if bool(self.flat.g.isfinite().all()):
                scale.held()
                return loss
            if not scale.overflowed():
                return loss
            start.restore(self.flat)

    def loss(
        self, logits: Tensor, features: Tensor | None, target: Tensor, client: Tensors, compared: Compared
    ) -> Tensor:
        """The objective, and the algorithm's penalty where it has one."""
        loss = self.objective(logits, target, client, compared.teacher)
        if features is None:
            return loss
        assert compared.global_features is not None
        assert compared.previous_features is not None
        return loss + self.algorithm.penalty(features, compared.global_features, compared.previous_features)

    def _first_traced(self, x: Tensor, target: Tensor, client: Tensors, compared: Compared) -> Tensor:
        """An eager step, and a traced one from the same state; the traced one stays if they agree."""
        start, outside = Snapshot.of(self.flat), [*generators(), *self.fingerprint()]
        loss = self.eager(x, target, client, compared)
        eager = Snapshot.of(self.flat)
        try:
            if [*generators(), *self.fingerprint()] != outside:
                raise UntraceableError(f"{CHANGES}; {NOT_SHARED}")
            start.restore(self.flat)
            graph = self._recorded_step(x, target, client, compared)
            start.restore(self.flat)
            traced_loss = graph(x, target, client, compared)
            if not eager.agrees(self.flat, loss, traced_loss, self.tolerance):
                raise UntraceableError("its first traced step differs from the eager one")
        except UntraceableError as error:
            self._do_without(error)
            eager.restore(self.flat)
            return loss
        self._graphs[self._key(x)] = graph
        self._recorded = self._recorded or self.fingerprint()
        return traced_loss

    def _recorded_step(self, x: Tensor, target: Tensor, client: Tensors, compared: Compared) -> Traced | LanesStep:
        if self.way != "lanes":
            return Traced(self, x, target, client, compared)
        from fedrecall.client.lanes.samples import LanesStep  # a compiler, which only those who need it load

        return LanesStep(self, x)

    def _do_without(self, error: UntraceableError) -> None:
        """No graphs or, if it is lanes that cannot be had, steps as if `exact` had been asked for."""
        if self.way == "lanes":
            self.way = "exact"
            self.note = f"the model's steps are `exact` and not in lanes: {error}"
        else:
            self._traces = False
            self.note = f"the model's steps are not traced: {error}"

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.way]

    def _checked(
        self, graph: Traced | LanesStep, x: Tensor, target: Tensor, client: Tensors, compared: Compared
    ) -> Tensor:
        """A traced step beside an eager one; where they part, all steps are eager from here on."""
        graph.next_check += min(graph.steps, CHECK_EVERY)
        start = Snapshot.of(self.flat)
        loss = self.eager(x, target, client, compared)
        eager = Snapshot.of(self.flat)
        start.restore(self.flat)
        traced_loss = graph(x, target, client, compared)
        if eager.agrees(self.flat, loss, traced_loss, self.tolerance):
            return traced_loss
        self._stop_tracing(
            "one differed from an ordinary one, so those since they were last compared may differ too: "
            f"its forward depends on something that a recording does not hold; {NOT_SHARED}"
        )
        eager.restore(self.flat)
        return loss

    def begin_round(self) -> None:
        """Between rounds others may have changed what the recordings took for constant."""
        if self._graphs and self.fingerprint() != self._recorded:
            self._stop_tracing(f"an attribute or a variable that its forward may read has changed; {NOT_SHARED}")

    def _stop_tracing(self, reason: str) -> None:
        self.note = f"the model's steps are no longer traced: {reason}"
        self._traces = False
        self._graphs.clear()

    def fingerprint(self) -> list[Any]:
        """Of all that the code of a step may keep outside of tensors that it is given."""
        return fingerprint(self.flat.module, self.objective, self.algorithm)


class Traced:
    """The step for batches of one shape, as a graph."""

    def __init__(self, step: Step, x: Tensor, target: Tensor, client: Tensors, compared: Compared) -> None:
        flat = step.flat
        state = step._tensors
        names, client_names, compared_names = list(state), list(client), list(compared.tensors())
        forward = forward_graph(step, x)
        trainable = [slot.name for slot in flat.parameter_slots]

        def loss_and_gradients(*inputs: Tensor) -> tuple[Tensor, ...]:
            left = list(inputs)
            x, target = left.pop(0), left.pop(0)
            given = {name: left.pop(0) for name in names}
            client = {name: left.pop(0) for name in client_names}
            compared = Compared(**{name: left.pop(0) for name in compared_names})
            parameters = {name: given[name].detach().requires_grad_() for name in trainable}
            logits, *features = forward(x, *(given | parameters).values())
            loss = step.loss(logits, features[0] if features else None, target, client, compared)
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            self.used = [gradient is not None for gradient in gradients]
            return loss.detach(), *(gradient for gradient in gradients if gradient is not None)

        values = [*client.values(), *compared.tensors().values()]
        graph_module = trace(loss_and_gradients, [x, target, *(t.detach() for t in state.values()), *values])
        without_views_of_views(graph_module.graph)
        self._state = [tensor.detach() for tensor in state.values()]
        places = [node for node in graph_module.graph.nodes if node.op == "placeholder"][2:]
        self._made = hoist(graph_module.graph, dict(zip(places, self._state)))
        self._run: Callable[..., Any] = finish(graph_module).forward
        if not x.is_cpu and not has_draws(graph_module.graph):
            self._run = without_modes(self._run)
        self._g = flat.g
        self._gradients = [slot.view(flat.g) for slot, used in zip(flat.parameter_slots, self.used) if used]
        # It is compared with an eager step at its steps 1, 2, 4, 8, .., then at every CHECK_EVERY.
        self.steps, self.next_check = 0, 1

    @torch.no_grad()
    def __call__(self, x: Tensor, target: Tensor, client: Tensors, compared: Compared) -> Tensor:
        loss: Tensor
        given = (*client.values(), *compared.tensors().values())
        loss, *gradients = self._run(x, target, *self._state, *given, *self._made)
        if not all(self.used):
            self._g.zero_()
        torch._foreach_copy_(self._gradients, gradients)
        return loss


def forward_graph(step: Step, x: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    """The model alone, (x, *tensors) -> (logits, features), with pooling and channels rearranged."""
    module, names = step.flat.module, list(step._tensors)

    def forward(x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        with precision(step.local, x.device):
            logits = functional_call(module, dict(zip(names, tensors)), (x,))
        return (logits, step.representation.take()) if step.representation else (logits,)

    inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in step._tensors.values()]
    graph_module = trace(forward, [x, *inputs])
    pool_before_relu(graph_module.graph)
    if step.way == "fast":
        pad_channels(graph_module.graph)
    return finish(graph_module)


@dataclass(frozen=True)
class Snapshot:
    """All that a step changes besides the weights: the gradient, the buffers, and torch's default generator."""

    g: Tensor
    buffers: Tensors
    generator: Tensor

    @classmethod
    def of(cls, flat: FlatModel) -> Snapshot:
        return cls(flat.g.clone(), flat.buffers(), torch.get_rng_state())

    def restore(self, flat: FlatModel) -> None:
        flat.g.copy_(self.g)
        flat.load(flat.w, self.buffers)
        torch.set_rng_state(self.generator)

    def agrees(self, flat: FlatModel, loss: Tensor, traced_loss: Tensor, tolerance: float) -> bool:
        if not torch.equal(self.generator, torch.get_rng_state()):
            return False
        buffers = flat.buffers()
        pairs = [(loss, traced_loss), (self.g, flat.g), *((self.buffers[name], buffers[name]) for name in buffers)]
        if not tolerance:
            return all(is_same(ours, theirs) for ours, theirs in pairs)
        return all(is_near(ours, theirs, tolerance) for ours, theirs in floats(pairs))


def floats(pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [(ours.cpu().double(), theirs.cpu().double()) for ours, theirs in pairs]


def is_same(ours: Tensor, theirs: Tensor) -> bool:
    """Equal, also where neither is a number: a model that diverges does so in both."""
    return torch.equal(ours, theirs) or bool(((ours == theirs) | ((ours != ours) & (theirs != theirs))).all())


def is_near(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    """Up to rounding, or not a number in both."""
    difference, size = (ours - theirs).norm(), ours.norm()
    if not size.isfinite():
        return not theirs.norm().isfinite()
    return bool(difference <= tolerance * size + 1e-6)


def refuse_processor() -> None:
    """An `InputError` where kernels in lanes would come to other numbers than elsewhere."""
    from fedrecall.client.lanes.jit import host

    host()


def without_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    def alone(*inputs: Tensor) -> Any:
        with _disable_current_modes():
            return function(*inputs)

    return alone


def precision(local: Local, device: torch.device) -> AbstractContextManager[Any]:
    return nullcontext() if local.precision == "float32" else mixed_precision(local.precision, device.type)


@contextmanager
def mixed_precision(precision: str, device_type: str) -> Iterator[None]:
    try:
        with torch.autocast(device_type, getattr(torch, precision)):
            yield
    finally:
        # Within an outer autocast, though that is switched off, torch would keep the rounded weights for later.
        torch.clear_autocast_cache()
