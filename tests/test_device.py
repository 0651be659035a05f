"""Devices by name, what is set on them, and what is said when they cannot do something. None is needed here."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from torch import nn

from fedrecall import WSM, FedAvg, InputError, Local, accelerators
from fedrecall.client.work import Job
from fedrecall.device import CPU, Device, cuda_settings
from fedrecall.engines.auto import choose
from fedrecall.recipe.recipe import Recipe
from fedrecall.recipe.settings import Execution
from fedrecall.torch_state import also_fix, fixed_torch_state

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


def test_the_device_is_part_of_a_runs_identity_and_the_cpu_is_as_ever() -> None:
    recipe = Recipe()
    tree = {key: value for key, value in recipe.tree().items() if key not in ("execution", "checkpoint")}
    as_ever = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
    assert recipe.digest(device=CPU.rounding) == recipe.digest() == as_ever
    devices = [
        Device("cuda:0"),
        Device("cuda:0", tf32=True),
        Device("cuda:0", deterministic=False),
        Device("mps:0"),
    ]
    assert len({recipe.digest(device=device.rounding) for device in [CPU, *devices]}) == 5
    assert Device("cuda:1", workers=4).rounding == Device("cuda:0").rounding == "cuda"


def sentence(text: str, device: Device) -> str:
    with pytest.raises(InputError) as refusal, device.explained(batch_size=64):
        raise RuntimeError(text)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_too_little_memory_says_what_was_asked_what_there_is_and_what_to_set(monkeypatch) -> None:
    monkeypatch.setattr(Device, "memory", lambda self: (2**29, 8 * 2**30))
    said = sentence("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..", Device("cuda:0", workers=2))
    assert said == (
        "cuda:0 has too little memory (2.00 GiB more were asked for, 0.5 GiB of 8.0 GiB are free, 2 workers share "
        "it); set local.batch_size below 64, execution.workers_per_device below 2, or execution.device=cpu"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nll_loss2d_forward_out_cuda does not have a deterministic implementation, but you set ..", "nll_loss2d"),
        ("Deterministic behavior was enabled .. set CUBLAS_WORKSPACE_CONFIG=:4096:8 ..", "before Python starts"),
        ("CUDA error: device-side assert triggered. CUDA kernel errors might be ..", "execution.device=cpu shows"),
    ],
)
def test_what_a_device_cannot_do_is_one_sentence(text, said) -> None:
    assert said in sentence(text, Device("cuda:0"))


def test_other_errors_and_those_of_the_cpu_are_left_alone() -> None:
    for device, text in ((Device("cuda:0"), "shapes do not fit"), (CPU, "out of memory")):
        with pytest.raises(RuntimeError, match=text), device.explained(batch_size=1):
            raise RuntimeError(text)


@pytest.mark.skipif(not hasattr(torch._C, "_get_fp32_precision_getter"), reason="torch has the older switches")
def test_tf32_is_off_unless_asked_for_and_all_is_given_back(monkeypatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)

    def found() -> list[object]:
        parts = ("matmul", "conv", "rnn")
        return [torch._C._get_fp32_precision_getter("cuda", part) for part in parts]

    before = found()
    for device, expected in ((Device("cuda:0"), "ieee"), (Device("cuda:0", tf32=True), "tf32")):
        with fixed_torch_state():
            also_fix(cuda_settings(device))
            assert found() == [expected] * 3
            assert torch.backends.cudnn.deterministic
        assert found() == before
        assert not torch.backends.cudnn.deterministic
