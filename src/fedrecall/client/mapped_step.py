"""The step of one client mapped over a cohort, as a graph of ATen calls that all threads share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.func import functional_call, grad_and_value, vmap
from torch.fx import Graph, GraphModule
from torch.fx.graph import CodeGen
from torch.utils._pytree import tree_leaves

from fedrecall.algorithms.base import Algorithm
from fedrecall.client.batch import Batch
from fedrecall.client.forward_calls import forward_calls
from fedrecall.core.vector import FlatModel, Tensors
from fedrecall.models.representation import Representation
from fedrecall.objectives.base import Objective

aten = torch.ops.aten
SAME_IF_SHAPED = {aten.expand.default, aten.view.default, aten._unsafe_view.default}

Mapped = Callable[..., Any]
Shapes = tuple[torch.Size, ...]


class UntraceableError(Exception):
    """Raised if a computation cannot be recorded as one sequence of calls."""


class MappedSteps:
    """Graphs of the mapped step, one per combination of input shapes.

    torch.fx patches torch for the whole process while it traces, so graphs are made in one thread, before other
    threads start to use them.
    """

    def __init__(self, flat: FlatModel, objective: Objective, algorithm: Algorithm) -> None:
        self.flat, self.objective, self.algorithm = flat, objective, algorithm
        wanted = "features" in algorithm.needs | objective.needs
        self.representation = Representation(flat.module, algorithm.representation) if wanted else None
        self._frozen = {name: p.detach() for name, p in flat.module.named_parameters() if not p.requires_grad}
        self._buffers = [*flat.float_buffers, *flat.int_buffers]
        self._graphs: dict[Shapes, Mapped] = {}

    def make(self, batch: Batch, views: Sequence[Tensor]) -> None:
        """Trace the step for inputs of these shapes, unless that is done.

        A batch has one row per client. `views` are the parameters, without a leading dimension if all clients have
        the same ones, and the buffers.
        """
        named = batch.tensors()
        inputs = [*named.values(), *views]
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes not in self._graphs:
            self._graphs[shapes] = self._traced(inputs, [*named])

    def __call__(self, batch: Batch, views: Sequence[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return losses, parameter gradients and new buffers, one row per client."""
        inputs = [*batch.tensors().values(), *views]
        graph = self._graphs[tuple(tensor.shape for tensor in inputs)]
        with torch.no_grad():
            loss, *rest = graph(*inputs, *self._frozen.values())
        count = len(self.flat.parameter_slots)
        return loss, rest[:count], rest[count:]

    def _traced(self, inputs: Sequence[Tensor], names: Sequence[str]) -> Mapped:
        slots, (x, first) = self.flat.parameter_slots, (inputs[0], inputs[len(names)])
        shared = first.shape == slots[0].shape

        def loss_of(parameters: Tensors, buffers: Tensors, given: Tensors, frozen: Tensors) -> tuple[Tensor, Tensors]:
            batch, new = Batch.of(given), {name: buffer.clone() for name, buffer in buffers.items()}
            logits = functional_call(self.flat.module, parameters | new | frozen, (batch.x,))
            features = self.representation.take() if self.representation else None
            return batch.loss(self.objective, self.algorithm, logits, features), new

        in_dims = (None if shared else 0, 0, 0, None)
        mapped = vmap(grad_and_value(loss_of, has_aux=True), in_dims=in_dims)

        def flat_step(*inputs: Tensor) -> tuple[Tensor, ...]:
            left = list(inputs)
            given = {name: left.pop(0) for name in names}
            parameters = {slot.name: left.pop(0) for slot in slots}
            buffers = {name: left.pop(0) for name in self._buffers}
            frozen = {name: left.pop(0) for name in self._frozen}
            gradients, (loss, new) = mapped(parameters, buffers, given, frozen)
            return loss, *(gradients[slot.name] for slot in slots), *(new[name] for name in self._buffers)

        graph_module = trace(flat_step, [*inputs, *self._frozen.values()])
        if has_constants(graph_module) and keeps_tensor(self.flat, x[0]):
            raise UntraceableError("it keeps a tensor that is neither a parameter nor a buffer")
        without_views_of_views(graph_module.graph)
        without_repeats(graph_module)
        run: Mapped = finish(graph_module).forward
        return run


def trace(function: Callable[..., Any], inputs: Sequence[Tensor]) -> GraphModule:
    """Return the graph of the calls that `function(*inputs)` makes, recorded in one run."""
    from torch.fx.experimental.proxy_tensor import make_fx  # takes a second, so only when needed

    try:
        # Make inputs distinct objects: a tensor passed twice would be recorded as a single input.
        apart = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs]
        graph_module = make_fx(function)(*apart)
    except Exception as error:  # user code may raise anything
        raise UntraceableError(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    return finish(graph_module)


def has_constants(graph_module: GraphModule) -> bool:
    """Whether the calls read tensors other than inputs, such as an objective's class weights."""
    return any(node.op == "get_attr" for node in graph_module.graph.nodes)


def keeps_tensor(flat: FlatModel, x: Tensor) -> bool:
    """Whether the forward pass reads a tensor from outside `x`, parameters and buffers, which may change."""
    known = {id(tensor) for tensor in (x, *flat.module.parameters(), *flat.module.buffers())}
    for _, arguments, result in forward_calls(flat, x)[0]:
        if any(isinstance(given, Tensor) and id(given) not in known for given in tree_leaves(arguments)):
            return True
        known.update(map(id, tree_leaves(result)))
    return False


def finish(graph_module: GraphModule) -> GraphModule:
    graph_module.graph.eliminate_dead_code()
    graph_module.graph.set_codegen(CodeGen())  # plain arguments, without pytree
    graph_module.recompile()
    return graph_module


def without_views_of_views(graph: Graph) -> None:
    """Remove detach calls and double transpositions, which autograd needed and which cost a call each."""
    for node in list(graph.nodes):
        if node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.t.default and node.args[0].target is aten.t.default:
            node.replace_all_uses_with(node.args[0].args[0])


def without_repeats(graph_module: GraphModule) -> None:
    """Remove calls that return their input, and merge equal calls; a mapped step has many of both.

    A graph with in-place calls is left unchanged: equal tensors differ after a write to one of them.
    """
    from torch.fx.passes.dialect.common.cse_pass import CSEPass

    calls = [node.target for node in graph_module.graph.nodes if isinstance(node.target, OpOverload)]
    if any(call._schema.is_mutable for call in calls):
        return
    for node in list(graph_module.graph.nodes):
        source: Any = node.args[0] if node.args else None
        shaped = node.target in SAME_IF_SHAPED and node.meta["val"].shape == source.meta["val"].shape
        if shaped or (node.target is aten.mul.Scalar and node.args[1] == 1):
            node.replace_all_uses_with(source)
        elif node.target is aten.transpose.int is source.target and {*node.args[1:]} == {*source.args[1:]}:
            node.replace_all_uses_with(source.args[0])
    merged = CSEPass()(graph_module)
    assert merged is not None
    graph_module.graph = merged.graph_module.graph
