"""A computation as a graph of ATen calls that runs without autograd, and what may be rearranged in it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen

aten = torch.ops.aten

# Operations on each channel by itself that map a channel of zeros to a channel of zeros.
CHANNELWISE = {
    aten.relu.default,
    aten.max_pool2d_with_indices.default,
    aten.avg_pool2d.default,
    aten._adaptive_avg_pool2d.default,
    aten.hardtanh.default,
    aten.tanh.default,
    aten.gelu.default,
    aten.silu.default,
    aten.leaky_relu.default,
    operator.getitem,
}
SAME_IF_SHAPED = {aten.expand.default, aten.view.default, aten._unsafe_view.default}
LANES = 8  # channels that a vector register holds


class UntraceableError(Exception):
    """The computation is not the same sequence of calls every time, or hides a tensor."""


def trace(function: Callable[..., Any], inputs: Sequence[Tensor]) -> GraphModule:
    """The calls that `function(*inputs)` makes. It is run once, on these inputs."""
    from torch.fx.experimental.proxy_tensor import make_fx  # a second, which only those who trace pay

    try:
        # Each input as an object of its own: one tensor given twice would be recorded as one input for good.
        apart = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs]
        graph_module = make_fx(function)(*apart)
    except Exception as error:  # whatever user code does that cannot be traced
        raise UntraceableError(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    if any(node.op == "get_attr" for node in graph_module.graph.nodes):
        raise UntraceableError("it keeps a tensor that is neither a parameter nor a buffer")
    return finish(graph_module)


def finish(graph_module: GraphModule) -> GraphModule:
    graph_module.graph.eliminate_dead_code()
    graph_module.graph.set_codegen(CodeGen())  # plain arguments, without pytree
    graph_module.recompile()
    return graph_module


def without_views_of_views(graph: Graph) -> None:
    """Autograd's bookkeeping costs a call each and changes nothing once there is no autograd."""
    for node in list(graph.nodes):
        if node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.t.default and node.args[0].target is aten.t.default:
            node.replace_all_uses_with(node.args[0].args[0])


def without_repeats(graph_module: GraphModule) -> None:
    """Calls that give back what they are given, and equal calls: a mapped step is full of them.

    Two equal tensors are not one if a later call writes into one of them; then all is left as it is.
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


def hoist(graph: Graph, values: dict[Node, Tensor]) -> list[Tensor]:
    """Take out of a graph what each run makes anew from tensors that stay where they are, and give it as inputs.

    `values` has those tensors by their placeholders. Transposed views of them and the one that a backward pass
    starts with are made once; padded weights have a place that is filled again each time. These inputs come last.
    """
    made: list[Tensor] = []
    inputs = [node for node in graph.nodes if node.op == "placeholder"]

    def input_of(tensor: Tensor) -> Node:
        made.append(tensor)
        with graph.inserting_after(inputs[-1]):
            node: Node = graph.placeholder(f"made_{len(made)}")
        inputs.append(node)
        return node

    for node in list(graph.nodes):
        source: Any = node.args[0] if node.args else None
        if node.target is aten.ones_like.default and node.meta["val"].ndim == 0:
            one = torch.ones((), dtype=node.meta["val"].dtype, device=node.meta["val"].device)
            node.replace_all_uses_with(input_of(one))
        elif node.target is aten.t.default and source in values:
            node.replace_all_uses_with(input_of(values[source].t()))
        elif node.target is aten.constant_pad_nd.default and source in values:
            pad_in_place(graph, node, values[source], input_of)
        elif node.target is aten.constant_pad_nd.default:
            crop_by_views(graph, node)
        elif node.target is aten.view.default and source.target is aten.sum.dim_IntList:
            sum_without_view(node, source)
    return made


def pad_in_place(graph: Graph, node: Any, weight: Tensor, input_of: Callable[[Tensor], Node]) -> None:
    """A padded weight is copied into the middle of zeros that stay, in the layout in which it is used."""
    pads = node.args[1]
    if len(node.args) > 2 or any(pads[::2]) or min(pads) < 0:  # not with zeros, or not only after it
        return
    (clone,) = node.users if len(node.users) == 1 else (None,)
    last = clone if clone is not None and clone.target is aten.clone.default else node
    padded = aten.constant_pad_nd.default(torch.zeros_like(weight), pads)
    if last is clone:
        padded = padded.contiguous(memory_format=clone.kwargs["memory_format"])
    inner = padded
    for dim, size in enumerate(weight.shape):
        inner = inner.narrow(dim, 0, size)
    place, whole = input_of(inner), input_of(padded)
    with graph.inserting_before(node):
        graph.call_function(aten.copy_.default, (place, node.args[0]))
    last.replace_all_uses_with(whole)


def crop_by_views(graph: Graph, node: Any) -> None:
    """A gradient without what was padded is only copied: a view of it will do."""
    cropped, pads = node.args[0], node.args[1]
    if max(pads) > 0 or any(pads[::2]) or any(user.op != "output" for user in node.users):
        return
    for at, cut in enumerate(pads[1::2]):
        if cut:
            with graph.inserting_before(node):
                cropped = graph.call_function(aten.slice.Tensor, (cropped, -1 - at, 0, cut))
    node.replace_all_uses_with(cropped)


def sum_without_view(view: Any, summed: Any) -> None:
    """A sum that keeps its dimension, only to lose it."""
    tensor, dims, keep = (*summed.args, False)[:3]
    if dims == [0] and keep and len(summed.users) == 1 and len(view.args[1]) == 1:
        summed.args = (tensor, dims, False)
        view.replace_all_uses_with(summed)


def pool_before_relu(graph: Graph) -> None:
    """max-pool(ReLU(x)) = ReLU(max-pool(x)), values and gradients, with a quarter of the ReLU's work."""
    for relu in [node for node in graph.nodes if node.target is aten.relu.default]:
        (pool,) = relu.users if len(relu.users) == 1 else (None,)
        if pool is None or pool.target is not aten.max_pool2d_with_indices.default:
            continue
        if [user.args[1] for user in pool.users] != [0]:  # someone looks at the indices
            continue
        (pooled,) = pool.users
        pool.replace_input_with(relu, relu.args[0])
        with graph.inserting_after(pooled):
            after = graph.call_function(aten.relu.default, (pooled,))
        pooled.replace_all_uses_with(after, delete_user_cb=lambda user, after=after: user is not after)
        graph.erase_node(relu)


def pad_channels(graph: Graph) -> int:
    """Convolutions whose channels do not fill vector registers get channels of zeros, which stay zero.

    Only where every reader of the channels is another convolution, behind operations on each channel by itself.
    Returns how many were padded.
    """
    padded = 0
    convolutions = [node for node in graph.nodes if is_plain_convolution(node)]
    for node, channels in [(node, node.args[1].meta["val"].shape[0]) for node in convolutions]:
        missing = -channels % LANES
        readers = convolutions_behind(node)
        if not missing or readers is None:
            continue
        with graph.inserting_before(node):
            weight = with_zeros(graph, node.args[1], [0, 0, 0, 0, 0, 0, 0, missing])
            bias = node.args[2] and graph.call_function(aten.constant_pad_nd.default, (node.args[2], [0, missing]))
        node.args = (node.args[0], weight, bias, *node.args[3:])
        for reader in readers:
            with graph.inserting_before(reader):
                weight = with_zeros(graph, reader.args[1], [0, 0, 0, 0, 0, missing])
            reader.args = (reader.args[0], weight, *reader.args[2:])
        padded += 1
    return padded


def with_zeros(graph: Graph, weight: Any, padding: list[int]) -> Node:
    """A convolution's weight with more channels, in the layout that convolutions run in."""
    larger = graph.call_function(aten.constant_pad_nd.default, (weight, padding))
    return graph.call_function(aten.clone.default, (larger,), {"memory_format": torch.channels_last})


def is_plain_convolution(node: Node) -> bool:
    if node.target is not aten.convolution.default:
        return False
    _, _, _, stride, _, _, transposed, _, groups = node.args
    flat = isinstance(stride, list | tuple) and len(stride) == 2
    return bool(flat and not transposed and groups == 1)


def convolutions_behind(node: Node) -> list[Node] | None:
    """The convolutions that read a node's channels; None if anything else looks at them."""
    found = []
    for user in node.users:
        if is_plain_convolution(user) and user.args[0] is node:
            found.append(user)
        elif user.target in CHANNELWISE:
            behind = convolutions_behind(user)
            if behind is None:
                return None
            found += behind
        else:
            return None
    return found or None
