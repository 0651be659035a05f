"""Runs on the simulated device beside the same runs on the CPU: `python device_cases.py GROUP FOLDER`.

A program of its own, because a process in which `sim` is registered ends in a way of its own. It prints a line of
JSON for each case: its name and, if it failed, why.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sim_device
import torch
from device_runs import (
    CLASSES,
    LOCAL,
    NORMS,
    Around,
    Attention,
    Net,
    Noise,
    Recurrent,
    SmallNormed,
    assert_same_files,
    close,
    images,
    make_net,
    refused,
    run,
    same,
    texts,
    vectors,
)
from server_data import at_the_server
from torch import Tensor, nn

import fedrecall.backend.device
from fedrecall import WSM, Images
from fedrecall.algorithms import ALGORITHMS
from fedrecall.errors import Interrupted
from fedrecall.objectives import OBJECTIVES


class Narrow(nn.Sequential):
    """All of its layers have kernels."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, CLASSES))


KINDS = {**{name: kind() for name, kind in OBJECTIVES.items()}, "wsm+": WSM(smoothing=0.003, distill=0.1)}


def tool(folder: Path) -> None:
    """The device notices what it is for."""
    here = torch.ones(3, device="sim")
    bad: dict[str, Callable[[], object]] = {
        "on the CPU": lambda: here + torch.ones(3),
        "['sim:0', 'sim:1']": lambda: here + torch.ones(3, device="sim:1"),
        "float64": lambda: here.double(),
    }
    for words, call in bad.items():
        with pytest.raises(AssertionError, match=re.escape(words)):
            call()
    assert (here + 1).device == torch.device("sim:0")
    assert torch.equal((here * torch.tensor(2.0)).cpu(), torch.full((3,), 2.0))
    before = torch.get_rng_state()
    sim_device.generator.manual_seed(3)
    drawn = torch.rand(3, device="sim")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn.cpu(), torch.rand(3, generator=torch.Generator().manual_seed(3)))


def everything(folder: Path) -> None:
    """Control variates, batch norm, dropout, augmentation, probes and WSM."""
    transform = Images((0.5,), (0.25,), crop_padding=1, flip=True)
    federation = images((8, 8, 1), layout="nhwc", transform=transform)
    ran = same(folder, Net(), federation, algorithm="scaffold", forgetting={"every": 1})
    noted = json.loads((ran.path / "environment.json").read_text())
    assert (noted["device"], noted["device_name"]) == ("sim", "simulated device")


def matrix_cases() -> dict[str, Callable[[Path], object]]:
    """Every algorithm with every objective; the norms take turns."""
    found: dict[str, Callable[[Path], object]] = {}
    norms = itertools.cycle(NORMS)
    federation = images()
    for algorithm, objective in itertools.product(ALGORITHMS, KINDS):
        if algorithm == "local_only" and "teacher" in KINDS[objective].needs:
            continue  # refused everywhere

        def case(folder: Path, a: str = algorithm, o: str = objective, norm: str = next(norms)) -> None:
            own = at_the_server(a, federation)
            same(folder, Net(norm), federation, algorithm=ALGORITHMS[a](), objective=KINDS[o], **own)

        found[f"{algorithm} {objective}"] = case
    return found


def model_cases() -> dict[str, Callable[[Path], object]]:
    square = images((28, 28))
    cases: dict[str, Callable[[Path], object]] = {
        "lenet": lambda at: same(at, "lenet", square),
        "resnet18": lambda at: same(at, {"name": "resnet18", "norm": "batch"}, images((16, 16)), rounds=1),
        "resnet18, group norm": lambda at: same(at, {"name": "resnet18", "norm": "group"}, images((16, 16)), rounds=1),
        "embedding": lambda at: same(at, {"name": "embedding", "vocabulary": 20}, texts()),
        "mlp": lambda at: same(at, {"name": "mlp", "hidden": [8]}, vectors(4)),
        "float64 model": lambda at: refused_float64(at),
        "a model that draws": lambda at: same(at, Around(Noise()), images()),
        "attention": lambda at: same(at, Around(Attention()), images()),
        "recurrent": lambda at: close(at, Around(Recurrent()), images()),
        "random leaks": lambda at: same(at, Around(nn.RReLU()), images()),
        "alpha dropout": lambda at: same(at, Around(nn.AlphaDropout(0.3)), images()),
        "a loss with tensors": weighted_loss,
        "a prior": lambda at: same(at, Net(), images(), evaluation={"every": 1, "prior": "uniform"}),
        "statistics of its own": lambda at: same(
            at, Net(), images(), batch_norm="local", evaluation={"every": 1, "test_last": 0}
        ),
        "a sampled probe": lambda at: same(at, Net(), images(), forgetting={"every": 1, "sample": 2}),
        "batches that are sent": sent_batches,
        "steps in lanes": without_lanes,
        "bfloat16": lambda at: same(at, Net("none"), images(), local={**LOCAL, "precision": "bfloat16"}),
        "float16": lambda at: same(at, Net("group"), images(), local={**LOCAL, "precision": "float16"}),
        "too little memory": too_little_memory,
        "no deterministic version": nondeterministic,
        "an unknown token": unknown_token,
        "what is set": what_is_set,
    }
    return cases


def refused_float64(folder: Path) -> None:
    """`sim` has none, and says so itself; of mps it is known before."""
    fedrecall.backend.device.WITHOUT_FLOAT64.add("sim")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES)).double()
    refused("float64", "sim", "execution.device=cpu")(lambda: run(folder / "a", model, images(), device="sim"))
    assert run(folder / "b", model, images()).summary["device"] == "cpu"


def weighted_loss(folder: Path) -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    same(folder, Net(), images(), objective=loss)
    assert loss.weight is not None
    assert loss.weight.device.type == "cpu"  # the user's own is not moved


def sent_batches(folder: Path) -> None:
    """Where there is no room for all samples, they go batch by batch."""
    sim_device.memory["free"] = 1000
    try:
        same(folder, Net(), images())
        same(folder / "float64", nn.Linear(6, CLASSES), vectors(4))
    finally:
        sim_device.memory["free"] = sim_device.memory["total"]
    before = sim_device.calls["aten.index_select.default"]
    run(folder / "room", Net(), images(), device="sim")
    assert sim_device.calls["aten.index_select.default"] > before


def without_lanes(folder: Path) -> None:
    """Kernels are for the CPU alone: on a device steps are exact, with a note."""
    on_sim = run(folder / "sim", Narrow(), images(), device="sim", local={**LOCAL, "step": "lanes"})
    note = "steps are exact and not in lanes: there is no kernel for a device other than the CPU"
    assert note in on_sim.summary["warnings"]
    assert_same_files(run(folder / "cpu", Narrow(), images(), device="cpu").path, on_sim.path)


def too_little_memory(folder: Path) -> None:
    """For a model's vector of 4 x (10 x 64 + 3 x 4097) bytes, and for a layer of 12 samples with 4 x 64^2 each."""
    model = nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.Flatten(), nn.Linear(4096, CLASSES))
    parts = ("sim:0 has too little memory", "MiB more were asked for", "0.5 GiB of 16.0 GiB are free",
             "local.batch_size below 1000", "or execution.device=cpu")  # fmt: skip
    options = {"device": "sim", "local": {"steps": 1, "batch_size": 1000}, "clients_per_round": 4}
    for largest in (50_000, 150_000):
        sim_device.memory |= {"largest": largest, "free": 2**29}
        try:
            refused(*parts)(functools.partial(run, folder / f"{largest}", model, images(), **options))
        finally:
            sim_device.memory |= {"largest": 2**34, "free": 2**34}


def nondeterministic(folder: Path) -> None:
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4, CLASSES))
    model = nn.Sequential(nn.Conv2d(1, 1, 3), pooled)
    words = ("aten::_adaptive_avg_pool2d has no deterministic version on sim", "execution.deterministic=false")
    refused(*words)(lambda: run(folder / "a", model, images(), device="sim"))
    assert not torch.are_deterministic_algorithms_enabled()
    allowed = run(folder / "b", model, images(), device="sim", execution={"deterministic": False})
    plain = run(folder / "c", model, images())
    assert_same_files(allowed.path, plain.path)


def unknown_token(folder: Path) -> None:
    model = {"name": "embedding", "vocabulary": 19}
    refused("a token id is 19", "model.vocabulary is 19")(lambda: run(folder / "a", model, texts(), device="sim"))
    assert not (folder / "a").exists()  # it was found before anything was trained


def what_is_set(folder: Path) -> None:
    """Inside a run deterministic algorithms alone; callbacks, and what comes after, see what was set before."""
    before = sim_device.generator.get_state()
    seen: list[tuple[str, bool]] = []

    class Looking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((x.device.type, torch.are_deterministic_algorithms_enabled()))
            return super().forward(x)

    def watch(line: dict[str, Any]) -> None:
        seen.append(("callback", torch.are_deterministic_algorithms_enabled()))
        assert torch.equal(sim_device.generator.get_state(), before)

    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), Looking(64, CLASSES))
    run(folder / "a", model, images(), device="sim", watch=watch)
    assert {pair for pair in seen if pair[0] != "cpu"} == {("sim", True), ("callback", False)}
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(sim_device.generator.get_state(), before)


def engine_cases() -> dict[str, Callable[[Path], object]]:
    narrow = {"name": "mlp", "hidden": [8]}
    many = {"engine": "vectorised", "clients_per_round": 32}
    return {
        "vectorised": lambda at: same(at, narrow, vectors(), **many),
        "vectorised, scaffold": lambda at: same(at, narrow, vectors(), algorithm="scaffold", **many),
        "vectorised, batch norm": lambda at: same(at, SmallNormed(), images(), engine="vectorised"),
        "vectorised, a teacher": lambda at: same(at, narrow, vectors(), objective="fedntd", **many),
        "auto": auto,
        "processes": processes,
    }


def auto(folder: Path) -> None:
    """A small model stays on the CPU; with one that is worth it there is a worker on each device."""
    options = {"engine": "auto", "rounds": 1}
    assert run(folder / "small", Net(), images(), **options).summary["device"] == "cpu"
    worth, fedrecall.backend.device.WORTH_A_DEVICE = fedrecall.backend.device.WORTH_A_DEVICE, 1000.0
    try:
        summary = run(folder / "large", make_net, images(), **options).summary
    finally:
        fedrecall.backend.device.WORTH_A_DEVICE = worth
    assert (summary["device"], summary["engine"], summary["workers"]) == ("sim:0, sim:1", "processes", 2)
    one = run(folder / "one", make_net, images(), device="sim:1", **options).summary
    assert (one["device"], one["engine"]) == ("sim:1", "serial")
    narrow = run(folder / "narrow", {"name": "mlp", "hidden": [8]}, vectors(), device="sim", engine="auto",
                 clients_per_round=32).summary  # fmt: skip
    assert (narrow["device"], narrow["engine"], narrow["workers"]) == ("sim:0", "vectorised", 1)


def processes(folder: Path) -> None:
    """Three workers on two devices: the bits of the CPU, and of one worker."""
    execution = {"workers_per_device": 2}
    options = {"algorithm": "scaffold", "forgetting": {"every": 1}, "clients_per_round": 4}
    many = run(folder / "many", make_net, images(), engine="processes", device="sim", execution=execution, **options)
    assert (many.summary["device"], many.summary["workers"]) == ("sim:0, sim:1", 4)
    alone = run(folder / "alone", make_net, images(), device="cpu", **options)
    assert_same_files(alone.path, many.path)


def resume_cases() -> dict[str, Callable[[Path], object]]:
    return {"resume": resumed, "resume elsewhere": resumed_elsewhere}


def stopped(folder: Path, **options: Any) -> None:
    """A run of four rounds that is interrupted after the second."""

    def watch(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(folder, Net, images(), rounds=4, algorithm="scaffold", watch=watch, **options)


def go_on(folder: Path, **options: Any) -> Any:
    return run(folder, Net, images(), rounds=4, algorithm="scaffold", resume=True, **options)


def resumed(folder: Path) -> None:
    stopped(folder / "stopped", device="sim")
    again = go_on(folder / "stopped", device="sim")
    whole = run(folder / "whole", Net, images(), rounds=4, algorithm="scaffold", device="sim")
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (again.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert again.summary["recipe_sha256"] == whole.summary["recipe_sha256"]


def resumed_elsewhere(folder: Path) -> None:
    for began, now in (("sim", "cpu"), ("cpu", "sim")):
        path = folder / began
        stopped(path, device=began)
        refused(f"the run trained on {began} and would go on with {now}", "--other-device")(
            lambda: go_on(path, device=now)  # noqa: B023
        )
        summary = go_on(path, device=now, other_device=True).summary
        assert any(f"trained on {began} until round 2 and on {now}" in text for text in summary["warnings"])
        assert summary["rounds_done"] == 4
    assert_same_numbers(folder / "sim", folder / "cpu")


def assert_same_numbers(one: Path, other: Path) -> None:
    """On this device the kernels are the CPU's: wherever it went on, it came to the same."""
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


GROUPS: dict[str, Callable[[], dict[str, Callable[[Path], object]]]] = {
    "quick": lambda: {"tool": tool, "everything": everything},
    "matrix": matrix_cases,
    "models": model_cases,
    "engines": engine_cases,
    "resume": resume_cases,
}


def main() -> None:
    group, folder = sys.argv[1], Path(sys.argv[2])
    wanted = sys.argv[3] if len(sys.argv) > 3 else ""
    for number, (name, case) in enumerate(GROUPS[group]().items()):
        if wanted not in name:
            continue
        at, why = folder / f"{number}", None
        at.mkdir(parents=True)
        try:
            case(at)
        except BaseException:
            why = traceback.format_exc()
        print(json.dumps({"case": name, "why": why}), flush=True)
    print(json.dumps({"case": "end", "why": None}))


if __name__ == "__main__":
    main()
