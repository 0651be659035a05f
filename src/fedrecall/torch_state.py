"""torch's own state around a run: what decides its bits is fixed while it goes, and given back after it.

Some of that state belongs to the process (the default dtype, oneDNN, the default generator), some to the thread
(autocast, no_grad, modes). A worker process fixes the same, so that every engine comes to the same bits.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils import _python_dispatch as dispatch

# (read, write, value): as torch has them in a fresh process, whatever its version.
Setting = tuple[Callable[[], Any], Callable[[Any], object], Any]


def flushes_denormals() -> bool:
    """torch can only be told, not asked; Python's floats go through the same unit of the CPU."""
    return sys.float_info.min / 2 == 0.0


def fp32_precision(backend: str, operation: str) -> Setting:
    return (
        lambda: torch._C._get_fp32_precision_getter(backend, operation),
        lambda value: torch._C._set_fp32_precision_setter(backend, operation, value),
        "none",
    )


SETTINGS: list[Setting] = [
    (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
    (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on), False),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, True),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0),
    (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda pair: torch.set_anomaly_enabled(*pair),
        (False, True),
    ),
    (flushes_denormals, torch.set_flush_denormal, False),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, True),
    (torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled, True),
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, True),
    # Of attention on a CPU too, whatever their names.
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp, True),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp, True),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp, True),
]
if hasattr(torch._C, "_get_mkldnn_deterministic"):
    SETTINGS.append((torch._C._get_mkldnn_deterministic, torch._C._set_mkldnn_deterministic, False))
if hasattr(torch._C, "_get_fp32_precision_getter"):
    # The general ones first: a value that is not set reads as that of the one above it.
    SETTINGS += [fp32_precision("generic", "all"), fp32_precision("mkldnn", "all")]
    SETTINGS += [fp32_precision("mkldnn", operation) for operation in ("matmul", "conv", "rnn")]

# One run at a time in a process: there is one default generator and one default dtype. Re-entrant, because a run
# may be started within another, by a callback of it.
one_run = threading.RLock()


class Fixed(ExitStack):
    """What is fixed; it undoes itself when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.also: list[Setting] = []  # of a device


class Held(threading.local):
    """What this thread has fixed, the latest last."""

    def __init__(self) -> None:
        self.stacks: list[Fixed] = []


held = Held()


@contextmanager
def fixed_torch_state() -> Iterator[None]:
    """Inside, torch is as in a fresh process, and no other run of this process goes on; after, it is as before.

    It waits for a run in another thread to end. The number of threads is the caller's to set, and given back too.
    Not for threads that a run itself starts and waits for.
    """
    undo = Fixed()
    fix(undo)
    try:
        yield
    finally:
        undo.close()


@contextmanager
def given_back() -> Iterator[None]:
    """Inside, torch is as it was around the run: for code that only watches it, and may start other runs."""
    if not held.stacks:
        yield
        return
    undo, threads = held.stacks[-1], torch.get_num_threads()
    undo.close()
    try:
        yield
    finally:
        fix(undo)
        torch.set_num_threads(threads)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """As many threads inside, as many as before after."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def also_fix(settings: list[Setting]) -> None:
    """These too, until what this thread has fixed last is given back."""
    undo = held.stacks[-1]
    undo.also = settings
    write_all(settings, undo)


def write_all(settings: list[Setting], undo: ExitStack) -> None:
    for read, write, value in settings:
        before = read()
        if before != value:
            undo.callback(write, before)
            write(value)


def fix(undo: Fixed) -> None:
    """Fix everything; closing the stack gives it back, also if this fails halfway."""
    one_run.acquire()
    undo.callback(one_run.release)
    try:
        without_modes(undo)  # first: one may stand between torch and the calls below
        undo.enter_context(torch.inference_mode(False))
        undo.enter_context(torch.enable_grad())
        matmul_precision(undo)
        write_all(SETTINGS, undo)
        undo.callback(torch.set_num_threads, torch.get_num_threads())
        generator = torch.default_generator
        undo.callback(generator.set_state, generator.get_state())
        generator.manual_seed(0)  # for whoever draws without being lent a stream
        write_all(undo.also, undo)
        held.stacks.append(undo)
        undo.callback(held.stacks.remove, undo)
    except BaseException:
        undo.close()
        raise


def without_modes(undo: ExitStack) -> None:
    """Take off what stands between Python and torch's kernels: modes (a default device is one) and hooks."""
    while torch._C._len_torch_function_stack():
        undo.callback(torch._C._push_on_torch_function_stack, torch._C._pop_torch_function_stack())
    while dispatch._get_current_dispatch_mode_stack():
        undo.callback(dispatch._push_mode, dispatch._pop_mode())
    hooks = torch._C._autograd
    while (pair := hooks._top_saved_tensors_default_hooks(False)) is not None:
        hooks._pop_saved_tensors_default_hooks()
        undo.callback(hooks._push_saved_tensors_default_hooks, *pair)


def matmul_precision(undo: ExitStack) -> None:
    """The older switch of the precision of matrix products; it sets some of the newer ones, so it goes first."""
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # the newer ones, which count, were set to something else
        return
    if before != "highest":
        undo.callback(torch.set_float32_matmul_precision, before)
        torch.set_float32_matmul_precision("highest")
