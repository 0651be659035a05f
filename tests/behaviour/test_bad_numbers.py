"""A client whose numbers are not finite is left out; a model whose are not stops the run."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from fedrecall import Federation, Objective, Scaffold, federate
from fedrecall.errors import DivergedError


@dataclass(frozen=True)
class Poisoned(Objective):
    """Cross-entropy, without end at clients with as many samples as the poison says."""

    poison: int

    def __call__(self, logits, target, client, teacher=None):
        factor = torch.where(client["counts"].sum() == self.poison, torch.inf, 1.0)
        return F.cross_entropy(logits, target) * factor


def federation(sizes) -> Federation:
    """A client's data are a function of their number."""
    clients = [(np.random.default_rng(n).normal(size=(n, 6)).astype("f4"), np.arange(n) % 3) for n in sizes]
    return Federation.from_clients(clients, num_classes=3, validation=0)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 3)


def run(out, sizes, engine="serial", **settings):
    options = {"rounds": 2, "participation": 1.0, "local": {"steps": 2, "batch_size": 64, "lr": 0.1}}
    return federate(
        model(), federation(sizes), objective=Poisoned(13), engine=engine, out=out, **{**options, **settings}
    )


@pytest.mark.parametrize("engine", ["serial", pytest.param("processes", marks=pytest.mark.slow), "vectorised"])
def test_the_round_goes_on_without_the_client(engine, tmp_path) -> None:
    # The full batch is the whole client, so those that are left train as if there were no other.
    with_it = run(tmp_path / "with", [20, 13, 16], engine)
    without = run(tmp_path / "without", [20, 16], engine)
    ours, theirs = (load_file(done.path / "model.safetensors") for done in (with_it, without))
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-6)
    assert [sorted(line["clients"]) for line in with_it.metrics] == [[0, 2], [0, 2]]
    summary = json.loads((with_it.path / "summary.json").read_text())
    assert (summary["status"], summary["dropped_updates"]) == ("finished", 2)
    events = [json.loads(line) for line in (with_it.path / "events.jsonl").read_text().splitlines()]
    named = [event["message"] for event in events if event["event"] == "dropped"]
    assert named == [f"the update of client 1 in round {t} is not finite" for t in (1, 2)]


def test_a_dropped_client_keeps_the_state_it_had(tmp_path) -> None:
    done = run(tmp_path / "run", [20, 13], algorithm=Scaffold())
    assert {path.name[:13] for path in (done.path / "clients").rglob("*.safetensors")} == {"client-000000"}


def test_a_run_may_be_told_to_stop_instead(tmp_path) -> None:
    with pytest.raises(DivergedError, match=r"client 1 in round 1 .*last good state is that of round 0"):
        run(tmp_path / "run", [20, 13], bad_updates="stop")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "diverged"


def test_a_round_without_any_good_update_stops_the_run(tmp_path) -> None:
    with pytest.raises(DivergedError, match="no client's update of round 1 was finite"):
        run(tmp_path / "run", [13])


def test_a_global_model_that_is_no_longer_finite_stops_the_run_at_the_last_good_state(fedrecall, tmp_path) -> None:
    done = fedrecall("run", "demo", "model=mlp", "local.lr=1e38", "local.steps=2", "rounds=5", "--out", tmp_path / "a")
    assert done.code == 3
    assert "diverged" in done.err
    assert "Traceback" not in done.err
