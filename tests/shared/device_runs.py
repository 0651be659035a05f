"""Small models and federations, and runs of them on the simulated device beside the same runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sim_device
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedrecall import Federation, InputError, federate
from fedrecall.data.transform import Plain

CLASSES = 3
NORMS = {"batch": lambda: nn.BatchNorm2d(4), "group": lambda: nn.GroupNorm(2, 4), "none": nn.Identity}
LOCAL = {"epochs": 1, "batch_size": 4, "lr": 0.05, "momentum": 0.9}


class Net(nn.Module):
    """A convolution, a norm and dropout."""

    def __init__(self, norm: str = "batch") -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), NORMS[norm]()
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(4 * 9, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(self.drop(nn.functional.max_pool2d(x, 2).flatten(1)))


class SmallNormed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, CLASSES))


class Around(nn.Module):
    """A layer on the pixels of an image as a row, and a head."""

    def __init__(self, layer: nn.Module, width: int = 64) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x.flatten(1)))


class Noise(nn.Module):
    """Draws in several ways, in training and when it is evaluated."""

    def forward(self, x: Tensor) -> Tensor:
        drawn = torch.rand(len(x), 1, device=x.device) + torch.randn_like(x) + torch.empty_like(x).exponential_()
        return x + 0.1 * drawn + 0.01 * torch.randperm(x.shape[1], device=x.device)


class Attention(nn.Module):
    """Self-attention over the rows of an image, with dropout of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.view(len(x), 8, 8)
        return self.attention(rows, rows, rows, need_weights=False)[0].flatten(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(8, 8, batch_first=True)  # others have fused kernels on a device, which the CPU has not

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x.view(len(x), 8, 8))[0].flatten(1)


def make_net() -> nn.Module:
    """By its name in this module, which registers the device where it is imported."""
    return Net()


def images(shape: tuple[int, ...] = (8, 8), **options: Any) -> Federation:
    """Four clients of unequal sizes; the last has one class only."""
    random, sizes = np.random.default_rng(0), [5, 8, 10, 15]
    clients = [(random.integers(0, 256, (n, *shape), dtype=np.uint8), random.integers(0, CLASSES, n)) for n in sizes]
    clients[3] = clients[3][0], np.full(sizes[3], 2)
    return Federation.from_clients(clients, test=clients[2], num_classes=CLASSES, validation=0.2, **options)


def vectors(count: int = 40) -> Federation:
    """Of float64, which not every device has."""
    random = np.random.default_rng(0)
    clients = [(random.normal(size=(10, 6)), random.integers(0, CLASSES, 10)) for _ in range(count)]
    return Federation.from_clients(clients, test=clients[0], num_classes=CLASSES, validation=0.2)


def texts() -> Federation:
    random = np.random.default_rng(0)
    clients = [(random.integers(0, 20, (10, 5)), random.integers(0, CLASSES, 10)) for _ in range(4)]
    return Federation.from_clients(clients, num_classes=CLASSES, validation=0.2, transform=Plain())


def run(folder: Path, model: Any, federation: Federation, **options: Any) -> Any:
    defaults = {
        "local": LOCAL, "rounds": 2, "clients_per_round": 3, "evaluation": {"every": 1}, "engine": "serial",
    }  # fmt: skip
    torch.manual_seed(0)  # for models that are made here
    made = model() if isinstance(model, type) else model
    return federate(made, federation, out=folder, **{**defaults, **options})


def assert_same_files(one: Path, other: Path) -> None:
    """All numbers that two runs left: the model, metrics, probes, checkpoints and clients' states."""
    patterns = [
        "metrics.jsonl",
        "clients.jsonl",
        "model.safetensors",
        "forgetting/*",
        "checkpoints/*.safetensors",
        "clients/*/*",
    ]
    names = sorted(str(path.relative_to(one)) for pattern in patterns for path in one.glob(pattern))
    assert names == sorted(str(path.relative_to(other)) for pattern in patterns for path in other.glob(pattern))
    assert "metrics.jsonl" in names
    for name in names:
        if name.endswith(".npz"):
            found, expected = (dict(np.load(at / name)) for at in (one, other))
        elif name.endswith(".safetensors"):
            found, expected = (load_file(at / name) for at in (one, other))
        else:
            assert (one / name).read_bytes() == (other / name).read_bytes(), name
            continue
        assert found.keys() == expected.keys()
        for key, value in found.items():
            assert np.array_equal(np.asarray(value), np.asarray(expected[key]), equal_nan=True), (name, key)


def same(folder: Path, model: Any, federation: Federation, **options: Any) -> Any:
    """Run on both, and compare; the run on the device."""
    on_cpu = run(folder / "cpu", model, federation, **{**options, "device": "cpu"})
    before = sim_device.calls.total()
    on_sim = run(folder / "sim", model, federation, device="sim", **options)
    assert sim_device.calls.total() > before or options.get("engine") == "processes"
    assert on_sim.summary["device"].startswith("sim:0")
    assert on_sim.summary["recipe_sha256"] != on_cpu.summary["recipe_sha256"]
    of_cpu = [text for text in on_cpu.summary["warnings"] if "CPU" not in text]
    assert on_sim.summary["warnings"] == of_cpu
    assert_same_files(on_cpu.path, on_sim.path)
    return on_sim


def close(folder: Path, model: Any, federation: Federation) -> None:
    """Where torch itself makes other calls on a device, in another order: the same but for rounding."""
    paths = [run(folder / name, model, federation, device=name, rounds=1).path for name in ("sim", "cpu")]
    found, expected = (load_file(path / "model.safetensors") for path in paths)
    for key, tensor in expected.items():
        assert torch.allclose(found[key], tensor, rtol=1e-3, atol=1e-5), key


def refused(*parts: str) -> Callable[[Callable[[], object]], None]:
    """The call is refused in one sentence that has these parts."""

    def check(call: Callable[[], object]) -> None:
        with pytest.raises(InputError) as refusal:
            call()
        for part in parts:
            assert part in str(refusal.value)
        assert "\n" not in str(refusal.value)

    return check
