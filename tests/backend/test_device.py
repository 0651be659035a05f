"""Which devices a run gets, their part in its identity, their settings, and their failures as sentences."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack

import pytest
import torch
from torch import nn

from fedrecall import InputError
from fedrecall.backend.device import CPU, Device, check_device, choose_devices, find_devices, set_cuda
from fedrecall.recipe.recipe import Recipe


@pytest.fixture
def two_gpus(monkeypatch) -> None:
    monkeypatch.setattr("fedrecall.backend.device.accelerators", lambda: ["cuda:0", "cuda:1"])


def test_a_name_stands_for_all_devices_of_its_kind_and_a_number_for_one(two_gpus) -> None:
    assert find_devices("cuda") == ["cuda:0", "cuda:1"]
    assert find_devices("cuda:1") == ["cuda:1"]
    assert find_devices("cpu") == find_devices("cpu:0") == ["cpu"]


@pytest.mark.parametrize("asked", ["cuda:2", "xpu", "meta"])
def test_a_device_that_is_not_there_is_refused_with_what_there_is(two_gpus, asked) -> None:
    with pytest.raises(InputError, match=f"device is '{asked}', but .* here: cpu, cuda:0, cuda:1;"):
        find_devices(asked)


@pytest.mark.parametrize("asked", ["gpu", "cudaa:0", "cuda:x", "cuda:-1", ""])
def test_a_name_that_torch_does_not_know_is_refused_with_those_that_there_are(asked) -> None:
    with pytest.raises(InputError, match=f"execution.device is '{asked}'; auto, cpu, cuda, mps or xpu was expected"):
        find_devices(asked)


def test_a_command_with_an_unknown_device_ends_in_a_sentence(fedrecall) -> None:
    done = fedrecall("run", "demo", "--device", "tpu0")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "execution.device is 'tpu0'" in done.err


def test_auto_takes_an_accelerator_for_large_steps_alone(two_gpus, monkeypatch) -> None:
    assert choose_devices("auto", 9e8, torch.float32) == ["cpu"]
    assert choose_devices("auto", 2e9, torch.float32) == ["cuda:0", "cuda:1"]
    assert choose_devices("cuda:1", 1.0, torch.float32) == ["cuda:1"]  # who asks for it gets it
    monkeypatch.setattr("fedrecall.backend.device.accelerators", list)
    assert choose_devices("auto", 1e15, torch.float32) == ["cpu"]


def test_a_float64_model_is_not_for_a_device_without_float64(monkeypatch) -> None:
    monkeypatch.setattr("fedrecall.backend.device.accelerators", lambda: ["mps:0"])
    assert choose_devices("auto", 1e15, torch.float64) == ["cpu"]
    assert choose_devices("auto", 1e15, torch.float32) == ["mps:0"]
    with pytest.raises(InputError, match="the model is float64, which mps does not have"):
        choose_devices("mps", 1e15, torch.float64)


def test_dropout_that_no_seed_decides_is_refused() -> None:
    dropping = nn.Sequential(nn.LSTM(3, 3, num_layers=2, dropout=0.1))
    with pytest.raises(InputError, match="a recurrent layer of the model has dropout, which cuda:0 draws"):
        check_device(Device("cuda:0"), "float32", dropping)
    check_device(CPU, "float32", dropping)
    check_device(Device("cuda:0"), "float32", nn.Sequential(nn.LSTM(3, 3), nn.Dropout(0.1)))


def test_the_device_is_part_of_a_runs_identity_and_the_cpu_is_as_ever() -> None:
    recipe = Recipe()
    tree = {key: value for key, value in recipe.tree().items() if key not in ("execution", "checkpoint")}
    del tree["updates"], tree["trackers"]  # keys that are no part of it at their first value
    for section, later in (
        ("local", "beta_from"),
        ("local", "optimiser"),
        ("evaluation", "prior"),
        ("objective", "prior"),
        ("model", "head"),
        ("model", "scale"),
    ):
        del tree[section][later]
    as_ever = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
    assert recipe.digest(device=CPU.rounding) == recipe.digest() == as_ever
    devices = [Device("cuda:0"), Device("cuda:0", tf32=True), Device("cuda:0", deterministic=False), Device("mps:0")]
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


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch has the older switch")
@pytest.mark.parametrize("newer", [False, True])
def test_tf32_is_off_unless_asked_for_and_all_is_restored(monkeypatch, newer) -> None:
    """Whichever of torch's two switches the user has set."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    parts = (matmul, cudnn.conv, cudnn.rnn)

    def found() -> list[object]:
        return [*(part.fp32_precision for part in parts), cudnn.deterministic]

    with ExitStack() as as_ever:
        set_cuda(Device("cuda:0"), as_ever)  # for what it restores
        if newer:
            matmul.fp32_precision = cudnn.conv.fp32_precision = "tf32"
        else:
            torch.set_float32_matmul_precision("high")
        before = found()
        for device, expected in ((Device("cuda:0"), "ieee"), (Device("cuda:0", tf32=True), "tf32")):
            with ExitStack() as undo:
                set_cuda(device, undo)
                assert found() == [expected] * 3 + [True]
                assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
            assert found() == before
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    assert torch.get_float32_matmul_precision() == "highest"
