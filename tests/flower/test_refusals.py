"""A message that is not what the round expects is refused, named and counted, and the run goes on."""

from __future__ import annotations

import io
import os
import pickle
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_grid import events, grid_of, lines, made_app, run_app
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedrecall.api.execute import load_federation
from fedrecall.data.export import export_clients
from fedrecall.recipe.layers import load_recipe
from fedrecall.runs import files

BOMB = Path(tempfile.gettempdir()) / f"fedrecall-test-bomb-{os.getpid()}"
Spoil = Callable[[RecordDict], None]


def arrays(content: RecordDict, **changed: Array) -> None:
    content["arrays"] = ArrayRecord({**content["arrays"], **changed})


def packed(values: np.ndarray) -> Array:
    return Array(values)


def with_data(content: RecordDict, data: bytes) -> None:
    w = content["arrays"]["w"]
    arrays(content, w=Array(w.dtype, tuple(w.shape), w.stype, data))


def as_pickle(content: RecordDict) -> None:
    w = content["arrays"]["w"].numpy()
    file = io.BytesIO()
    np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    with_data(content, file.getvalue().ljust(w.nbytes + 100, b"."))


class Bomb:
    """Its pickle is code, which writes a file where it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (BOMB,)


def as_archive(content: RecordDict) -> None:
    """NumPy's reader takes archives of arrays too."""
    w, file = content["arrays"]["w"].numpy(), io.BytesIO()
    np.savez(file, w=w)
    with_data(content, file.getvalue())


def not_finite(content: RecordDict) -> None:
    w = content["arrays"]["w"].numpy()
    w[3] = np.nan
    arrays(content, w=packed(w))


def metric(key: str, value: Any) -> Spoil:
    def spoil(content: RecordDict) -> None:
        content["metrics"] = MetricRecord({**content["metrics"], key: value})

    return spoil


SPOILED: dict[str, tuple[Spoil, str]] = {
    "another name": (
        lambda c: c.update(arrays=ArrayRecord({"v": c["arrays"]["w"]})),
        "it has the tensors 'v'; 'w' were expected",
    ),
    "one more tensor": (lambda c: arrays(c, labels=packed(np.arange(9))), "it has the tensors 'labels', 'w'; 'w'"),
    "another shape": (lambda c: arrays(c, w=packed(np.zeros(7, np.float32))), r"shape \(7,\); numpy.ndarray"),
    "another type": (
        lambda c: arrays(c, w=packed(c["arrays"]["w"].numpy().astype(np.float64))),
        "of float64 and shape",
    ),
    "another array than said": (
        lambda c: with_data(c, packed(np.zeros_like(c["arrays"]["w"].numpy(), np.int32)).data),
        "its tensor 'w' is another array than was said",
    ),
    "too few bytes": (lambda c: with_data(c, c["arrays"]["w"].data[:500]), "its tensor 'w' has 500 bytes"),
    "too many bytes": (lambda c: with_data(c, c["arrays"]["w"].data + bytes(5000)), "bytes; .* and a header"),
    "no array": (lambda c: with_data(c, b"x" * len(c["arrays"]["w"].data)), "its tensor 'w' is not an array"),
    "a pickle": (as_pickle, "its tensor 'w' is not an array of numbers"),
    "an archive": (as_archive, "its tensor 'w' is another array than was said"),
    "another encoding": (
        lambda c: arrays(c, w=Array("float32", tuple(c["arrays"]["w"].shape), "torch", c["arrays"]["w"].data)),
        "is a torch of float32",
    ),
    "other samples": (metric("samples", 10**6), "it trained on 1000000 samples in"),
    "other steps": (metric("steps", 1), "samples in 1 steps"),
    "a state of the future": (metric("state", 7), "its state is that of round 7"),
    "a loss that is not finite": (metric("loss", float("nan")), "its loss is not finite"),
    "a loss that is a list": (metric("loss", [1.0]), r"its 'loss' is \[1.0\]; a number was expected"),
    "no metrics": (lambda c: c.pop("metrics"), r"it has the records \['arrays'\]"),
    "another record": (
        lambda c: c.update(more=ConfigRecord({"labels": [1, 2]})),
        r"it has the records \['arrays', 'metrics', 'more'\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_update_is_left_out_and_named(tmp_path: Path, recipe_file: str, name: str) -> None:
    spoil, reason = SPOILED[name]
    config = made_app(tmp_path / "app", recipe_file, "rounds=2", "clients_per_round=4")
    grid = grid_of(tmp_path / "app", config, state=tmp_path)

    def change(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 103:
            spoil(reply.content)
        return reply

    grid.change = change
    summary = run_app(tmp_path / "app", config, grid)
    run = tmp_path / "app" / "run"
    assert summary["status"] == "finished"
    assert summary["missing_clients"] == 2
    assert any("clients were left out 2 times" in warning for warning in summary["warnings"])
    missing = [event for event in events(run) if event["event"] == "missing"]
    assert [event["round"] for event in missing] == [1, 2]
    for event in missing:
        assert event["message"].startswith("client 2 is left out of round")
    assert re.search(reason, missing[0]["message"])
    assert [sorted(line["clients"]) for line in lines(run, files.METRICS)] == [[0, 1, 3]] * 2
    assert not BOMB.exists()


def test_a_pickle_of_the_test_would_do_harm() -> None:
    """Else the case above could not fail."""
    pickle.loads(pickle.dumps(Bomb()))
    BOMB.unlink()


def test_an_update_that_is_not_finite_is_dropped_as_on_every_engine(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, "rounds=1", "clients_per_round=4")
    grid = grid_of(tmp_path / "app", config, state=tmp_path)

    def change(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 101:
            not_finite(reply.content)
        return reply

    grid.change = change
    summary = run_app(tmp_path / "app", config, grid)
    assert (summary["dropped_updates"], summary["missing_clients"]) == (1, 0)


def test_an_update_that_is_not_finite_does_not_spoil_the_probe_of_the_others(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, "rounds=1", "clients_per_round=4", "forgetting.every=1")
    grid = grid_of(tmp_path / "app", config, state=tmp_path)

    def change(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 101:
            not_finite(reply.content)
        return reply

    grid.change = change
    run_app(tmp_path / "app", config, grid)
    probe = np.load(files.probe_file(tmp_path / "app" / "run", 1))
    assert sorted(probe["models"].tolist()) == [1, 2, 3]
    assert not np.isnan(probe["after"]).any()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"correct": [10**6]}, "1000000 of"),
        ({"correct": [1, 2]}, "its 'correct' is not a list of 1 numbers"),
        ({"correct": [0.5]}, "its 'correct' is not a list of 1 whole numbers"),
        ({"samples": 1}, "it has 1 validation samples"),
        ({"nll": [float("inf")]}, "its 'nll' is not a list of 1 numbers"),
    ],
)
def test_a_spoiled_evaluation_is_left_out_and_named(
    tmp_path: Path, recipe_file: str, values: dict[str, Any], reason: str
) -> None:
    config = made_app(tmp_path / "app", recipe_file, "rounds=1")
    grid = grid_of(tmp_path / "app", config, state=tmp_path)

    def change(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "evaluate" and message.metadata.dst_node_id == 102:
            reply.content["metrics"] = MetricRecord({**reply.content["metrics"], **values})
        return reply

    grid.change = change
    run_app(tmp_path / "app", config, grid)
    run = tmp_path / "app" / "run"
    (event,) = events(run)
    assert event["event"] == "refused"
    assert event["message"].startswith("client 1 is left out of an evaluation in round 1: ")
    assert reason in event["message"]
    (line,) = lines(run, files.CLIENTS)
    assert line["val_accuracy"][1] is None
    told = [m.content["metrics"] for m in grid.log if m.metadata.message_type == "evaluate"]
    right = sum(m["correct"][0] for i, m in enumerate(told) if i != 1)
    (metrics,) = lines(run, files.METRICS)
    assert metrics["val_accuracy"] == right / sum(m["samples"] for i, m in enumerate(told) if i != 1)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"partition-id": 0}, "it says that it is client 0, who is there already"),
        ({"partition-id": 9}, "its 'client' is 9"),
        ({"partition-id": "two"}, "its node could not do the work"),
    ],
)
def test_a_node_that_is_nobody_takes_no_part(
    tmp_path: Path, recipe_file: str, config: dict[str, Any], reason: str
) -> None:
    app = made_app(tmp_path / "app", recipe_file, "rounds=1")
    grid = grid_of(tmp_path / "app", app, state=tmp_path, **{"data": ""})
    grid.apps[999], grid.configs[999] = grid.apps[101], config
    # Its own file of data, so that it is asked for more than its number.
    grid.connected.add(999)
    exported(tmp_path, recipe_file)
    if config["partition-id"] == 9:
        grid.configs[999]["data"] = str(tmp_path / "nodes" / "client-0.npz")
    run_app(tmp_path / "app", app, grid)
    (event,) = events(tmp_path / "app" / "run")
    assert event["message"].startswith("node 999 takes no part: ")
    assert reason in event["message"]


def exported(folder: Path, recipe_file: str) -> None:
    (folder / "nodes").mkdir()
    export_clients(load_federation(load_recipe(recipe_file)), folder / "nodes")


def changed_task(**values: Any) -> Spoil:
    return lambda content: content.update(task=ConfigRecord({**content["task"], **values}))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (changed_task(recipe="0" * 64), "the recipe of the message is not the node's"),
        (changed_task(client=3), "the message is for client 3, the node is 0"),
        (changed_task(fedrecall="0.0.1"), "the message is of fedrecall 0.0.1"),
        (changed_task(round=0), "its 'round' is 0"),
        (changed_task(state=2), "its node could not do the work"),  # which it does not have
        (changed_task(run="../../etc"), "its 'run' is not a run's name"),
        (changed_task(pooled=[1.0]), "its 'pooled' is not a list of 4 numbers"),
        (not_finite, "its tensor 'w' has values that are not finite"),
        (as_pickle, "its tensor 'w' is not an array of numbers"),
        (lambda content: content.pop("arrays"), "it has no ArrayRecord 'arrays'"),
        (lambda content: content.pop("task"), "it has no ConfigRecord 'task'"),
    ],
)
def test_a_node_refuses_a_spoiled_request(tmp_path: Path, recipe_file: str, spoil: Spoil, reason: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, "rounds=1")
    grid = grid_of(tmp_path / "app", config, state=tmp_path / "state")
    run_app(tmp_path / "app", config, grid)
    request = next(m for m in grid.asked if m.metadata.message_type == "train")
    request.metadata.dst_node_id = 101
    request.content["task"] = ConfigRecord({**request.content["task"], "client": 0})
    assert not grid._answer(request).has_error()
    spoil(request.content)
    answer = grid._answer(request)
    assert answer.has_error()
    assert reason in answer.error.reason
    assert not (tmp_path / "etc").exists()


def test_an_error_that_flower_reports_is_named(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, "rounds=1", "clients_per_round=4")
    grid = grid_of(tmp_path / "app", config, state=tmp_path)

    def change(message: Message, reply: Message) -> Message:
        lost = message.metadata.message_type == "train" and message.metadata.dst_node_id == 101
        return Message(Error(3, "the node is gone"), reply_to=message) if lost else reply

    grid.change = change
    run_app(tmp_path / "app", config, grid)
    (event,) = events(tmp_path / "app" / "run")
    assert event["message"] == "client 0 is left out of round 1: Flower reports: the node is gone"
