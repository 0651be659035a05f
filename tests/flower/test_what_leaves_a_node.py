"""Every message that leaves a node, and what it tells of the node's data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flower_grid import LocalGrid, grid_of, lines, made_app, run_app
from flwr.app import Message
from flwr.clientapp.mod import LocalDpMod
from flwr.common.serde import message_to_proto

from fedrecall.api.execute import load_federation
from fedrecall.data.federation import Federation
from fedrecall.errors import InputError
from fedrecall.flower.client import client_app
from fedrecall.flower.init import PACKAGE
from fedrecall.recipe.layers import load_recipe
from fedrecall.simulation.experiment import job_of

METHOD = ["algorithm=scaffold", "objective=wsm", "forgetting.every=3"]
SAID = {  # by the kind of the message: its records, and the keys of each
    "query": {"task": {"client", "forgetting", "train", "validation", "fedrecall"}},
    "train": {"arrays": {"w", "dc"}, "metrics": {"samples", "steps", "state", "loss"}, "model": {"w"}},
    "evaluate": {"metrics": {"samples", "correct", "nll"}},
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, recipe_file: str) -> tuple[LocalGrid, Federation]:
    """WSM with SCAFFOLD, probed; and the data as the nodes have them."""
    folder = tmp_path_factory.mktemp("played")
    config = made_app(folder / "app", recipe_file, *METHOD)
    grid = grid_of(folder / "app", config, state=folder / "state", forgetting=True)
    run_app(folder / "app", config, grid)
    return grid, load_federation(load_recipe(recipe_file, METHOD))


def numbers(message: Message) -> Iterator[tuple[str, list[Any]]]:
    """All lists of plain values in a message."""
    for record in (*message.content.metric_records.values(), *message.content.config_records.values()):
        for key, value in record.items():
            yield key, value if isinstance(value, list) else [value]


def test_every_record_and_key_of_every_message_is_one_that_is_known(played: tuple[LocalGrid, Federation]) -> None:
    grid, _ = played
    assert {message.metadata.message_type for message in grid.log} == set(SAID)
    for message in grid.log:
        known = SAID[message.metadata.message_type]
        assert not message.has_error()
        for name, record in message.content.items():
            assert set(record) == known[name]


def test_no_message_has_a_number_for_each_class_or_each_sample(played: tuple[LocalGrid, Federation]) -> None:
    grid, _ = played
    for message in grid.log:
        for key, values in numbers(message):
            # One number a model that was sent: the published one, or those of the probed round's three clients.
            assert len(values) in (1, 3), (key, values)


def test_no_message_has_the_bytes_of_samples_or_labels(played: tuple[LocalGrid, Federation]) -> None:
    grid, federation = played
    for message in grid.log:
        content = message_to_proto(message).SerializeToString()
        client = message.metadata.src_node_id - 101
        samples = np.concatenate([federation.train_indices(client), federation.validation_indices(client)])
        for sample in federation.train.x[samples]:
            assert sample.tobytes() not in content
        counts = federation.labels(client).counts.numpy()
        labels = federation.train.y[federation.train_indices(client)]
        for secret in (labels.tobytes(), counts.tobytes(), federation.beta(client).numpy().tobytes()):
            assert secret not in content


def test_class_counts_leave_a_node_if_the_recipe_asks_and_the_node_allows_it(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, "objective.prior=pooled", "rounds=1")
    grid = grid_of(tmp_path / "app", config, state=tmp_path, **{"share-class-counts": True})
    run_app(tmp_path / "app", config, grid)
    federation = load_federation(load_recipe(recipe_file))
    for message in grid.log:
        if message.metadata.message_type == "query":
            client = message.metadata.src_node_id - 101
            assert message.content["metrics"]["classes"] == federation.labels(client).counts.tolist()


def test_a_node_that_keeps_its_class_counts_stops_a_recipe_that_asks_for_them(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, "objective.prior=pooled", "rounds=1")
    grid = grid_of(tmp_path / "app", config, state=tmp_path, **{"share-class-counts": True})
    grid.configs[103]["share-class-counts"] = False
    with pytest.raises(InputError, match=r"share-class-counts is not true at clients 2$"):
        run_app(tmp_path / "app", config, grid)
    said = [message for message in grid.log if message.metadata.src_node_id == 103]
    assert all("metrics" not in message.content for message in said)


def test_an_error_about_a_nodes_data_is_told_to_its_log_alone(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, "rounds=1", wait=0)
    grid = grid_of(tmp_path / "app", config, state=tmp_path)
    federation = load_federation(load_recipe(recipe_file))
    own = federation.train_indices(1)
    np.savez(
        tmp_path / "own.npz",
        x_train=federation.train.x[own],
        y_train=federation.train.y[own] + 77,  # not one of the classes
        x_validation=federation.train.x[:0],
        y_validation=federation.train.y[:0],
    )
    grid.configs[102]["data"] = str(tmp_path / "own.npz")
    with pytest.raises(InputError, match="node 102 takes no part: its node could not do the work; the node's log"):
        run_app(tmp_path / "app", config, grid)
    (reply,) = (message for message in grid.log if message.metadata.src_node_id == 102)
    assert "77" not in reply.error.reason


# What is not hidden


def rows_moved_by_decay_alone(before: torch.Tensor, after: torch.Tensor, factor: float) -> list[bool]:
    """Of a classifier [classes, features]: which rows are the old ones times a factor, up to rounding."""
    return [torch.allclose(new, factor * old, rtol=1e-5, atol=1e-7) for old, new in zip(before, after)]


def update_of(folder: Path, recipe_file: str, client: int, **options: Any) -> tuple[Any, Any, Federation, Any]:
    """The model that a client was sent in round 1 and the one that it sent back, as modules."""
    words = ["objective=wsm", "partition.name=shards", "partition.shards_per_client=2", "partition.clients=4"]
    words += ["local.weight_decay=0.1", "local.momentum=0", "local.steps=5", "rounds=1", "clients_per_round=4"]
    config = made_app(folder / "app", recipe_file, *words)
    grid = grid_of(folder / "app", config, state=folder)
    if options:
        grid.apps = dict.fromkeys(grid.apps, client_app(folder / "app" / PACKAGE, **options))
    run_app(folder / "app", config, grid)
    recipe = load_recipe(recipe_file, words)
    federation = load_federation(recipe)
    models = []
    of_client = 101 + client
    sent = next(m for m in grid.asked if (m.metadata.dst_node_id, m.metadata.message_type) == (of_client, "train"))
    back = next(m for m in grid.log if (m.metadata.src_node_id, m.metadata.message_type) == (of_client, "train"))
    for message in (sent, back):
        flat = job_of(recipe, federation).build_model(federation)
        flat.load(torch.from_numpy(message.content["arrays"]["w"].numpy()), flat.buffers())
        models.append(list(flat.module.modules())[-1].weight.detach())
    return models[0], models[1], federation, grid


@pytest.mark.parametrize("client", [0, 1, 2, 3])
def test_under_wsm_an_update_reveals_the_label_set(tmp_path: Path, recipe_file: str, client: int) -> None:
    before, after, federation, _ = update_of(tmp_path, recipe_file, client)
    absent = (federation.labels(client).counts == 0).tolist()
    assert any(absent)
    # Five steps of rate 0.1 with weight decay 0.1 and nothing else: w (1 - 0.01)^5.
    assert rows_moved_by_decay_alone(before, after, (1 - 0.1 * 0.1) ** 5) == absent


def test_noise_of_local_differential_privacy_hides_the_label_set(tmp_path: Path, recipe_file: str) -> None:
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-5)
    before, after, federation, _ = update_of(tmp_path, recipe_file, 0, mods=[mod])
    absent = federation.labels(0).counts == 0
    assert bool(absent.any())
    assert not any(rows_moved_by_decay_alone(before, after, (1 - 0.1 * 0.1) ** 5))
    # The noise, of standard deviation sqrt(2 ln(1.25 / delta)) / epsilon = 0.48, is far larger than any step.
    moved = (after - before).norm(dim=1)
    assert float(moved[absent].min()) > 0.2 * float(moved[~absent].max())


def test_a_sum_over_clients_reveals_no_more_than_the_union_of_their_label_sets(
    tmp_path: Path, recipe_file: str
) -> None:
    """Which is what secure aggregation would leave to be seen."""
    before, _, federation, grid = update_of(tmp_path, recipe_file, 0)
    updates = [m for m in grid.log if m.metadata.message_type == "train"]
    recipe = load_recipe(recipe_file, ["partition.name=shards", "partition.shards_per_client=2", "partition.clients=4"])
    flat = job_of(recipe, federation).build_model(federation)
    mean = torch.stack([torch.from_numpy(m.content["arrays"]["w"].numpy()) for m in updates]).mean(0)
    flat.load(mean, flat.buffers())
    after = list(flat.module.modules())[-1].weight.detach()
    union = sum(federation.labels(k).counts for k in range(4)) > 0
    assert rows_moved_by_decay_alone(before, after, (1 - 0.1 * 0.1) ** 5) == (~union).tolist()
    assert [bool((federation.labels(k).counts > 0).all()) for k in range(4)] == [False] * 4


def test_a_node_that_takes_no_part_in_forgetting_shows_its_model_to_nobody(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, *METHOD, "clients_per_round=4", "rounds=3")
    grid = grid_of(tmp_path / "app", config, state=tmp_path / "state", forgetting=True)
    grid.configs[102]["forgetting"] = False
    run_app(tmp_path / "app", config, grid)
    probed = [m for m in grid.asked if m.metadata.message_type == "evaluate" and m.content["task"]["others"]]
    assert {m.metadata.dst_node_id for m in probed} == {101, 103, 104}
    assert {tuple(sorted(m.content.array_records)) for m in probed} == {("model-0", "model-2", "model-3")}
    arrays = np.load(tmp_path / "app" / "run" / "forgetting" / "round-00003.npz")
    assert arrays["models"].tolist() == [
        k for k in lines(tmp_path / "app" / "run", "metrics.jsonl")[2]["clients"] if k != 1
    ]
    assert np.isnan(arrays["after"]).any(axis=0).tolist() == [False, True, False, False]
    noted = [event["message"] for event in lines(tmp_path / "app" / "run", "events.jsonl")]
    assert "forgetting is measured without 1 of 4 clients, at which it is not allowed: 1" in noted


def test_a_node_refuses_the_models_of_others_if_it_takes_no_part_in_forgetting(
    tmp_path: Path, recipe_file: str
) -> None:
    """Whatever the server believes that it said."""
    config = made_app(tmp_path / "app", recipe_file, *METHOD, "clients_per_round=4")
    grid = grid_of(tmp_path / "app", config, state=tmp_path / "state", forgetting=True)
    plain = grid.send_and_receive

    def later(messages: Any, **options: Any) -> Any:
        replies = plain(messages, **options)
        grid.configs[102]["forgetting"] = False  # once it has introduced itself
        return replies

    grid.send_and_receive = later  # type: ignore[method-assign]
    run_app(tmp_path / "app", config, grid)
    events = lines(tmp_path / "app" / "run", "events.jsonl")
    assert any("client 1 is left out of round 3: its model is asked for" in event["message"] for event in events)
    assert any("models of others are not evaluated here" in event["message"] for event in events)
