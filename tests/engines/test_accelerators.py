"""Which devices a name stands for, which of them `auto` takes, and how workers share them. None is needed here."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedrecall import WSM, FedAvg, InputError, Local
from fedrecall.client.job import Job
from fedrecall.engines import accelerators
from fedrecall.engines.auto import choose
from fedrecall.recipe.settings import Execution

THERE = {"cuda": ["cuda:0", "cuda:1"], "mps": ["mps:0"]}


@pytest.fixture
def two_gpus(monkeypatch) -> None:
    monkeypatch.setattr(accelerators, "of_kind", lambda kind: THERE.get(kind, []))
    monkeypatch.setattr(accelerators, "accelerator", lambda: "cuda")


def test_a_name_stands_for_all_devices_of_its_kind_and_a_number_for_one(two_gpus) -> None:
    assert accelerators.find("cuda") == ["cuda:0", "cuda:1"]
    assert accelerators.find("cuda:1") == ["cuda:1"]
    assert accelerators.find("cpu") == accelerators.find("cpu:0") == ["cpu"]


@pytest.mark.parametrize("asked", ["cuda:2", "xpu", "meta"])
def test_a_device_that_is_not_there_is_refused_with_what_there_is(two_gpus, asked) -> None:
    with pytest.raises(InputError, match=f"device is '{asked}', but .* here: cpu, cuda:0, cuda:1, mps:0;"):
        accelerators.find(asked)


@pytest.mark.parametrize("asked", ["gpu", "cudaa:0", "cuda:x", "cuda:-1", ""])
def test_a_name_that_torch_does_not_know_is_refused_with_those_that_there_are(asked) -> None:
    with pytest.raises(
        InputError, match=f"execution.device is '{asked}'; auto, cpu, cuda, mps or xpu was expected"
    ):
        accelerators.find(asked)


def test_a_command_with_an_unknown_device_ends_in_a_sentence(fedrecall) -> None:
    done = fedrecall("run", "demo", "--device", "tpu0")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "execution.device is 'tpu0'" in done.err


def test_auto_takes_an_accelerator_for_large_steps_alone(two_gpus, monkeypatch) -> None:
    assert accelerators.choose("auto", 9e8, torch.float32) == ["cpu"]
    assert accelerators.choose("auto", 2e9, torch.float32) == ["cuda:0", "cuda:1"]
    assert accelerators.choose("cuda:1", 1.0, torch.float32) == ["cuda:1"]  # who asks for it gets it
    monkeypatch.setattr(accelerators, "accelerator", lambda: None)
    assert accelerators.choose("auto", 1e15, torch.float32) == ["cpu"]


def test_a_float64_model_is_not_for_a_device_without_float64(two_gpus, monkeypatch) -> None:
    monkeypatch.setattr(accelerators, "accelerator", lambda: "mps")
    assert accelerators.choose("auto", 1e15, torch.float64) == ["cpu"]
    assert accelerators.choose("auto", 1e15, torch.float32) == ["mps:0"]
    with pytest.raises(InputError, match="the model is float64, which mps does not have"):
        accelerators.choose("mps", 1e15, torch.float64)


def shares(devices: list[str], **execution) -> tuple[str, int, list[tuple[str, int]]]:
    """The engine, its workers, and how many of them are on each device."""
    model = nn.Conv2d(1, 1, 1)
    job = Job(lambda: model, FedAvg(), WSM(), Local(), 0)
    engine = choose(Execution(**execution), job, model, 10, 1, 1, devices)
    return engine.name, engine.workers, [(device.name, device.workers) for device in engine.devices]


def test_workers_are_spread_evenly_over_devices() -> None:
    both = ["cuda:0", "cuda:1"]
    assert shares(both) == ("processes", 2, [("cuda:0", 1), ("cuda:1", 1)])
    assert shares(both, workers_per_device=3) == ("processes", 6, [("cuda:0", 3), ("cuda:1", 3)])
    assert shares(both, workers=3) == ("processes", 3, [("cuda:0", 2), ("cuda:1", 1)])
    assert shares(["cuda:1"]) == ("serial", 1, [("cuda:1", 1)])
    assert shares(["cuda:1"], workers_per_device=2) == ("processes", 2, [("cuda:1", 2)])
    assert shares(both, engine="serial") == ("serial", 1, [("cuda:0", 1)])
    assert shares(both, engine="vectorised") == ("vectorised", 1, [("cuda:0", 1)])
    assert shares(["cpu"], engine="processes", workers=2) == ("processes", 2, [("cpu", 1)])
