"""Flower's mods for privacy around our training, and our mod around anybody's evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_grid import LocalGrid, events, grid_of, lines, made_app, run_app
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.common.secure_aggregation.quantization import dequantize, quantize
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.supercore.task_identity import TaskIdentity

from fedrecall.errors import InputError
from fedrecall.flower.client import client_app
from fedrecall.flower.init import PACKAGE
from fedrecall.flower.mods import ForgettingMod
from fedrecall.runs import files

SAME_KEYS = ["fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "feddyn", "moon"]
OTHER_KEYS = ["scaffold", "fednova", "fedcurv", "fedexp", "gma"]


def played(folder: Path, recipe_file: str, mod: Any, *words: str, **changed: Any) -> LocalGrid:
    config = made_app(folder / "app", recipe_file, *words, "rounds=1", "clients_per_round=4", **changed)
    grid = grid_of(folder / "app", config, state=folder / "state")
    grid.apps = dict.fromkeys(grid.apps, client_app(folder / "app" / PACKAGE, mods=[mod]))
    run_app(folder / "app", config, grid)
    return grid


def norms(grid: LocalGrid) -> list[float]:
    """Of the updates as they left the nodes."""
    sent = {m.metadata.dst_node_id: m for m in grid.asked if m.metadata.message_type == "train"}
    found = []
    for reply in grid.log:
        if reply.metadata.message_type == "train":
            before = sent[reply.metadata.src_node_id].content["arrays"]["w"].numpy().astype(np.float64)
            found.append(float(np.linalg.norm(reply.content["arrays"]["w"].numpy() - before)))
    return found


@pytest.mark.parametrize("algorithm", SAME_KEYS)
def test_flowers_clipping_bounds_every_update(tmp_path: Path, recipe_file: str, algorithm: str) -> None:
    plain = played(tmp_path / "a", recipe_file, ForgettingMod(), f"algorithm={algorithm}")
    clipped = played(
        tmp_path / "b", recipe_file, fixedclipping_mod, f"algorithm={algorithm}", **{"clipping-norm": 0.01}
    )
    assert min(norms(plain)) > 0.02
    np.testing.assert_allclose(norms(clipped), 0.01, rtol=1e-3)
    (line,) = lines(tmp_path / "b" / "app" / "run", files.METRICS)
    assert sorted(line["clients"]) == [0, 1, 2, 3]


def test_flowers_adaptive_clipping_goes_through(tmp_path: Path, recipe_file: str) -> None:
    grid = played(tmp_path, recipe_file, adaptiveclipping_mod, **{"clipping-norm": 0.01})
    np.testing.assert_allclose(norms(grid), 0.01, rtol=1e-3)
    assert events(tmp_path / "app" / "run") == []


def test_flowers_local_differential_privacy_adds_its_noise(tmp_path: Path, recipe_file: str) -> None:
    mod = LocalDpMod(clipping_norm=0.01, sensitivity=1.0, epsilon=1000.0, delta=1e-5)
    grid = played(tmp_path, recipe_file, mod)
    count = len(grid.asked[-1].content["published"]["w"].numpy())
    deviation = np.sqrt(2 * np.log(1.25 / 1e-5)) / 1000
    np.testing.assert_allclose(norms(grid), deviation * np.sqrt(count), rtol=0.1)


def test_batch_norms_statistics_go_through_a_clipping_mod(tmp_path: Path, recipe_file: str) -> None:
    net = ["model=resnet18", "model.norm=batch", "model.width=8", "local.steps=1"]
    played(tmp_path, recipe_file, fixedclipping_mod, *net, **{"clipping-norm": 1e6})
    assert events(tmp_path / "app" / "run") == []


@pytest.mark.parametrize("algorithm", OTHER_KEYS)
def test_an_algorithm_that_sends_other_tensors_than_it_gets_is_refused_by_the_mods(
    tmp_path: Path, recipe_file: str, algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InputError, match="0 of 4 clients answered"):
        played(tmp_path, recipe_file, fixedclipping_mod, f"algorithm={algorithm}", **{"clipping-norm": 1.0})
    assert "expects the keys in the ArrayRecord of the reply message to match" in caplog.text
    left_out = [event["message"] for event in events(tmp_path / "app" / "run")]
    assert len(left_out) == 4


# Secure aggregation: why there is none


def test_flowers_secure_aggregation_is_for_its_legacy_workflow_alone() -> None:
    context = Context(1, 1, {}, RecordDict(), {})
    with pytest.raises(TypeError, match="Expect a LegacyContext"):
        SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)(None, context)  # type: ignore[arg-type]


def test_the_mod_of_secure_aggregation_takes_no_message_of_another_protocol(tmp_path: Path, recipe_file: str) -> None:
    with pytest.raises(InputError, match="0 of 4 clients answered"):
        played(tmp_path, recipe_file, secaggplus_mod)


def test_secure_aggregation_rounds_what_it_adds() -> None:
    """To a grid of 2**22 steps between -8 and 8: a model that went through it has other bits."""
    model = [np.random.default_rng(0).normal(size=1000).astype(np.float32)]
    (back,) = dequantize(quantize(model, 8.0, 2**22), 8.0, 2**22)
    assert not np.array_equal(back.astype(np.float32), model[0])
    np.testing.assert_allclose(back, model[0], atol=16 / 2**22)


# Forgetting, in anybody's app


def evaluating(
    accuracies: list[float], mod: ForgettingMod, key: str = "accuracy"
) -> tuple[list[MetricRecord], Context]:
    """The answers of an app whose evaluations have these accuracies."""
    app, left = ClientApp(mods=[mod]), list(accuracies)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({key: left.pop(0), "n": 5})}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({key: 0.0})}), reply_to=message)

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    context, answers = Context(1, 7, {}, RecordDict(), {}), []
    for _ in accuracies:
        assert "forgetting" not in app(Message(RecordDict(), 7, "train"), context).content["metrics"]
        answers.append(app(Message(RecordDict(), 7, "evaluate"), context).content["metrics"])
    return answers


def test_the_mod_tells_what_is_forgotten_since_the_last_evaluation_and_since_the_best() -> None:
    answers = evaluating([0.5, 0.75, 0.25, 0.5], ForgettingMod())
    assert [answer["forgetting"] for answer in answers] == [0.0, -0.25, 0.5, -0.25]
    assert [answer["forgetting_from_best"] for answer in answers] == [0.0, -0.25, 0.5, 0.25]
    assert all(answer["n"] == 5 for answer in answers)


def test_an_accuracy_of_another_name_is_named(caplog: pytest.LogCaptureFixture) -> None:
    answers = evaluating([0.5], ForgettingMod("acc"), key="eval_acc")
    assert dict(answers[0]) == {"eval_acc": 0.5, "n": 5}
    assert "the answer has no number 'acc'; it has: eval_acc, n" in caplog.text
