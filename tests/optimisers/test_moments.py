"""Moments between rounds: kept by clients, averaged by the server, or reset; two rounds worked out by torch.optim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall import Federation, InputError, Round, Run, Watcher, federate
from fedrecall.runs import files

SIZES, STEPS, ROUNDS, LR = (8, 16), 2, 3, 0.05
STATES = ("reset", "keep", "average")
Shard = tuple[np.ndarray, np.ndarray]


def clients() -> list[Shard]:
    """Two clients whose batch is all that they have, so that the order of samples does not matter."""
    random = np.random.default_rng(3)
    return [(random.normal(size=(n, 5)).astype("float32"), np.arange(n) % 3) for n in SIZES]


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(5, 3)


def run(out: Path, engine: str = "serial", **given: Any) -> Run:
    local = {"steps": STEPS, "batch_size": 16, "lr": LR, "weight_decay": 0.01, **given.pop("local", {})}
    settings = {"rounds": ROUNDS, "participation": 1.0, "objective": "cross_entropy", "evaluation": {"test_last": 0}}
    federation = given.pop("federation", None) or Federation.from_clients(clients(), num_classes=3, validation=0)
    workers = {} if engine == "serial" else {"workers": 2}
    settings |= {"checkpoint": {"every": 1}, **workers, **given}
    return federate(net, federation, local=local, engine=engine, out=out, progress=False, **settings)


class Torch:
    """A client's local training by torch.optim."""

    def __init__(self, kind: str, shard: Shard, clip: float | None) -> None:
        self.x, self.y, self.clip = torch.from_numpy(shard[0]), torch.from_numpy(shard[1]), clip
        self.model = net()
        given = {"lr": LR, "weight_decay": 0.01, "foreach": False}
        makers = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        self.optimiser = makers[kind](self.model.parameters(), **given, **({"momentum": 0.9} if kind == "sgd" else {}))
        self.fresh = self.optimiser.state_dict()

    def train(self, start: list[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), start):
                parameter.copy_(value)
        for _ in range(STEPS):
            self.optimiser.zero_grad()
            F.cross_entropy(self.model(self.x), self.y).backward()
            if self.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimiser.step()
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def mean(first: Tensor, second: Tensor) -> Tensor:
    return (SIZES[0] * first.double() + SIZES[1] * second.double()) / sum(SIZES)


def by_torch(kind: str, state: str, clip: float | None = None) -> list[Tensor]:
    """The parameters after all rounds."""
    trained = [Torch(kind, shard, clip) for shard in clients()]
    x = [parameter.detach().clone() for parameter in net().parameters()]
    for _ in range(ROUNDS):
        models = [client.train(x) for client in trained]
        x = [mean(*pair).float() for pair in zip(*models)]
        for client in trained if state == "reset" else ():
            client.optimiser.load_state_dict(client.fresh)
        if state == "average":
            first, second = (client.optimiser.state_dict()["state"] for client in trained)
            for place in first:
                for name, tensor in first[place].items():
                    both = mean(tensor, second[place][name]).float()
                    for moments in (first, second):
                        moments[place][name].copy_(both)
    return x


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_rounds_are_those_of_torch(kind: str, state: str, tmp_path: Path) -> None:
    momentum = {"momentum": 0.9} if kind == "sgd" else {}
    ours = run(tmp_path / "run", local={"optimiser": {"name": kind, "state": state}, **momentum}).model()
    for mine, torchs in zip(ours.parameters(), by_torch(kind, state)):
        torch.testing.assert_close(mine.detach(), torchs, rtol=2e-5, atol=2e-6)


def test_the_three_states_differ(tmp_path: Path) -> None:
    given = [{"optimiser": {"name": "adam", "state": state}} for state in STATES]
    models = {(run(tmp_path / str(k), local=local).path / files.MODEL).read_bytes() for k, local in enumerate(given)}
    assert len(models) == 3


def test_gradients_are_clipped_as_in_torch(tmp_path: Path) -> None:
    ours = run(tmp_path / "run", local={"optimiser": "adam", "clip_norm": 0.1}).model()
    for mine, torchs in zip(ours.parameters(), by_torch("adam", "reset", clip=0.1)):
        torch.testing.assert_close(mine.detach(), torchs, rtol=2e-5, atol=2e-6)


def test_averaged_moments_travel_both_ways_and_are_counted(tmp_path: Path) -> None:
    """18 parameters, m and v as many each, and the number of steps."""
    lines = run(tmp_path / "run", local={"optimiser": {"name": "adam", "state": "average"}}).metrics
    assert {line["bytes_up"] for line in lines} == {line["bytes_down"] for line in lines} == {2 * 4 * (3 * 18 + 1)}
    plain = run(tmp_path / "kept", local={"optimiser": {"name": "adam", "state": "keep"}}).metrics
    assert {line["bytes_up"] for line in plain} == {2 * 4 * 18}


UNEQUAL = {"participation": 0.6, "rounds": 4, "local": {"epochs": 2, "steps": None, "batch_size": 4, "clip_norm": 0.5}}


def skewed() -> Federation:
    """Clients of five sizes, some of which take more steps than others."""
    random = np.random.default_rng(5)
    shards = [(random.normal(size=(n, 5)).astype("float32"), random.integers(0, 3, n)) for n in (8, 9, 12, 20, 31)]
    return Federation.from_clients(shards, num_classes=3, validation=0.2)


def unequal(out: Path, optimiser: dict[str, Any], engine: str = "serial", **more: Any) -> Run:
    momentum = 0.9 if optimiser["name"] == "sgd" else 0.0
    local = {**UNEQUAL["local"], "optimiser": optimiser, "momentum": momentum}
    return run(out, engine, federation=skewed(), **{**UNEQUAL, "local": local, **more})


def bits(made: Run) -> dict[str, bytes]:
    return {name: (made.path / name).read_bytes() for name in (files.METRICS, files.MODEL)}


class StopAfter(Watcher):
    def after(self, round: Round) -> None:
        if round.number == 2:
            raise RuntimeError("stop here")


@pytest.mark.parametrize(
    ("name", "state"), [("sgd", "keep"), ("adam", "reset"), ("adamw", "keep"), ("adam", "average")]
)
def test_the_bits_are_the_same_in_processes_and_after_a_resume(name: str, state: str, tmp_path: Path) -> None:
    optimiser = {"name": name, "state": state}
    serial = bits(unequal(tmp_path / "serial", optimiser))
    assert bits(unequal(tmp_path / "processes", optimiser, "processes")) == serial
    with pytest.raises(RuntimeError, match="stop here"):
        unequal(tmp_path / "resumed", optimiser, callbacks=[StopAfter()])
    assert bits(unequal(tmp_path / "resumed", optimiser, resume=True)) == serial


@pytest.mark.parametrize(
    ("algorithm", "name", "state"),
    [*[("fedavg", name, state) for name in ("adamw", "sgd") for state in STATES], ("local_only", "adam", "keep")],
)
def test_vectorised_agrees(algorithm: str, name: str, state: str, tmp_path: Path) -> None:
    optimiser = {"name": name, "state": state}
    serial = unequal(tmp_path / "serial", optimiser, algorithm=algorithm)
    other = unequal(tmp_path / "vectorised", optimiser, "vectorised", algorithm=algorithm)
    for one, two in zip(serial.metrics, other.metrics):
        assert one["train_loss"] == pytest.approx(two["train_loss"], rel=1e-5)
        assert one["bytes_up"] == two["bytes_up"]


def test_centralised_training_keeps_its_moments(tmp_path: Path) -> None:
    """Rounds of one client that keeps them are one long training; by torch, on both clients' samples in one batch."""
    local = {"optimiser": {"name": "adam", "state": "keep"}, "batch_size": 24, "steps": 4, "epochs": None}
    ours = run(tmp_path / "run", local=local, algorithm="centralised", participation=0.5).model()
    (a, b), (c, d) = clients()
    one = Torch("adam", (np.concatenate([a, c]), np.concatenate([b, d])), None)
    for _ in range(ROUNDS * 4 // STEPS):
        torchs = one.train([parameter.detach().clone() for parameter in one.model.parameters()])
    for mine, theirs in zip(ours.parameters(), torchs):
        torch.testing.assert_close(mine.detach(), theirs, rtol=2e-5, atol=2e-6)


def test_lanes_have_no_kernels_for_them_and_say_so(tmp_path: Path) -> None:
    pytest.importorskip("llvmlite")
    cases = {
        "the optimiser Adam": {"optimiser": "adam"},
        "an optimiser whose moments outlast the round": {
            "optimiser": {"name": "sgd", "state": "keep"},
            "momentum": 0.5,
        },
        "the clipping of gradients": {"clip_norm": 1.0},
    }
    for k, (reason, local) in enumerate(cases.items()):
        made = run(tmp_path / str(k), local={**local, "step": "lanes"}, rounds=1)
        assert f"steps are exact and not in lanes: there is no kernel for {reason}" in made.summary["warnings"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "scaffold and adam": (
        {"algorithm": "scaffold", "local": {"optimiser": "adam"}},
        "local.optimiser is 'adam', but algorithm 'scaffold' needs 'sgd': its control variates take every step",
    ),
    "fednova and momentum that is kept": (
        {"algorithm": "fednova", "local": {"optimiser": {"name": "sgd", "state": "keep"}, "momentum": 0.9}},
        "local.optimiser.state is 'keep', but algorithm 'fednova' needs momentum that starts anew every round: it ",
    ),
    "feddyn and adamw": (
        {"algorithm": "feddyn", "local": {"optimiser": "adamw"}},
        "local.optimiser is 'adamw', but algorithm 'feddyn' needs 'sgd': its linear term",
    ),
    "nothing to keep": (
        {"local": {"optimiser": {"name": "sgd", "state": "keep"}}},
        "local.optimiser.state is 'keep', but 'sgd' without local.momentum has no moments",
    ),
    "nothing is sent": (
        {"algorithm": "local_only", "local": {"optimiser": {"name": "adam", "state": "average"}}},
        "local.optimiser.state is 'average', but with algorithm 'local_only' clients send nothing",
    ),
    "an unknown state": (
        {"local": {"optimiser": {"name": "adam", "state": "kept"}}},
        "local.optimiser.state is 'kept'; expected 'reset', 'keep' or 'average'",
    ),
    "no norm": ({"local": {"clip_norm": 0}}, "local.clip_norm is 0; expected more than 0.0"),
    "no eps": (
        {"local": {"optimiser": {"name": "adam", "eps": 0}}},
        "local.optimiser.eps is 0; expected at least 1e-37",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_meaning_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    given, sentence = REFUSED[case]
    with pytest.raises(InputError) as refused:
        run(tmp_path / "run", **given)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("algorithm", ["scaffold", "fednova", "feddyn", "fedprox"])
def test_clipping_goes_with_every_algorithm(algorithm: str, tmp_path: Path) -> None:
    """A limit that no gradient reaches multiplies by one, and a low one changes the run."""
    models = []
    for limit in (None, 1e6, 0.05):
        local = {} if limit is None else {"clip_norm": limit}
        made = run(tmp_path / str(limit), algorithm=algorithm, local=local, rounds=2)
        models.append((made.path / files.MODEL).read_bytes())
    assert models[0] == models[1] != models[2]
