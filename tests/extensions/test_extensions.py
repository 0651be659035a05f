"""Seven extensions as a user would write them: outside the package, short, with the same bits on every engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall import Dirichlet, Federation, Round, Run, Update, Watcher, federate
from fedrecall.runs import files

HERE = Path(__file__).parent
EXTENSIONS: dict[str, dict[str, Any]] = {
    "median": {"algorithm": "median:Median"},
    "adam": {"local": {"optimiser": "adam:Adam", "lr": 0.01}},
    "unreliable": {"participation": {"name": "unreliable:Unreliable", "fraction": 0.6}},
    "privacy": {"updates": ["privacy:ClipAndNoise"]},
    "signs": {"updates": [{"name": "signs:Signs"}]},
    "csv_tracker": {"trackers": ["csv_tracker:CsvTracker"]},
    "personal_head": {"algorithm": "personal_head:PersonalHead"},
}
ROUNDS = 4


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)


def federation() -> Federation:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(400, 6)).astype("float32"), random.integers(0, 4, 400)
    x[np.arange(400), y] += 2
    partition = Dirichlet(alpha=0.5, clients=10, validation=0.2, seed=0)
    return Federation.from_arrays(x[:300], y[:300], test=(x[300:], y[300:]), partition=partition)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def run(out: Path, rounds: int = ROUNDS, engine: str = "serial", **given: Any) -> Run:
    local = {"epochs": 2, "batch_size": 8, "lr": 0.1, **given.pop("local", {})}
    settings = {"participation": 0.5, "evaluation": {"every": 2}, "checkpoint": {"every": 1}, **given}
    workers = {} if engine == "serial" else {"workers": 2}
    return federate(
        net,
        federation(),
        rounds=rounds,
        local=local,
        engine=engine,
        out=out,
        progress=False,
        **workers,
        **settings,
    )


def bits(run: Run) -> dict[str, bytes]:
    names = (files.METRICS, files.CLIENTS, files.MODEL)
    return {name: (run.path / name).read_bytes() for name in names if (run.path / name).exists()}


@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_extension_is_short(name: str) -> None:
    assert len((HERE / f"{name}.py").read_text().splitlines()) <= 30


@pytest.mark.parametrize("name", EXTENSIONS)
@pytest.mark.usefixtures("warm_workers")
def test_an_extension_has_the_same_bits_in_processes_and_after_a_resume(name: str, tmp_path: Path) -> None:
    given = EXTENSIONS[name]
    serial = bits(run(tmp_path / "serial", **given))
    assert bits(run(tmp_path / "processes", engine="processes", **given)) == serial
    with pytest.raises(RuntimeError, match="stop here"):
        run(tmp_path / "resumed", callbacks=[StopAfter(2)], **given)
    assert bits(run(tmp_path / "resumed", resume=True, **given)) == serial


@pytest.mark.heavy
@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_extension_has_the_same_bits_on_ray(name: str, tmp_path: Path) -> None:
    given = EXTENSIONS[name]
    assert bits(run(tmp_path / "ray", engine="ray", **given)) == bits(run(tmp_path / "serial", **given))


class StopAfter(Watcher):
    def __init__(self, round: int) -> None:
        self.round = round

    def after(self, round: Round) -> None:
        if round.number == self.round:
            raise RuntimeError("stop here")


class Kept(Watcher):
    """Keeps what clients have sent, and the server's vector after each round."""

    def __init__(self) -> None:
        self.updates: dict[int, list[Update]] = {}
        self.server: dict[int, Tensor] = {}
        self.sent: dict[int, Tensor] = {}

    def before(self, round: Round) -> None:
        self.sent[round.number] = round.sent["w"]

    def result(self, round: Round, update: Update) -> None:
        self.updates.setdefault(round.number, []).append(update)

    def after(self, round: Round) -> None:
        self.server[round.number] = round.server["w"]


def watched(tmp_path: Path, **given: Any) -> tuple[Kept, Run]:
    kept = Kept()
    return kept, run(tmp_path / "run", callbacks=[kept], **given)


def test_the_median_is_that_of_numpy(tmp_path: Path) -> None:
    kept, _ = watched(tmp_path, **EXTENSIONS["median"])
    for t in range(1, ROUNDS + 1):
        models = np.stack([update.sent["w"].numpy() for update in kept.updates[t]]).astype(np.float64)
        np.testing.assert_array_equal(kept.server[t].numpy(), np.median(models, 0).astype(np.float32))


def test_adam_takes_the_steps_of_torch(tmp_path: Path) -> None:
    """One client and one batch, so that the order of samples does not matter."""
    random = np.random.default_rng(1)
    x, y = random.normal(size=(8, 6)).astype("float32"), np.arange(8) % 4
    one = Federation.from_clients([(x, y)], num_classes=4, validation=0)
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    local = {"steps": 3, "batch_size": 8, "lr": 0.05, "weight_decay": 0.0, "optimiser": "adam:Adam"}
    given = {"rounds": 1, "objective": "cross_entropy", "evaluation": {"test_last": 0}}
    ours = federate(model, one, local=local, out=tmp_path / "a", progress=False, engine="serial", **given).model()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimiser.step()
    for mine, torchs in zip(ours.parameters(), model.parameters()):
        torch.testing.assert_close(mine, torchs, rtol=1e-5, atol=1e-6)


def test_clients_that_do_not_answer_send_nothing_and_are_counted(tmp_path: Path) -> None:
    kept, made = watched(tmp_path, **EXTENSIONS["unreliable"])
    answered = [sorted(update.client for update in kept.updates.get(t, [])) for t in range(1, ROUNDS + 1)]
    assert [sorted(line["clients"]) for line in made.metrics] == answered
    asked = [line.get("asked", len(line["clients"])) for line in made.metrics]
    assert asked == [6] * ROUNDS
    assert sum(map(len, answered)) < 6 * ROUNDS


def test_updates_are_clipped_and_noise_is_of_the_size_that_is_asked_for(tmp_path: Path) -> None:
    kept, _ = watched(tmp_path, updates=[{"name": "privacy:ClipAndNoise", "norm": 0.01, "noise": 5.0}])
    for t, updates in kept.updates.items():
        changes = [(update.sent["w"] - kept.sent[t]).double() for update in updates]
        assert max(float(change.norm()) for change in changes) <= 0.0101
        samples = torch.tensor([update.samples for update in updates], dtype=torch.float64)
        mean = sum(n * change for n, change in zip(samples, changes)) / samples.sum()
        noise = kept.server[t].double() - kept.sent[t].double() - mean
        assert float(noise.std()) == pytest.approx(5.0 * 0.01 / len(updates), rel=0.25)


def test_signs_travel_as_a_byte_and_the_error_is_fed_back(tmp_path: Path) -> None:
    plain, (kept, made) = run(tmp_path / "plain"), watched(tmp_path, **EXTENSIONS["signs"])
    parameters, statistics = 6 * 8 + 8 + 8 + 8 + 8 * 4 + 4, 16
    numbers = parameters + statistics
    assert plain.metrics[0]["bytes_up"] == 5 * (4 * numbers + 8)  # five clients; a counter of 8 bytes
    assert made.metrics[0]["bytes_up"] == 5 * (numbers + 2 * 4 + 8)  # two scales
    for t, updates in kept.updates.items():
        for update in updates:
            change = (update.sent["w"] - kept.sent[t]).abs()
            sizes = change[change > 0]
            assert float(sizes.max() - sizes.min()) < 1e-5  # one size, up to the rounding of the sum


def test_a_tracker_is_told_of_the_beginning_of_each_round_and_of_the_end(tmp_path: Path) -> None:
    made = run(tmp_path / "run", **EXTENSIONS["csv_tracker"])
    rows = [line.split(",") for line in (made.path / "tracked.csv").read_text().splitlines()]
    assert rows[0] == ["round", "train_loss", "objective"]
    assert [[row[0], float(row[1])] for row in rows[1:-1]] == [
        [str(line["round"]), line["train_loss"]] for line in made.metrics
    ]
    assert rows[-1] == ["end", "finished", ""]
    plain = run(tmp_path / "plain")
    assert plain.summary["recipe_sha256"] == made.summary["recipe_sha256"]


def test_a_head_stays_with_its_client_and_the_body_is_averaged(tmp_path: Path) -> None:
    kept, made = watched(tmp_path, **EXTENSIONS["personal_head"])
    slots = 64 + 16 + 16 + 16  # floats of the body: 6 x 8 + 8, norm weight and bias, each padded to 16
    first = kept.sent[1]
    for t in range(1, ROUNDS + 1):
        assert torch.equal(kept.server[t][slots:], first[slots:])  # the server's head never moves
        assert not torch.equal(kept.server[t][:slots], kept.sent[t][:slots])
    assert made.metrics[-1]["val_accuracy"] > 0
    summary = json.loads((made.path / files.SUMMARY).read_text())
    assert summary["status"] == "finished"


def test_extensions_given_as_objects_have_the_bits_of_those_that_are_named(tmp_path: Path) -> None:
    from adam import Adam
    from signs import Signs
    from unreliable import Unreliable

    named = {"updates": ["signs:Signs"], "participation": {"name": "unreliable:Unreliable", "fraction": 0.6}}
    first = run(tmp_path / "named", local={"optimiser": "adam:Adam"}, **named)
    objects = {
        "updates": [Signs()],
        "participation": Unreliable(fraction=0.6),
        "optimiser": Adam(weight_decay=1e-4),
    }
    assert bits(run(tmp_path / "objects", **objects)) == bits(first)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "scaffold and adam": (
        {"algorithm": "scaffold", **EXTENSIONS["adam"]},
        "local.optimiser is 'adam:Adam', but algorithm 'scaffold' needs 'sgd'",
    ),
    "momentum that adam has not": (
        {"local": {"optimiser": "adam:Adam", "momentum": 0.5}},
        "local.momentum is 0.5, but the optimiser 'adam:Adam' has none",
    ),
    "numbers about an update": (
        {"algorithm": "fednova", **EXTENSIONS["signs"]},
        "updates changes what clients send, but algorithm 'fednova' also sends numbers about it",
    ),
    "sums of single updates": (
        {"algorithm": "median:Median", **EXTENSIONS["privacy"]},
        "a stage of updates works on sums, but algorithm 'median:Median' aggregates single updates",
    ),
    "no stage": ({"updates": ["adam:Adam"]}, "updates is 'adam:Adam'"),
    "no tracker": ({"trackers": ["adam:Adam"]}, "trackers is 'adam:Adam', which makes no Watcher"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_meaning_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    given, sentence = REFUSED[case]
    assert_refused(lambda: run(tmp_path / "run", **given), sentence)


def assert_refused(call: Callable[[], object], sentence: str) -> None:
    from fedrecall import InputError

    with pytest.raises(InputError) as refused:
        call()
    assert sentence in str(refused.value)
