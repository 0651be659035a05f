"""A run has the same bits whatever torch was told around it, and gives everything back as it was."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedrecall import Dirichlet, Federation, FedRS, Images, Local, federate
from fedrecall.backend import torch_state
from fedrecall.backend.torch_state import fixed_torch_state, outer_settings
from fedrecall.models.build import build_model


def federation() -> Federation:
    random = np.random.default_rng(0)
    y = np.arange(160) % 4
    x = random.integers(0, 128, (160, 8, 8, 3), dtype=np.uint8) + (20 * y).astype(np.uint8)[:, None, None, None]
    transform = Images((0.5,) * 3, (0.25,) * 3, crop_padding=1, flip=True)
    partition = Dirichlet(alpha=0.3, clients=4, validation=0.2)
    return Federation.from_arrays(x, y, test=(x[:40], y[:40]), partition=partition, transform=transform)


class Attentive(nn.Module):
    """Convolution, attention and linear layers: each has kernels to choose from."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.fc = nn.Linear(288, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x)).flatten(2).transpose(1, 2)
        return self.fc(self.attention(x).flatten(1))


class Convolved(nn.Module):
    """What can be mapped over clients, and has kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(288, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.conv(x)).flatten(1))


def results(out: Path, way: str, **local: Any) -> tuple[bytes, bytes]:
    """The numbers of a run on an engine, or on `serial` with steps in lanes."""
    model = partial(Attentive, 0.1) if way in ("serial", "processes") else Convolved
    engine = "serial" if way == "lanes" else way
    local = {"step": "lanes"} if way == "lanes" else local
    run = federate(
        model, federation(), objective=FedRS(), rounds=2, clients_per_round=3, forgetting={"every": 2},
        local=Local(epochs=2, batch_size=8, lr=0.1, **local), engine=engine,
        workers="auto" if engine == "serial" else 2, out=out,
    )  # fmt: skip
    assert not [text for text in run.summary["warnings"] if "lanes" in text]
    return tuple((run.path / name).read_bytes() for name in ("metrics.jsonl", "model.safetensors"))


@contextmanager
def told(write: Callable[[Any], object], value: Any, before: Any) -> Iterator[None]:
    """A setting that is no context manager of its own."""
    write(value)
    try:
        yield
    finally:
        write(before)


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "default dtype": lambda: told(torch.set_default_dtype, torch.float64, torch.float32),
    "default device": lambda: told(torch.set_default_device, "meta", None),
    "a device": lambda: torch.device("meta"),
    "threads": lambda: told(torch.set_num_threads, 2, 1),
    "a seed": lambda: told(torch.manual_seed, 12345, 0),
}


def state() -> list[Any]:
    """All of it, as the user sees it."""
    return [
        torch.is_autocast_enabled("cpu"), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads(),
        torch.get_rng_state().tolist(),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[bytes, bytes]]:
    """The numbers of runs in an unchanged process, each made when it is first asked for."""
    folder = tmp_path_factory.mktemp("plain")
    return functools.cache(lambda way: results(folder / way, way))


WAYS = ["serial", "vectorised", "lanes"]
# Each setting around one of the ways, in turns; the other two are slow.
INSIDE = [
    pytest.param(way, name, marks=() if n % len(WAYS) == w else pytest.mark.slow)
    for (w, way), (n, name) in itertools.product(enumerate(WAYS), enumerate(AROUND))
]


@pytest.mark.parametrize(("way", "name"), INSIDE)
def test_a_run_inside_has_the_bits_of_one_outside(name, way, plain, tmp_path) -> None:
    with AROUND[name]():
        before = state()
        found = results(tmp_path / "run", way)
        assert state() == before
    assert found == plain(way)


@pytest.mark.slow
def test_workers_have_the_bits_too(plain, tmp_path) -> None:
    assert plain("processes") == plain("serial")
    with AROUND["default dtype"](), torch.inference_mode(), torch.autocast("cpu"):
        assert results(tmp_path / "run", "processes") == plain("serial")


def test_mixed_precision_inside_an_autocast_is_that_outside(tmp_path) -> None:
    outside = results(tmp_path / "outside", "serial", precision="bfloat16")
    with torch.autocast("cpu", torch.bfloat16):
        assert results(tmp_path / "inside", "serial", precision="bfloat16") == outside


@pytest.mark.parametrize("name", ["no_grad", "default dtype", "default device", "a device"])
def test_everything_is_given_back_after_an_exception(name, tmp_path) -> None:
    def broken() -> nn.Module:
        raise ValueError("no model today")

    with AROUND[name]():
        before = state()
        with pytest.raises(ValueError, match="no model today"):
            federate(broken, federation(), rounds=1, out=tmp_path / "run")
        assert state() == before


def test_a_model_given_in_float64_stays_and_one_that_is_made_is_float32(tmp_path) -> None:
    settings = {"rounds": 1, "clients_per_round": 2, "engine": "serial", "local": Local(epochs=1, batch_size=8)}
    with AROUND["default dtype"]():
        given = federate(Convolved(), federation(), out=tmp_path / "given", **settings)
        made = federate(Convolved, federation(), out=tmp_path / "made", **settings)
        assert {p.dtype for p in given.model().parameters()} == {torch.float64}
        assert {p.dtype for p in made.model().parameters()} == {torch.float32}


def test_a_model_whose_module_sets_the_dtype_on_import_is_the_same_the_first_time() -> None:
    imported = []

    def make() -> nn.Module:
        if not imported:
            torch.set_default_dtype(torch.float64)
            imported.append(True)
        return nn.Linear(3, 2)

    first, second = (build_model(make, federation(), 0, 1) for _ in range(2))
    assert first.w.dtype == torch.float32
    assert torch.equal(first.w, second.w)
    assert torch.get_default_dtype() == torch.float32


def test_a_callback_sees_what_was_around_the_run(tmp_path) -> None:
    seen, around = [], []

    def look(line: dict[str, Any]) -> None:
        seen.append(state())

    with torch.no_grad(), AROUND["default dtype"]():
        around.append(state())
        federate(
            Convolved, federation(), rounds=2, clients_per_round=2, engine="serial", callbacks=[look],
            local=Local(epochs=1, batch_size=8), out=tmp_path / "run",
        )  # fmt: skip
    assert seen == around * 2


def test_given_back_without_a_run_changes_nothing() -> None:
    with outer_settings():
        assert torch.is_grad_enabled()
    with fixed_torch_state(), outer_settings():
        assert not torch_state.held.stacks
    assert not torch_state.held.stacks
