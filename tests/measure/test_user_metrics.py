"""Metrics of the user's own, from Python and from a recipe, on both engines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import Federation, Iid, InputError, LocalOnly, Run, federate

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(80, 6)).astype(np.float32), RANDOM.integers(0, 3, 80)


def run(out: Path, validation: float = 0.25, **settings) -> Run:
    torch.manual_seed(0)
    federation = Federation.from_arrays(X, Y, partition=Iid(clients=4, validation=validation))
    return federate(nn.Linear(6, 3), federation, rounds=2, evaluation={"every": 1}, out=out, **settings)


def top_two(logits: np.ndarray, labels: np.ndarray) -> float:
    return (np.argsort(logits, axis=1)[:, -2:] == labels[:, None]).any(1).mean()


def fails(logits: np.ndarray, labels: np.ndarray) -> float:
    raise ZeroDivisionError("mine")


def test_it_is_given_the_logits_and_labels_of_the_pooled_validation_data(tmp_path: Path) -> None:
    made = run(tmp_path / "run", metrics={"top_two": top_two, "rows": lambda logits, labels: len(logits)})
    federation = Federation.from_arrays(X, Y, partition=Iid(clients=4, validation=0.25))
    rows = np.concatenate([federation.validation_indices(k) for k in range(4)])
    with torch.no_grad():
        logits = made.model()(torch.from_numpy(X[rows])).numpy()
    ranks = (logits > logits[np.arange(20), Y[rows]][:, None]).sum(1)
    assert made.metrics[-1]["val_top_two"] == pytest.approx((ranks < 2).mean())
    assert made.metrics[-1]["val_rows"] == 20


@pytest.mark.usefixtures("warm_workers")
def test_it_works_in_worker_processes(tmp_path: Path) -> None:
    metrics = {"top_two": lambda logits, labels: top_two(logits, labels)}
    runs = [run(tmp_path / engine, metrics=metrics, engine=engine) for engine in ("serial", "processes")]
    assert "val_top_two" in runs[0].metrics[0]
    assert runs[0].metrics == runs[1].metrics


def test_it_does_not_change_anything_else(tmp_path: Path) -> None:
    without, made = run(tmp_path / "without"), run(tmp_path / "with", metrics={"top_two": top_two})
    assert [{k: v for k, v in line.items() if k != "val_top_two"} for line in made.metrics] == without.metrics


def test_with_models_of_their_own_it_is_the_mean_over_clients(tmp_path: Path) -> None:
    made = run(tmp_path / "run", algorithm=LocalOnly(), metrics={"right": lambda f, y: (f.argmax(1) == y).mean()})
    assert made.metrics[-1]["val_right"] == pytest.approx(made.metrics[-1]["val_accuracy"])


def test_a_recipe_names_it_as_module_and_function(fedrecall, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_metrics.py").write_text("def spread(logits, labels):\n    return float(logits.std())\n")
    monkeypatch.delitem(sys.modules, "my_metrics", raising=False)
    words = ["rounds=1", "evaluation.metrics=my_metrics:spread", "local.steps=1", "--engine", "serial"]
    finished = fedrecall("run", "demo", *words, "--out", tmp_path / "run", "--json")
    assert finished.code == 0, finished.err
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text())["val_spread"] > 0


def test_an_exception_in_it_says_which_metric_and_round(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        run(tmp_path / "run", metrics={"fails": fails})
    assert caught.value.__notes__[0] == "(in the metric 'fails', on the validation data of round 1)"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"metrics": {"nll": top_two}}, "named 'nll', but val_nll is written already"),
        ({"metrics": {"mine": 3}}, "the metric 'mine' is 3; a function was expected"),
        ({"metrics": {"mine": lambda f, y: None}}, "'mine' returned None in round 1; a number was expected"),
        ({"metrics": {"mine": top_two}, "validation": 0.0}, "evaluation.metrics is measured on validation data"),
    ],
)
def test_what_is_wrong_is_one_sentence(settings: dict, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        run(tmp_path / "run", **settings)


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ("accuracy", "evaluation.metrics has 'accuracy'; 'module:function' was expected"),
        ("yaml:dump_al", "'yaml' has no such function; did you mean 'dump_all'"),
        ("no_such_module:f", "there is no module 'no_such_module' here"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_sentence(named: str, sentence: str, fedrecall, tmp_path: Path) -> None:
    finished = fedrecall("run", "demo", f"evaluation.metrics={named}", "--out", tmp_path / "run")
    assert finished.code == 2
    assert sentence in " ".join(finished.err.split())
