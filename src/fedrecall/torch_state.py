"""Torch's own settings around a run: those that users change are at their defaults inside, and restored after it.

Some belong to the process (the default dtype, the default generator), some to the thread (autocast, `no_grad`).
Worker processes set the same, so every engine has the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch

Settings = Callable[[], AbstractContextManager[object]]

# One run at a time in a process: there is one default generator and one default dtype. Re-entrant, because a run
# may be started within another, by a callback of it.
one_run = threading.RLock()


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Set torch's defaults, restore what was set at the end, and let no other thread do so meanwhile."""
    with one_run, ExitStack() as undo:
        # A default device is such a mode. Within a second one, `torch.device("cpu")`, attention has other kernels.
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
    """The settings of one run; closing it restores those around the run, and `fix` sets its own again."""

    def __init__(self) -> None:
        super().__init__()
        self.settings: list[Settings] = [torch_defaults]  # and those of a device

    def fix(self) -> None:
        held.stacks.append(self)
        self.callback(held.stacks.remove, self)
        for settings in self.settings:
            self.enter_context(settings())


class Held(threading.local):
    """The states that this thread has fixed, the latest last."""

    def __init__(self) -> None:
        self.stacks: list[FixedState] = []


held = Held()


@contextmanager
def fixed_torch_state() -> Iterator[None]:
    """Inside, torch has its defaults; at the end it is as before. The number of threads is the caller's to set.

    It waits for a run in another thread to end: not for threads that a run itself starts and waits for.
    """
    with FixedState() as state:
        state.fix()
        yield


@contextmanager
def given_back() -> Iterator[None]:
    """Inside, torch is as it was around the run: for code that only watches it, and may start other runs."""
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
    """As many threads inside, as many as before after."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def also_fix(settings: Settings) -> None:
    """Enter these settings too, until the state that this thread has fixed last is closed."""
    state = held.stacks[-1]
    state.settings.append(settings)
    state.enter_context(settings())
