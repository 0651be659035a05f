"""A run that was made longer is the run of that length from the start."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from failing_disk import Disk, kill, let_be, watched
from torch import nn

from fedrecall import Federation, Iid, Local, Round, Watcher, federate
from fedrecall.errors import Interrupted
from fedrecall.runs.reader import load_run

NUMBERS = np.random.default_rng(0)
X = NUMBERS.normal(size=(160, 5)).astype("float32")
Y = NUMBERS.integers(0, 3, 160)  # noise, so that validation accuracy goes up and down


def run(out: Path, rounds: int, **settings: Any) -> Path:
    """Start the run in `out`, or resume it, up to `rounds`."""
    torch.manual_seed(1)
    partition = Iid(clients=5, validation=0.25, held_out=1, seed=0)
    federation = Federation.from_arrays(X, Y, test=(X[:40], Y[:40]), partition=partition)
    settings = {"clients_per_round": 2, "local": Local(steps=4, batch_size=8, lr=1.0), **settings}
    federate(nn.Linear(5, 3), federation, rounds=rounds, out=out, resume=True, engine="serial", **settings)
    return out


def run_and_stop(out: Path, rounds: int, stop_after: int, **settings: Any) -> None:
    def interrupt(line: dict[str, Any]) -> None:
        if line["round"] == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(out, rounds, watch=interrupt, **settings)


def summary(path: Path) -> dict[str, Any]:
    """The summary without the times and its digest."""
    found = json.loads((path / "summary.json").read_text())
    return {key: value for key, value in found.items() if key not in ("seconds", "sha256")}


def result(path: Path) -> dict[str, Any]:
    """What must be equal: lines, matrices, model, newest checkpoint and summary."""
    names = ["metrics.jsonl", "clients.jsonl", "model.safetensors", "recipe.yaml"]
    names += sorted(str(file.relative_to(path)) for file in path.glob("forgetting/*"))
    names += [str(max(path.glob("checkpoints/*.safetensors")).relative_to(path))]
    present = [name for name in names if (path / name).exists()]
    return {**{name: (path / name).read_bytes() for name in present}, "summary": summary(path)}


def lines(path: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(text) for text in (path / name).read_text().splitlines()]


CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "the last round of the shorter run is not evaluated in the longer one": ((5, 9), {"evaluation": {"every": 3}}),
    "the tested rounds move by one": ((6, 7), {"evaluation": {"every": 2, "test_last": 3}}),
    "the default window grows": ((9, 12), {}),
    "nothing is tested": ((5, 8), {"evaluation": {"every": 4, "test_last": 0}}),
    "longer, and longer again": ((4, 7, 11), {"evaluation": {"every": 3, "test_last": 2}}),
    "evaluated only at the end": ((4, 7), {"evaluation": {"every": 100}}),
    "with a probe in the last round": ((4, 9), {"evaluation": {"every": 3}, "forgetting": {"every": 2}}),
    "probed rounds beyond the shorter run": ((4, 9), {"forgetting": {"rounds": [2, 7]}}),
    "with a target": ((5, 9), {"evaluation": {"every": 3, "target": 0.01}}),
    "stopped early in the shorter run": ((20, 24), {"evaluation": {"every": 2}, "stop": {"patience": 2}}),
    "with states of the clients": ((5, 9), {"evaluation": {"every": 3}, "algorithm": "scaffold"}),
    "without a global model": ((5, 9), {"evaluation": {"every": 3}, "algorithm": "local_only"}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_lengthened_run_is_one_of_that_length_from_the_start(case: str, tmp_path: Path) -> None:
    lengths, settings = CASES[case]
    for rounds in lengths:
        run(tmp_path / "longer", rounds, **settings)
    assert result(tmp_path / "longer") == result(run(tmp_path / "whole", lengths[-1], **settings))


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(n, marks=pytest.mark.slow) for n in range(12, 60))])
def test_a_drawn_run_that_is_lengthened_is_one_of_that_length_from_the_start(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    before = draw.randint(3, 10)
    after = before + draw.randint(1, 6)
    settings: dict[str, Any] = {
        "evaluation": {"every": draw.choice([1, 2, 3, 4, 7])},
        "checkpoint": {"every": draw.choice([1, 2, 5, 100])},
        "keep": draw.choice(["last", "best", "best"]),
        "algorithm": draw.choice(["fedavg", "scaffold", "fedexp"]),
    }
    if draw.random() < 0.7:
        settings["evaluation"]["test_last"] = draw.randint(0, before)
    if draw.random() < 0.5:
        metric = draw.choice(["val_accuracy", "val_nll", "val_accuracy_worst"])
        settings["stop"] = {"patience": draw.randint(1, 4), "metric": metric}
    if draw.random() < 0.5:
        settings["stop"] = {**settings.get("stop", {}), "better": draw.choice(["higher", "lower"])}
    longer, whole = tmp_path / "longer", tmp_path / "whole"
    if draw.random() < 0.3:
        run_until(longer, before, draw.randint(1, before), **settings)
    run(longer, before, **settings)
    if draw.random() < 0.3:
        run_until(longer, after, draw.randint(before, after), **settings)
    run(longer, after, **settings)
    assert result(longer) == result(run(whole, after, **settings)), (before, after, settings)


def run_until(out: Path, rounds: int, stop_after: int, **settings: Any) -> None:
    """Interrupt the run after this round, unless it ends before."""
    try:
        run_and_stop(out, rounds, stop_after, **settings)
    except pytest.fail.Exception:
        assert summary(out)["status"] == "finished"


# A metric that rises from round to round, so that the last evaluated round is always the best.
RISING = {"keep": "best", "stop": {"metric": "val_nll", "better": "higher"}}


@pytest.mark.parametrize("checkpoints", [1, 2, 100])
def test_the_kept_model_is_not_that_of_a_round_that_the_longer_run_does_not_evaluate(
    checkpoints: int, tmp_path: Path
) -> None:
    settings = {**RISING, "evaluation": {"every": 4}, "checkpoint": {"every": checkpoints}}
    short = run(tmp_path / "longer", 9, **settings)
    assert summary(short)["best_round"] == 9
    run(tmp_path / "longer", 10, **settings)
    whole = run(tmp_path / "whole", 10, **settings)
    assert result(tmp_path / "longer") == result(whole)
    found = summary(tmp_path / "longer")
    assert found["best_round"] == found["kept_round"]
    (best,) = (line for line in lines(whole) if line["round"] == found["best_round"])
    assert best["val_nll"] == found["best_value"]


def test_an_old_last_round_loses_what_was_measured_because_it_was_among_the_last(tmp_path: Path) -> None:
    settings = {"evaluation": {"every": 4, "test_last": 3}}
    run(tmp_path / "run", 6, **settings)
    assert {"val_accuracy", "test_accuracy", "held_out_accuracy", "update_norm", "global_forgetting"} <= set(
        lines(tmp_path / "run")[5]
    )
    run(tmp_path / "run", 8, **settings)
    found = lines(tmp_path / "run")
    assert [line["round"] for line in found if "val_accuracy" in line] == [4, 8]
    assert [line["round"] for line in found if "test_accuracy" in line] == [6, 7, 8]
    assert set(found[4]) == {"round", "clients", "lr", "train_loss", "bytes_up", "bytes_down", "flops"}
    assert [line["round"] for line in lines(tmp_path / "run", "clients.jsonl")] == [4, 8]


def test_a_round_that_is_past_is_not_tested_and_the_summary_says_so(tmp_path: Path) -> None:
    """Where `test_last` is more than the shorter run had rounds, it tested a tenth of them."""
    settings = {"evaluation": {"every": 2, "test_last": 5}}
    run(tmp_path / "run", 4, **settings)
    assert summary(tmp_path / "run")["final_accuracy_rounds"] == 1
    run(tmp_path / "run", 7, **settings)  # which would have tested rounds 3 to 7
    found = summary(tmp_path / "run")
    assert [line["round"] for line in lines(tmp_path / "run") if "test_accuracy" in line] == [4, 5, 6, 7]
    assert found["final_accuracy_rounds"] == 4
    note = "of the last 5 rounds, those up to 3 are not tested: they were done before the run was made longer"
    assert found["warnings"] == [note]
    whole = run(tmp_path / "whole", 7, **settings)
    assert found["last_val_accuracy"] == summary(whole)["last_val_accuracy"]
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_warnings_are_those_of_the_new_length(tmp_path: Path) -> None:
    settings = {"evaluation": {"every": 2, "test_last": 50}, "forgetting": {"rounds": [2, 5, 9]}}
    run(tmp_path / "longer", 4, **settings)
    assert len(summary(tmp_path / "longer")["warnings"]) == 2
    run(tmp_path / "longer", 6, **settings)
    whole = run(tmp_path / "whole", 6, **settings)
    assert summary(tmp_path / "longer")["warnings"] == summary(whole)["warnings"]
    assert "forgetting.rounds has [9], but the run has 6 rounds" in summary(whole)["warnings"]


def kill_at(number: int, work: Callable[[], object], folder: Path) -> None:
    """Do the work in a fork of this process that is killed at its change of that number below the folder."""
    child = os.fork()
    if not child:
        try:
            signal.alarm(60)
            with watched(folder, number, kill):
                work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)


class Began(Watcher):
    """Notes how many changes of the folder were made before the first round began."""

    def __init__(self, disk: Disk) -> None:
        self.disk, self.changes = disk, 0

    def before(self, round: Round) -> None:
        self.changes = len(self.disk.changes)


@pytest.mark.slow
def test_a_kill_at_any_change_before_the_first_new_round_leaves_a_run_that_can_be_read_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda file: None)
    settings = {"evaluation": {"every": 4, "test_last": 3}, "checkpoint": {"every": 1}, **RISING}
    short, longer = run(tmp_path / "short", 6, **settings), tmp_path / "longer"
    whole = result(run(tmp_path / "whole", 7, **settings))

    def lengthen() -> Path:
        return run(longer, 7, **settings)

    shutil.copytree(short, longer)
    with watched(longer, None, let_be) as disk:
        began = Began(disk)
        run(longer, 7, callbacks=[began], **settings)
    assert result(longer) == whole
    for number in range(1, began.changes + 1):
        shutil.rmtree(longer)
        shutil.copytree(short, longer)
        kill_at(number, lengthen, longer)
        load_run(longer)
        assert result(lengthen()) == whole, number
