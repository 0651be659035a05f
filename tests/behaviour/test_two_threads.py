"""Runs in several threads of one process come to what they come to one after the other."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import Federation, Iid, Local, federate
from fedrecall.backend.torch_state import fixed_torch_state, one_run


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.Linear(32, 3))


def weights(out: Path, **settings: Any) -> bytes:
    random = np.random.default_rng(0)
    federation = Federation.from_arrays(
        random.normal(size=(90, 6)).astype(np.float32), np.arange(90) % 3, partition=Iid(clients=3, validation=0.1)
    )
    run = federate(
        dropping, federation, rounds=6, participation=1.0, engine="serial", out=out,
        local=Local(epochs=2, batch_size=5, lr=0.1), **settings,
    )  # fmt: skip
    return (run.path / "model.safetensors").read_bytes()


def test_two_threads_have_the_bits_of_runs_one_after_the_other(tmp_path) -> None:
    alone = [weights(tmp_path / f"alone-{seed}", seed=seed) for seed in (0, 1)]
    assert alone[0] != alone[1]
    before = torch.default_generator.get_state()
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda seed: weights(tmp_path / f"together-{seed}", seed=seed), (0, 1)))
    assert together == alone
    assert torch.equal(torch.default_generator.get_state(), before)


def test_a_callback_may_start_a_run_here_and_in_a_thread_that_it_waits_for(tmp_path) -> None:
    alone = weights(tmp_path / "alone")
    found = []

    def nested(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            found.append(weights(tmp_path / "nested"))
            thread = threading.Thread(target=lambda: found.append(weights(tmp_path / "thread")))
            thread.start()
            thread.join(60)

    found.append(weights(tmp_path / "outer", callbacks=[nested]))
    assert found == [alone] * 3


def test_who_waits_for_another_run_can_be_interrupted() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with fixed_torch_state():
            entered.set()
            leave.wait(60)

    def interrupt() -> None:
        time.sleep(0.3)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threads = [threading.Thread(target=other), threading.Thread(target=interrupt)]
    for thread in threads:
        thread.start()
    entered.wait(60)
    with pytest.raises(KeyboardInterrupt), fixed_torch_state():
        pytest.fail("two runs at once")
    leave.set()
    for thread in threads:
        thread.join()
    assert one_run.acquire(blocking=False)
    one_run.release()
