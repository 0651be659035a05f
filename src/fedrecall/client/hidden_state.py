"""What a model's code may change and no recording of its step holds: plain attributes, variables of modules and
closures, and generators of random numbers other than torch's.

A fingerprint is taken before and after a step: one that changes it is not the same every time, or does something
for somebody else to see. It looks where the code looks, within bounds; docs/engines.md says what it cannot see.
"""

from __future__ import annotations

import itertools
import operator
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrecall.user_code import is_theirs

MOST_THINGS = 10_000  # in one fingerprint
MOST_BYTES = 2**20  # read of one array
CHANGES = "its forward changes an attribute or a variable, or draws random numbers itself"

# Objects of these packages are not looked into: a logger knows all others, and none is a place to count in.
CLOSED = {"builtins", "logging", "threading", "_thread", "_io", "os", "re", "weakref", "torch", "numpy"}
PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
CONTAINERS = (list, tuple, set, frozenset, deque)
EMPTY_CELL = object()

Fingerprint = list[Any]


def fingerprint(module: nn.Module, *others: object) -> Fingerprint:
    """Of a model and what is computed with it: equal lists, if nothing has changed that can be seen."""
    found: Fingerprint = []
    # Parameters and buffers are given to a recording anew each time.
    seen = {id(tensor) for tensor in itertools.chain(module.parameters(), module.buffers())}
    left: list[Any] = [*reversed(others), module]
    while left and len(found) < MOST_THINGS:
        thing = left.pop()
        if isinstance(thing, PLAIN):
            found.append(thing)
            continue
        found.append(id(thing))
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        try:
            value, parts = look_at(thing)
            inside = list(itertools.islice(parts, MOST_THINGS))
        except Exception:  # an object may answer questions as it likes
            continue
        found.append(value)
        left += reversed(inside)
    return found


def generators() -> Fingerprint:
    """Of Python's and NumPy's own generators."""
    _, numbers, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return [random.getstate(), np.asarray(numbers).tobytes(), rest]


def look_at(thing: Any) -> tuple[Any, Iterable[Any]]:
    """A value that changes when the thing does, and the things that it is made of: these must live on, because
    they are known by their ids."""
    if isinstance(thing, nn.Module):
        return None, module_parts(thing)
    if isinstance(thing, Tensor):
        return None if thing.is_inference() else thing._version, ()
    if isinstance(thing, dict):
        return len(thing), itertools.chain(*thing.items(), object_parts(thing))
    if isinstance(thing, CONTAINERS):
        return len(thing), itertools.chain(thing, object_parts(thing))
    if isinstance(thing, FunctionType):
        return None, function_parts(thing)
    if isinstance(thing, type):
        return None, class_parts(thing)
    if isinstance(thing, np.ndarray):
        return array_value(thing), thing.flat if thing.dtype.hasobject and thing.size < MOST_THINGS else ()
    if isinstance(thing, MethodType):
        return None, (thing.__self__, thing.__func__)
    if isinstance(thing, partial):
        return None, (thing.func, thing.args, thing.keywords)
    return other_value(thing), object_parts(thing)


def module_parts(module: nn.Module) -> Iterator[Any]:
    """Of a layer: its attributes, hooks and inner layers, and its class. Evaluation sets `training` to and fro."""
    yield type(module)
    for key, value in vars(module).items():
        empty = isinstance(value, dict | set) and not value  # as most of torch's own attributes are
        if key != "training" and not empty:
            yield key
            yield value


def class_parts(kind: type) -> Iterator[Any]:
    """Of a class of the user's: its methods and attributes, and those of the classes it derives from."""
    for base in kind.__mro__:
        if is_their_module(base.__module__):
            for key, value in list(vars(base).items()):
                if key not in ("__dict__", "__weakref__", "__doc__", "__annotations__"):
                    yield key
                    yield value


def function_parts(function: FunctionType) -> Iterator[Any]:
    """Of a function of the user's: the variables that its code names, outside of it and around it."""
    if not is_their_file(function.__code__.co_filename):
        return
    yield function.__defaults__
    yield function.__kwdefaults__
    yield from vars(function).values()
    for cell in function.__closure__ or ():
        yield cell_contents(cell)
    names = names_in(function.__code__)
    for name in names:
        if name in function.__globals__:
            value = function.__globals__[name]
            yield name
            yield value
            if isinstance(value, ModuleType) and is_their_module(value.__name__):
                yield from (vars(value).get(inner) for inner in names)


def object_parts(thing: Any) -> Iterator[Any]:
    """Of any other object: its attributes, and its class."""
    if isinstance(thing, property):
        yield from (thing.fget, thing.fset)
    elif isinstance(thing, staticmethod | classmethod):
        yield thing.__func__
    elif isinstance(thing, GeneratorType) and thing.gi_frame is not None:
        yield from list(thing.gi_frame.f_locals.values())
    if isinstance(thing, ModuleType) or type(thing).__module__.partition(".")[0] in CLOSED:
        return
    yield type(thing)
    yield from list(getattr(thing, "__dict__", {}).values())
    for base in type(thing).__mro__:
        slots = vars(base).get("__slots__", ())
        yield from (getattr(thing, name, None) for name in ([slots] if isinstance(slots, str) else slots))


def other_value(thing: Any) -> Any:
    """Of what keeps its state where Python cannot follow."""
    if isinstance(thing, random.Random):
        return thing.getstate()
    if isinstance(thing, np.random.Generator):
        return repr(thing.bit_generator.state)
    if isinstance(thing, np.random.RandomState | np.random.BitGenerator):
        return repr(thing.__getstate__())
    if isinstance(thing, torch.Generator):
        return thing.get_state().numpy().tobytes()
    if isinstance(thing, ContextVar):
        return id(thing.get(None))
    if isinstance(thing, GeneratorType):
        return None if thing.gi_frame is None else thing.gi_frame.f_lasti
    if isinstance(thing, itertools.count):
        return repr(thing)
    if hasattr(type(thing), "__length_hint__"):  # an iterator over a list, a range, ..
        return operator.length_hint(thing, -1)
    return None


def array_value(array: np.ndarray) -> Any:
    if array.dtype.hasobject:
        return array.shape
    flat = array.reshape(-1)[: MOST_BYTES // max(array.itemsize, 1)]
    return array.shape, hash(flat.tobytes())


def cell_contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY_CELL


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> tuple[str, ...]:
    """All names of variables and attributes in a function's code, and in the functions within it."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return tuple(dict.fromkeys(itertools.chain(code.co_names, *inner)))


@lru_cache(maxsize=4096)
def is_their_file(file: str) -> bool:
    return is_theirs(file)


@lru_cache(maxsize=4096)
def is_their_module(name: str) -> bool:
    """Is a module the user's own, rather than fedrecall's, Python's or a library's?"""
    file = getattr(sys.modules.get(name), "__file__", None)
    # What is in __main__ of a worker process came from the user's script.
    return name == "__main__" or (name not in sys.builtin_module_names if file is None else is_theirs(file))
