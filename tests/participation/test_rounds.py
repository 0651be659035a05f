"""Rounds whose clients fail or are slow: what they send, what they keep, and how long the round takes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import Federation, FedNova, InputError, LocalSteps, Population, Round, Run, Update, Watcher, federate
from fedrecall.core.rng import stream
from fedrecall.runs import files

SIZES = (10, 16, 20, 23, 31, 40)
EPOCHS, BATCH = 2, 4
PARAMETERS = 16 * 4 + 4


def federation() -> Federation:
    random = np.random.default_rng(2)
    shards = [(random.normal(size=(n, 16)).astype("float32"), random.integers(0, 4, n)) for n in SIZES]
    return Federation.from_clients(shards, num_classes=4, validation=0.2)


def net() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(16, 4))


class Kept(Watcher):
    """Keeps the updates of each round, and stops the run after `stop`."""

    def __init__(self, stop: int = 0) -> None:
        self.stop, self.updates = stop, dict[int, list[Update]]()

    def before(self, round: Round) -> None:
        self.updates[round.number] = []

    def result(self, round: Round, update: Update) -> None:
        self.updates[round.number].append(update)

    def after(self, round: Round) -> None:
        if round.number == self.stop:
            raise RuntimeError("stop here")


def run(out: Path, engine: str = "serial", **given: Any) -> Run:
    local = {"epochs": EPOCHS, "batch_size": BATCH, "lr": 0.1, **given.pop("local", {})}
    settings = {"rounds": 5, "participation": 1.0, "evaluation": {"every": 2, "test_last": 0}, "seed": 3, **given}
    workers = {} if engine == "serial" else {"workers": 2}
    settings |= {"checkpoint": {"every": 1}, "progress": False, **workers}
    return federate(net, federation(), local=local, engine=engine, out=out, **settings)


def net_run(out: Path, **given: Any) -> tuple[Kept, Run]:
    kept = Kept()
    return kept, run(out, callbacks=[kept], **given)


def all_steps() -> dict[int, int]:
    """Of each client: two epochs of whole batches of the samples that are left after validation."""
    sizes = federation().index.train_sizes(np.arange(len(SIZES))).tolist()
    return {client: EPOCHS * (n // BATCH) for client, n in enumerate(sizes)}


def test_stragglers_take_fewer_steps(tmp_path: Path) -> None:
    """A share s of K steps is 1 + floor(s (K - 1)), so that all numbers from 1 to K - 1 are as likely."""
    kept, made = net_run(tmp_path / "run", participation={"fraction": 1.0, "stragglers": 0.5})
    slow = 0
    for t, updates in kept.updates.items():
        drawn = stream(3, "stragglers", t).random((len(SIZES), 2))
        expected = {
            client: 1 + math.floor(drawn[client, 1] * (steps - 1)) if drawn[client, 0] < 0.5 else steps
            for client, steps in all_steps().items()
        }
        assert {update.client: update.steps for update in updates} == expected
        few = sum(expected[client] < steps for client, steps in all_steps().items())
        assert made.metrics[t - 1].get("stragglers", 0) == few
        flops = sum(2 * 2 * 16 * 4 * BATCH * steps for steps in expected.values())  # forward, and weights' gradient
        assert made.metrics[t - 1]["flops"] == flops
        slow += few
    assert slow > 5


def test_stragglers_that_miss_the_deadline_send_nothing(tmp_path: Path) -> None:
    chances = {"fraction": 1.0, "stragglers": 0.5}
    few, _ = net_run(tmp_path / "few", participation=chances)
    out, made = net_run(tmp_path / "out", participation={**chances, "late": "left_out"})
    whole = all_steps()
    for t, updates in out.updates.items():
        full = {update.client for update in few.updates[t] if update.steps == whole[update.client]}
        assert {update.client for update in updates} == full
        assert made.metrics[t - 1].get("asked", len(full)) == len(SIZES)


def test_fednova_undoes_unequal_steps_of_a_constant_gradient() -> None:
    """Clients that move by the same d a step send d, whether they take three steps or one; tau is the mean number."""
    x, d = torch.zeros(3), torch.tensor([1.0, -2.0, 0.5])
    sums, totals = {}, {}
    for steps, samples in ((3, 10), (1, 30)):
        sent, _ = FedNova().finish(x - 0.1 * steps * d, {"w": x}, {}, LocalSteps(steps, 0.1, samples), {})
        for name, tensor in sent.items():
            sums[name] = sums.get(name, 0.0) + samples * tensor.double()
            totals[name] = totals.get(name, 0.0) + samples
    new = FedNova().aggregate({"w": x}, sums, totals, Population(2, 40))["w"]
    torch.testing.assert_close(new, (-0.1 * 1.5 * d).double())  # (10 * 3 + 30 * 1) / 40 = 1.5


def test_who_fails_keeps_its_state(tmp_path: Path) -> None:
    """SCAFFOLD's control variates are those of the last round in which a client has answered."""
    kept, made = net_run(tmp_path / "run", algorithm="scaffold", participation={"fraction": 1.0, "dropout": 0.5})
    last = {update.client: t for t, updates in kept.updates.items() for update in updates}
    names = [path.name for path in (made.path / files.STATES).rglob("*.safetensors")]
    newest: dict[int, int] = {}
    for name in names:
        _, client, _, round = name.removesuffix(".safetensors").split("-")
        newest[int(client)] = max(newest.get(int(client), 0), int(round))
    assert newest == last
    assert set(last.values()) != {5}
    for line in made.metrics:
        vector = 4 * PARAMETERS
        assert line["bytes_up"] == len(line["clients"]) * 2 * vector
        assert line["bytes_down"] == len(SIZES) * 2 * vector  # who fails was sent the model


FAILING = {"name": "by_size", "clients": 5, "dropout": 0.2, "stragglers": 0.5}
CASES: dict[str, dict[str, Any]] = {
    "fedprox": {"algorithm": "fedprox", "participation": FAILING},
    "scaffold": {"algorithm": "scaffold", "participation": FAILING},
    "fednova and a clock": {
        "algorithm": "fednova", "participation": FAILING, "clock": {"speed": 1e4, "spread": 1.0, "deadline": 2.0}
    },
    "poisson": {"participation": {"name": "poisson", "fraction": 0.4}},
    "cyclic and adam": {
        "participation": {"name": "cyclic", "groups": 2, "dropout": 0.3},
        "local": {"optimiser": {"name": "adam", "state": "keep"}},
    },
}  # fmt: skip


def bits(made: Run) -> dict[str, bytes]:
    return {name: (made.path / name).read_bytes() for name in (files.METRICS, files.MODEL)}


@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_the_same_in_processes_and_after_a_resume(case: str, tmp_path: Path) -> None:
    given = CASES[case]
    serial = bits(run(tmp_path / "serial", **given))
    assert bits(run(tmp_path / "processes", "processes", **given)) == serial
    with pytest.raises(RuntimeError, match="stop here"):
        run(tmp_path / "resumed", callbacks=[Kept(stop=2)], **given)
    assert bits(run(tmp_path / "resumed", resume=True, **given)) == serial


@pytest.mark.parametrize("partial", ["drop", "keep"])
@pytest.mark.parametrize("case", CASES)
def test_vectorised_agrees(case: str, partial: str, tmp_path: Path) -> None:
    given = {**CASES[case], "local": {**CASES[case].get("local", {}), "partial_batch": partial}}
    serial, other = run(tmp_path / "serial", **given), run(tmp_path / "vectorised", "vectorised", **given)
    for one, two in zip(serial.metrics, other.metrics):
        exact = {"clients", "asked", "stragglers", "bytes_up", "flops", "simulated_seconds"} & one.keys()
        assert {key: one[key] for key in exact} == {key: two[key] for key in exact}
        assert one["train_loss"] == (None if two["train_loss"] is None else pytest.approx(two["train_loss"], rel=1e-5))


def test_lanes_hold_stragglers(tmp_path: Path) -> None:
    given = {"participation": FAILING, "local": {"step": "lanes"}}
    serial, other = run(tmp_path / "serial", **given), run(tmp_path / "vectorised", "vectorised", **given)
    assert not [note for note in serial.summary["warnings"] if "not in lanes" in note]
    for one, two in zip(serial.metrics, other.metrics):
        assert one["clients"] == two["clients"]
        assert one["train_loss"] == pytest.approx(two["train_loss"], rel=1e-5)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "centralised", "local_only"])
def test_an_empty_round_leaves_the_model_as_it_is(algorithm: str, tmp_path: Path) -> None:
    given = {"participation": {"fraction": 1.0, "dropout": 1.0}, "rounds": 2, "algorithm": algorithm}
    probed = {} if algorithm in ("centralised", "local_only") else {"forgetting": {"every": 1}}
    made = run(tmp_path / "run", **given, **probed)
    for line in made.metrics:
        assert (line["clients"], line["asked"], line["train_loss"], line["flops"]) == ([], len(SIZES), None, 0)
    assert made.metrics[0].get("val_accuracy", made.metrics[1]["val_accuracy"]) == made.metrics[1]["val_accuracy"]
    if algorithm != "local_only":
        for mine, given_weights in zip(made.model().parameters(), net().parameters()):
            assert torch.equal(mine, given_weights)


def test_poisson_rounds_are_empty_now_and_then(tmp_path: Path) -> None:
    made = run(tmp_path / "run", participation={"name": "poisson", "fraction": 0.1}, rounds=12)
    counts = [len(line["clients"]) for line in made.metrics]
    assert 0 in counts
    assert max(counts) > 0
    empty = counts.index(0)
    assert made.metrics[empty]["bytes_down"] == made.metrics[empty]["bytes_up"] == 0


# The clock


def seconds_by_hand(clock: dict[str, float], client: int, samples: int, slowness: float = 1.0) -> float:
    """Download and upload of 68 float32, and 2 * 2 * 64 operations a sample."""
    speed, bandwidth = (math.exp(clock["spread"] * z) for z in stream(3, "clock", client=client).standard_normal(2))
    transfer = 2 * 4 * PARAMETERS / (clock["bandwidth"] * bandwidth)
    return transfer + 256 * samples * slowness / (clock["speed"] * speed)


CLOCK = {"speed": 1e4, "bandwidth": 1e3, "spread": 0.7}


def test_a_round_takes_as_long_as_its_slowest_client(tmp_path: Path) -> None:
    evaluation = {"every": 1, "target": 0.01, "test_last": 0}
    made = run(tmp_path / "run", clock=CLOCK, participation=0.5, evaluation=evaluation)
    whole = all_steps()
    for line in made.metrics:
        slowest = max(seconds_by_hand(CLOCK, client, BATCH * whole[client]) for client in line["clients"])
        assert line["simulated_seconds"] == pytest.approx(slowest, rel=1e-12)
    summary = json.loads((made.path / files.SUMMARY).read_text())
    assert summary["simulated_seconds"] == pytest.approx(sum(line["simulated_seconds"] for line in made.metrics))
    assert summary["rounds_to_target"] == 1
    assert summary["simulated_seconds_to_target"] == made.metrics[0]["simulated_seconds"]
    assert "simulated_seconds" not in run(tmp_path / "plain", rounds=1).metrics[0]


def test_until_the_deadline_clients_do_what_they_can(tmp_path: Path) -> None:
    clock = {**CLOCK, "deadline": 1.6}
    kept, made = net_run(tmp_path / "run", clock=clock, rounds=1)
    whole, expected = all_steps(), {}
    for client, steps in whole.items():
        fits = [k for k in range(1, steps + 1) if seconds_by_hand(clock, client, BATCH * k) <= 1.6]
        if fits:
            expected[client] = max(fits)
    assert {update.client: update.steps for update in kept.updates[1]} == expected
    assert len(expected) > 0
    assert any(steps < whole[client] for client, steps in expected.items())
    if len(expected) < len(SIZES):  # then the server waits in vain
        assert made.metrics[0]["simulated_seconds"] == 1.6


def test_who_would_miss_the_deadline_is_left_out(tmp_path: Path) -> None:
    clock = {**CLOCK, "deadline": 1.6}
    made = run(tmp_path / "run", clock=clock, rounds=1, participation={"fraction": 1.0, "late": "left_out"})
    whole = all_steps()
    in_time = {k for k, steps in whole.items() if seconds_by_hand(clock, k, BATCH * steps) <= 1.6}
    assert 0 < len(in_time) < len(SIZES)
    (line,) = made.metrics
    assert set(line["clients"]) == in_time
    assert (line["asked"], line["stragglers"]) == (len(SIZES), len(SIZES) - len(in_time))
    assert line["simulated_seconds"] == 1.6


def test_a_stragglers_few_steps_take_the_time_of_all_of_them(tmp_path: Path) -> None:
    kept, made = net_run(tmp_path / "run", clock=CLOCK, rounds=1, participation={"fraction": 1.0, "stragglers": 1.0})
    whole = all_steps()
    assert all(update.steps < whole[update.client] for update in kept.updates[1])
    slowest = max(seconds_by_hand(CLOCK, client, BATCH * steps) for client, steps in whole.items())
    assert made.metrics[0]["simulated_seconds"] == pytest.approx(slowest, rel=1e-12)


def test_time_is_the_same_whatever_the_model_learns(tmp_path: Path) -> None:
    """It is a function of the plan: another seed of nothing but the rate has the same seconds."""
    slow, fast = (run(tmp_path / str(lr), clock=CLOCK, local={"lr": lr}) for lr in (0.01, 0.5))
    for one, two in zip(slow.metrics, fast.metrics):
        assert one["simulated_seconds"] == two["simulated_seconds"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"clock": {"speed": 0}}, "clock.speed is 0; expected more than 0.0"),
        ({"clock": {"spede": 1}}, "there is no key 'clock.spede'"),
        ({"clock": {}, "algorithm": "centralised"}, "clock is given, but with algorithm 'centralised' all data are in"),
    ],
)
def test_what_has_no_meaning_is_refused(given: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        run(tmp_path / "run", **given)
    assert sentence in str(refused.value)
