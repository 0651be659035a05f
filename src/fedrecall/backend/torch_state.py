"""Torch's global settings during a run: set to their defaults, and restored afterwards.

Some belong to the process (the default dtype, the default generator), some to the thread (autocast, `no_grad`).
Worker processes apply the same settings, so that every engine has the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch

Settings = Callable[[], AbstractContextManager[object]]

# One run at a time, because the default generator and dtype belong to the process. Re-entrant, because a callback
# of a run may start another.
one_run = threading.RLock()


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Set torch's defaults and restore the previous settings on exit; other threads wait."""
    with one_run, ExitStack() as undo:
        # A default device is a torch-function mode; overriding it by another one changes kernels of attention.
        while torch._C._len_torch_function_stack():
            undo.callback(torch._C._push_on_torch_function_stack, torch._C._pop_torch_function_stack())
        undo.enter_context(torch.inference_mode(False))
        undo.enter_context(torch.enable_grad())
        undo.enter_context(torch.autocast("cpu", enabled=False))
        undo.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        undo.callback(torch.set_num_threads, torch.get_num_threads())
        undo.enter_context(torch.random.fork_rng(devices=[]))
        torch.default_generator.manual_seed(0)  # for draws outside of any stream
        yield


class FixedState(ExitStack):
    """The settings of one run: `fix` applies them, closing restores those from outside the run."""

    def __init__(self) -> None:
        super().__init__()
        self.settings: list[Settings] = [torch_defaults]  # a device adds its own

    def fix(self) -> None:
        held.stacks.append(self)
        self.callback(held.stacks.remove, self)
        for settings in self.settings:
            self.enter_context(settings())


class ThreadStates(threading.local):
    """The states that this thread has fixed, latest last."""

    def __init__(self) -> None:
        self.stacks: list[FixedState] = []


held = ThreadStates()


@contextmanager
def fixed_torch_state() -> Iterator[None]:
    """Set torch's defaults and restore the previous settings on exit; the caller sets the number of threads.

    It waits for a run in another thread to end, so threads that a run starts and waits for must not use it.
    """
    with FixedState() as state:
        state.fix()
        yield


@contextmanager
def outer_settings() -> Iterator[None]:
    """Temporarily restore the settings from outside the run, for callbacks, which may start other runs."""
    if not held.stacks:
        yield
        return
    state, threads = held.stacks[-1], torch.get_num_threads()
    state.close()
    try:
        yield
    finally:
        state.fix()
        torch.set_num_threads(threads)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch threads; restore it on exit."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fix_more(settings: Settings) -> None:
    """Add settings to this thread's latest fixed state and enter them."""
    state = held.stacks[-1]
    state.settings.append(settings)
    state.enter_context(settings())
