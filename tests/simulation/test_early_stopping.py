"""`stop`, `keep` and `init`: when a run has learned enough, which model is kept, and where it starts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedrecall import Federation, Iid, Local, federate
from fedrecall.cli.output import final_accuracy
from fedrecall.errors import InputError, Interrupted
from fedrecall.recipe.settings import Stop
from fedrecall.simulation.early_stopping import Best


def seen(values: Sequence[float | None], **stop: Any) -> Best:
    best = Best(Stop(**stop))
    for number, value in enumerate(values, start=1):
        best.see({"round": 10 * number, stop.get("metric", "val_accuracy"): value})
    return best


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("values", "stop", "expected"),  # the best round and value, and whether patience is over
    [
        ([0.2, 0.5, 0.5, 0.4], {"patience": 3}, (20, 0.5, False)),  # the first of equals
        ([0.2, 0.5, 0.5, 0.4, 0.1], {"patience": 3}, (20, 0.5, True)),
        ([0.2, 0.5, 0.5, 0.4, 0.6], {"patience": 3}, (50, 0.6, False)),
        ([0.9, NAN, 0.3, 0.5], {"metric": "val_nll"}, (30, 0.3, False)),
        ([0.9, 0.3], {"metric": "val_mine", "better": "lower"}, (20, 0.3, False)),
        ([0.9, 0.3], {"metric": "val_mine"}, (10, 0.9, False)),
        # None is how a file's null is read, so that a resumed run counts as the uninterrupted one did.
        *(([0.5, none, none], {"patience": 2}, (10, 0.5, True)) for none in (NAN, INF, -INF, None)),
        *(([none, 0.5, none], {"patience": 2}, (20, 0.5, False)) for none in (NAN, INF, -INF, None)),
    ],
)
def test_the_best_and_the_patience(values: list[float | None], stop: dict[str, Any], expected: tuple) -> None:
    best = seen(values, **stop)
    assert (best.round, best.value, best.patience_is_over) == expected


def test_rounds_that_are_not_evaluated_do_not_count() -> None:
    best = Best(Stop(patience=1))
    best.see({"round": 1, "val_accuracy": 0.5})
    for number in range(2, 9):
        best.see({"round": number})
    assert not best.patience_is_over


def federation(seed: int = 0) -> Federation:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(120, 5)).astype("float32"), random.integers(0, 3, 120)
    return Federation.from_arrays(x, y, test=(x[:40], y[:40]), partition=Iid(clients=4, validation=0.25, seed=seed))


def run(out: Path, **settings: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """On labels that are noise, so that validation accuracy goes up and down."""
    torch.manual_seed(1)
    settings = {"rounds": 30, "clients_per_round": 2, "evaluation": {"every": 1, "test_last": 2}, **settings}
    done = federate(nn.Linear(5, 3), federation(), local=Local(steps=4, batch_size=8, lr=1.0), out=out, **settings)
    return json.loads((out / "summary.json").read_text()), done.metrics


def test_a_run_ends_when_patience_is_over(tmp_path: Path) -> None:
    whole, lines = run(tmp_path / "whole")
    assert whole["rounds_done"] == 30
    accuracy = [line["val_accuracy"] for line in lines]
    expected = next(t for t in range(1, 31) if t - (1 + int(np.argmax(accuracy[:t]))) >= 3)
    summary, shorter = run(tmp_path / "stopped", stop={"patience": 3})
    assert (summary["status"], summary["rounds_done"], summary["stopped_early"]) == ("finished", expected, True)
    assert 3 < expected < 30
    assert [line["val_accuracy"] for line in shorter] == accuracy[:expected]
    assert summary["best_round"] == summary["kept_round"] - 3 == expected - 3
    assert summary["final_accuracy"] is not None, "the model that is kept is tested"
    assert final_accuracy(summary) == f"test accuracy of the model that is kept, of round {expected}"
    assert final_accuracy(whole) == "mean test accuracy over the last 2 rounds"


def test_the_best_model_is_kept(tmp_path: Path) -> None:
    """It is the model of a run that ends at that round."""
    summary, lines = run(tmp_path / "best", keep="best")
    top = max(lines, key=lambda line: (line["val_accuracy"], -line["round"]))
    assert 1 < summary["best_round"] == top["round"] < 30
    assert summary["best_value"] == top["val_accuracy"]
    run(tmp_path / "short", rounds=top["round"])
    kept, short = (load_file(tmp_path / name / "model.safetensors") for name in ("best", "short"))
    assert all(torch.equal(kept[name], short[name]) for name in short)
    model = nn.Linear(5, 3)
    model.load_state_dict(kept)
    test = federation().test
    assert test is not None
    right = model(torch.from_numpy(np.asarray(test.x))).argmax(1) == torch.from_numpy(np.asarray(test.y))
    assert summary["final_accuracy"] == pytest.approx(right.double().mean().item())


def test_the_best_model_is_kept_with_its_statistics(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    settings = {"clients_per_round": 2, "evaluation": {"every": 1}, "checkpoint": {"every": 1}}
    federate(model, federation(), rounds=12, keep="best", out=tmp_path / "best", **settings)
    best = json.loads((tmp_path / "best" / "summary.json").read_text())["best_round"]
    federate(model, federation(), rounds=best, out=tmp_path / "short", **settings)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("best", "short")]
    assert files[0] == files[1]


def test_an_interrupted_run_still_knows_its_best_model(tmp_path: Path) -> None:
    summary, _ = run(tmp_path / "whole", keep="best")

    def interrupt(line: dict[str, Any]) -> None:
        if line["round"] == summary["best_round"] + 1:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(tmp_path / "stopped", keep="best", watch=interrupt)
    again, _ = run(tmp_path / "stopped", keep="best", resume=True)
    assert again["best_round"] == summary["best_round"]
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert files[0] == files[1]
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "stopped")]
    assert metrics[0] == metrics[1]


VALUES = [0.5, NAN, INF, 0.6, NAN, 0.4, NAN, INF, 0.9, 0.1]  # of which the fourth is the best when patience ends


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("evaluations", [1, 2, 3, 5, 6, 7])
def test_a_run_interrupted_while_its_metric_is_no_number_stops_at_the_same_round(
    every: int, evaluations: int, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "evaluation": {"every": every},
        "stop": {"patience": 4, "metric": "val_mine"},
        "keep": "best",
    }

    def mine(after: int = 0) -> dict[str, Any]:
        values = iter(VALUES[after:])
        return {"mine": lambda logits, labels: next(values)}

    def interrupt(line: dict[str, Any]) -> None:
        if line["round"] == evaluations * every:
            raise KeyboardInterrupt

    summary, _ = run(tmp_path / "whole", metrics=mine(), **settings)
    assert (summary["rounds_done"], summary["kept_round"]) == (8 * every, 4 * every)
    with pytest.raises(Interrupted):
        run(tmp_path / "stopped", metrics=mine(), watch=interrupt, **settings)
    again, _ = run(tmp_path / "stopped", metrics=mine(after=evaluations), resume=True, **settings)
    for key in ("rounds_done", "best_round", "best_value", "kept_round", "final_accuracy"):
        assert again[key] == summary[key], key
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_last_model_is_kept_if_the_metric_never_is_a_number(tmp_path: Path) -> None:
    never = {"metrics": {"mine": lambda logits, labels: float("nan")}, "stop": {"metric": "val_mine"}}
    summary, _ = run(tmp_path / "best", rounds=3, keep="best", **never)
    assert (summary["best_round"], summary["best_value"], summary["kept_round"]) == (0, None, 3)
    run(tmp_path / "last", rounds=3)
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("best", "last")]
    assert files[0] == files[1]


def test_a_run_starts_from_given_weights(tmp_path: Path) -> None:
    torch.manual_seed(7)
    given = nn.Linear(5, 3)
    save_file(given.state_dict(), tmp_path / "given.safetensors")
    started = federate(nn.Linear(5, 3), federation(), rounds=2, init=str(tmp_path / "given.safetensors"),
                       out=tmp_path / "file")  # fmt: skip
    same = federate(given, federation(), rounds=2, out=tmp_path / "object")
    assert started.metrics == same.metrics


def test_a_resumed_run_does_not_need_the_weights_it_started_from(tmp_path: Path) -> None:
    weights = tmp_path / "given.safetensors"
    save_file(nn.Linear(5, 3).state_dict(), weights)
    run(tmp_path / "run", rounds=2, init=str(weights))
    weights.unlink()
    with pytest.raises(InputError, match="there is no file"):
        run(tmp_path / "new", rounds=2, init=str(weights))
    summary, lines = run(tmp_path / "run", rounds=3, init=str(weights), resume=True)
    assert summary["rounds_done"] == len(lines) == 3


def test_a_run_does_not_go_on_with_another_partition(tmp_path: Path) -> None:
    settings = {"rounds": 2, "clients_per_round": 2, "out": tmp_path / "run"}
    federate(nn.Linear(5, 3), federation(), **settings)
    with pytest.raises(InputError, match="do not have the samples that they had"):
        federate(nn.Linear(5, 3), federation(seed=1), **{**settings, "rounds": 3}, resume=True)
    assert len(federate(nn.Linear(5, 3), federation(), **{**settings, "rounds": 3}, resume=True).metrics) == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stop": {"patience": 2, "metric": "val_acuracy"}}, "did you mean 'val_accuracy'"),
        ({"keep": "best", "stop": {"metric": "test_accuracy"}}, "stop.metric is 'test_accuracy'"),
        ({"stop": {"patience": 0}}, "stop.patience is 0"),
        ({"keep": "first"}, "keep is 'first'"),
        ({"init": "nowhere.safetensors"}, "there is no file 'nowhere.safetensors'"),
        ({"resume": True, "out": None}, "resume is given, but not out"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        run(**{"out": tmp_path / "run", **settings})
    assert not (tmp_path / "run").exists()
