"""Whoever watches a run sees every round, changes nothing, and is named when it fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedrecall import Federation, Iid, InputError, Round, Run, Watcher, federate


def run(out: Path, **options: object) -> Run:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    federation = Federation.from_arrays(x, np.arange(60) % 3, partition=Iid(clients=6, validation=0.2))
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    return federate(model, federation, rounds=3, clients_per_round=2, out=out, **options)  # type: ignore[arg-type]


class Notes(Watcher):
    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def before(self, round: Round) -> None:
        self.seen.append(("before", round.number, len(round.clients), float(round.server["w"].sum())))

    def result(self, round: Round, result: object) -> None:
        self.seen.append(("result", round.number))

    def after(self, round: Round) -> None:
        self.seen.append(("after", round.number, float(round.server["w"].sum()), round.line["train_loss"]))


def test_a_watcher_sees_each_round_before_its_results_and_after(tmp_path: Path) -> None:
    notes = Notes()
    made = run(tmp_path / "run", callbacks=[notes])
    assert [entry[:2] for entry in notes.seen] == [
        (moment, t) for t in (1, 2, 3) for moment in ("before", "result", "result", "after")
    ]
    assert [entry[3] for entry in notes.seen if entry[0] == "after"] == [m["train_loss"] for m in made.metrics]
    # The server's state after a round is the one before the next.
    after = [entry[2] for entry in notes.seen if entry[0] == "after"]
    before = [entry[3] for entry in notes.seen if entry[0] == "before"]
    assert before[1:] == after[:-1]


def test_watching_changes_nothing(tmp_path: Path) -> None:
    plain, watched = run(tmp_path / "a"), run(tmp_path / "b", callbacks=[Notes(), lambda line: None])
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (plain.path / name).read_bytes() == (watched.path / name).read_bytes()


def test_a_function_is_shown_the_lines_of_metrics(tmp_path: Path) -> None:
    lines: list[dict] = []
    assert run(tmp_path / "run", callbacks=[lines.append]).metrics == lines


def test_an_error_in_a_callback_names_it_and_the_rounds_before_are_saved(tmp_path: Path) -> None:
    def clumsy(line: dict) -> None:
        if line["round"] == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        run(tmp_path / "run", callbacks=[clumsy])
    assert any("clumsy" in note and "in round 2" in note for note in caught.value.__notes__)
    assert [line["round"] for line in run(tmp_path / "run", resume=True).metrics] == [1, 2, 3]


def test_a_callback_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a callback is 3; expected a Watcher or a function"):
        run(tmp_path / "run", callbacks=[3])


def test_an_interrupted_run_says_how_python_goes_on(tmp_path: Path) -> None:
    def interrupt(line: dict) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"go on with: federate\(.., out='.*run', resume=True\)"):
        run(tmp_path / "run", callbacks=[interrupt])
    assert len(run(tmp_path / "run", resume=True).metrics) == 3
