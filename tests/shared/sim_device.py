"""A second device in software, `sim`: its tensors hold a CPU tensor, and the CPU's own kernels compute with it.

Importing this registers it. What differs from the CPU is what must not happen: an operation that mixes devices and
a float64 tensor on the device raise. Its generator is of the CPU's kind: equal seeds give equal numbers.

Backward passes run in a thread of autograd, as on a GPU. Its kernels use as many threads as the variable
OMP_NUM_THREADS says, which must be 1 for the CPU's bits. The thread aborts when the process ends, which is
therefore ended before that (`atexit`), always with exit code 0.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "sim"
COUNT = 2  # devices
COPIES = {"aten.copy_.default", "aten._to_copy.default", "aten._copy_from_and_resize.default"}
# An index may come from the CPU, as on a GPU.
INDEXED = {"aten.index.Tensor", "aten.index_put_.default", "aten._index_put_impl_.default"}

# As if there were no deterministic algorithm for it. A forward call: one in that thread would end the process.
NONDETERMINISTIC = {"aten._adaptive_avg_pool2d.default"}

calls: Counter[str] = Counter()  # what ran on the device
generator = torch.Generator()  # the device's own
memory = {"free": 2**34, "total": 2**34, "largest": 2**34}  # bytes: as the device tells, and of one tensor


class SimTensor(Tensor):
    """A tensor on `sim`; `raw` is the CPU tensor that it holds."""

    raw: Tensor
    number: int  # of its device: torch itself takes all for the first, because it lets Python have one only

    @staticmethod
    def __new__(cls, raw: Tensor, index: int) -> SimTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        made.raw, made.number = raw, index
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self) -> torch.device:
        return torch.device(NAME, self.number)

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: SimTensor) -> None:
        Tensor.data.__set__(self, other)
        self.raw, self.number = other.raw, other.number

    def __repr__(self) -> str:
        return f"sim({self.raw})"


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """A call with tensors on the device, or one that makes such a tensor."""
    name, given = str(func), [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = [tensor for tensor in given if isinstance(tensor, SimTensor)]
    refuse(func, name, given, here)
    calls[name] += 1
    target = kwargs.get("device")
    if target is not None:
        target, kwargs = torch.device(target), {**kwargs, "device": "cpu"}
        if name == "aten._to_copy.default":
            kwargs = {key: value for key, value in kwargs.items() if key != "non_blocking"}
    index = next((tensor.device.index for tensor in here), 0)
    if target is not None and target.type == NAME:
        index = target.index or 0
    with torch.no_grad():
        ours = tree_map(inside, args)
        if name == "aten.native_group_norm_backward.default" and ours[1].dim() == 4:
            # Off the CPU torch gives up channels last before this call, and another kernel rounds otherwise.
            ours = (*(tensor.contiguous(memory_format=torch.channels_last) for tensor in ours[:2]), *ours[2:])
        with own_draws() if torch.Tag.nondeterministic_seeded in func.tags else contextlib.nullcontext():
            out = func(*ours, **tree_map(inside, kwargs))
    if target is not None and target.type == "cpu":
        return out
    written = list(written_to(func, args, kwargs))
    for tensor in written:
        if isinstance(tensor, SimTensor) and tensor.stride() != tensor.raw.stride():  # changed in place, as by `t_`
            tensor.data = SimTensor(tensor.raw, tensor.number)
    if written and func._schema.returns and all(r.alias_info for r in func._schema.returns):
        return written[0] if len(func._schema.returns) == 1 else tuple(written)
    return tree_map(lambda leaf: outside(leaf, index), out)


@contextlib.contextmanager
def own_draws() -> Iterator[None]:
    """Let the CPU's kernels draw from the device's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        yield
        generator.set_state(torch.get_rng_state())


def inside(leaf: Any) -> Any:
    return leaf.raw if isinstance(leaf, SimTensor) else leaf


def outside(leaf: Any, index: int) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    if leaf.dtype == torch.float64:
        raise AssertionError("a float64 tensor on the device")
    if leaf.nbytes > memory["largest"]:
        raise torch.OutOfMemoryError(f"sim out of memory. Tried to allocate {leaf.nbytes / 2**20:.2f} MiB.")
    return SimTensor(leaf, index)


def written_to(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """The arguments that a call writes into and gives back."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            if argument.name in kwargs:
                yield kwargs[argument.name]
            elif place < len(args):
                yield args[place]


def refuse(func: Any, name: str, given: list[Tensor], here: list[SimTensor]) -> None:
    if name in NONDETERMINISTIC and torch.are_deterministic_algorithms_enabled():
        raise RuntimeError(f"{func._schema.name} does not have a deterministic implementation, but you set ..")
    if name in COPIES:
        return
    if len({tensor.device for tensor in here}) > 1:
        raise AssertionError(f"{name}: tensors on {sorted({str(tensor.device) for tensor in here})}")
    if not here or name in INDEXED:
        return
    for tensor in given:
        number = tensor.dim() == 0 and torch.Tag.pointwise in func.tags and tensor is not given[0]
        if not isinstance(tensor, SimTensor) and not number:
            raise AssertionError(f"{name}: tensors on sim and of shape {list(tensor.shape)} on the CPU")


def mixed(func: Any) -> Any:
    """A product or convolution under autocast: its inputs in the smaller type."""

    def cast(leaf: Any) -> Any:
        return leaf.to(torch.get_autocast_dtype(NAME)) if isinstance(leaf, Tensor) else leaf

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
            return func(*tree_map(cast, args), **tree_map(cast, kwargs))

    return kernel


def dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """Dropout as the CPU computes it: torch has a fused kernel for devices, which rounds otherwise."""
    return x * torch.empty_like(x).bernoulli_(1 - p).div_(1 - p) if train else x


class Module:
    """`torch.sim`."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return COUNT

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed(self, seed: int) -> None:
        generator.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: object = None) -> Tensor:
        return generator.get_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        generator.set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        return memory["free"], memory["total"]

    def get_device_name(self, device: object = None) -> str:
        return "simulated device"


def leave() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError):  # it is closed
            stream.flush()
    os._exit(0)


_setup_privateuseone_for_python_backend(NAME, Module())
_library = torch.library.Library("_", "IMPL")
_library.fallback(lambda func, *args, **kwargs: run(func, args, kwargs), "PrivateUse1")
_library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
_autocast = torch.library.Library("aten", "IMPL")
for _name in ("conv2d", "linear", "addmm", "mm", "matmul"):
    _autocast.impl(_name, mixed(getattr(torch.ops.aten, _name).default), "AutocastPrivateUse1")
_autocast.impl("dropout", dropout, "AutogradPrivateUse1")
atexit.register(leave)
