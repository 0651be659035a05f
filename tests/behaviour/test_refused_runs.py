"""A run that is refused leaves no folder that would stand in the way of the corrected command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedrecall import Federation, InputError, federate
from fedrecall.engines.engine import Engine
from fedrecall.engines.serial import Serial
from fedrecall.errors import TooFewClientsError
from fedrecall.runs.folder import RunFolder
from fedrecall.simulation import experiment as experiments


@pytest.fixture
def federation() -> Federation:
    random = np.random.default_rng(0)
    clients = [(random.normal(size=(8, 4)).astype("float32"), np.arange(8) % 2) for _ in range(3)]
    return Federation.from_clients(clients, num_classes=2)


class Refuses(Serial):
    """An engine that cannot be opened, or cannot play its first or second round."""

    def __init__(self, where: str, error: type[InputError] = InputError) -> None:
        self.where, self.error = where, error

    def open(self, *words) -> None:
        if self.where == "open":
            raise self.error("the engine is refused")
        super().open(*words)

    def publish(self, round: int, *words) -> None:
        if self.where == f"round {round}":
            raise self.error("the round is refused")
        super().publish(round, *words)


def train(federation: Federation, out: Path, monkeypatch=None, engine: Engine | None = None):
    if engine is not None:
        monkeypatch.setattr(experiments, "choose_engine", lambda *words, **more: engine)
    return federate(nn.Linear(4, 2), federation, rounds=2, clients_per_round=2, out=out, progress=False)


@pytest.mark.parametrize("where", ["open", "round 1"])
def test_what_is_refused_before_its_first_round_leaves_nothing(federation, tmp_path, monkeypatch, where) -> None:
    run = tmp_path / "a" / "run"
    with pytest.raises(InputError, match="is refused"):
        train(federation, run, monkeypatch, Refuses(where))
    assert not run.exists()
    monkeypatch.undo()
    assert train(federation, run).summary["status"] == "finished"


def test_a_folder_that_was_there_stays_and_is_empty(federation, tmp_path, monkeypatch) -> None:
    with pytest.raises(InputError, match="is refused"):
        train(federation, tmp_path, monkeypatch, Refuses("open"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", [Refuses("round 2"), Refuses("round 1", TooFewClientsError)])
def test_what_can_be_resumed_is_kept(federation, tmp_path, monkeypatch, engine) -> None:
    with pytest.raises(InputError, match="is refused"):
        train(federation, tmp_path / "run", monkeypatch, engine)
    assert (tmp_path / "run" / "recipe.yaml").is_file()
    with pytest.raises(InputError, match="has an unfinished run"):
        RunFolder.create(tmp_path / "run")
