"""What a device counts in a run's identity, what is set on it, and what is said when it cannot do something."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch

from fedrecall import InputError
from fedrecall.device import CPU, Device, cuda_settings
from fedrecall.recipe.recipe import Recipe
from fedrecall.torch_state import also_fix, fixed_torch_state


def test_the_device_is_part_of_a_runs_identity_and_the_cpu_is_as_ever() -> None:
    recipe = Recipe()
    tree = {key: value for key, value in recipe.tree().items() if key not in ("execution", "checkpoint")}
    for section, later in (("local", "beta_from"), ("evaluation", "prior"), ("objective", "prior")):
        del tree[section][later]  # keys that are no part of it at their first value
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
