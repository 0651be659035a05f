"""Nodes that are gone or late, too few of them, and going on with a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_grid import LocalGrid, app_config, events, grid_of, lines, made_app, model, run_app, serial
from flwr.app import Message

from fedrecall.api.execute import load_federation
from fedrecall.data.export import arrays_of
from fedrecall.errors import InputError
from fedrecall.recipe.layers import load_recipe
from fedrecall.runs import checkpoint, files

METHOD = ["algorithm=scaffold", "clients_per_round=4"]


class Stopped(Exception):  # noqa: N818
    """Of a server that dies in the middle of a round."""


def asked(grid: LocalGrid, kind: str, node: int) -> list[Message]:
    return [m for m in grid.asked if (m.metadata.message_type, m.metadata.dst_node_id) == (kind, node)]


def losing(grid: LocalGrid, node: int, round: int, kind: str = "train") -> None:
    """The node's reply of a round never arrives."""

    def change(message: Message, reply: Message) -> Message | None:
        task = message.content["task"] if message.has_content() else {}
        lost = message.metadata.message_type == kind and task.get("round") == round
        return None if lost and message.metadata.dst_node_id == node else reply

    grid.change = change


def test_a_late_node_is_left_out_counted_and_named(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, *METHOD, "execution.client_timeout=45")
    grid = grid_of(tmp_path / "app", config, state=tmp_path / "state")
    losing(grid, 102, 2)
    summary = run_app(tmp_path / "app", config, grid)
    run = tmp_path / "app" / "run"
    (event,) = events(run)
    assert event == {
        "event": "missing",
        "round": 2,
        "message": "client 1 is left out of round 2: no answer came within 45 seconds",
    }
    assert summary["missing_clients"] == 1
    assert [1 in line["clients"] for line in lines(run, files.METRICS)] == [True, False, True]
    assert set(grid.timeouts) == {45.0}
    assert {message.metadata.ttl for message in grid.asked} == {45.0}  # later than that nobody is asked any more


def test_a_reply_that_the_server_never_saw_does_not_advance_the_clients_state(tmp_path: Path, recipe_file: str) -> None:
    """The run is that of a node which did not take part in that round at all."""
    models = []
    for name in ("late", "away"):
        config = made_app(tmp_path / name, recipe_file, *METHOD)
        grid = grid_of(tmp_path / name, config, state=tmp_path / f"{name}-state")
        if name == "late":
            losing(grid, 102, 2)
        else:
            plain = grid.send_and_receive

            def without(messages: Any, grid: LocalGrid = grid, plain: Any = plain, **options: Any) -> Any:
                kept = [m for m in messages if not is_of(m, 102, 2)]
                return plain(kept, **options)

            grid.send_and_receive = without  # type: ignore[method-assign]
        run_app(tmp_path / name, config, grid)
        versions = [m.content["task"]["state"] for m in asked(grid, "train", 102)]
        assert versions == ([0, 1, 1] if name == "late" else [0, 1])
        models.append(model(tmp_path / name / "run"))
    assert models[0] == models[1]


def is_of(message: Message, node: int, round: int) -> bool:
    kind, to = message.metadata.message_type, message.metadata.dst_node_id
    return (kind, to) == ("train", node) and message.content["task"]["round"] == round


def test_a_node_keeps_the_state_it_started_from_and_the_new_one(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, *METHOD, "rounds=4")
    grid = grid_of(tmp_path / "app", config, state=tmp_path / "state")
    run_app(tmp_path / "app", config, grid)
    kept = sorted(path.name for path in (tmp_path / "state" / "0").rglob("*.safetensors"))
    assert kept == ["client-000000-round-000003.safetensors", "client-000000-round-000004.safetensors"]
    assert not list((tmp_path / "app" / "run").rglob("client-0*.safetensors"))  # nothing of it is at the server


def test_a_node_that_is_gone_is_left_out_until_it_is_back(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, *METHOD)
    grid = grid_of(tmp_path / "app", config, state=tmp_path / "state")

    def change(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            round = message.content["task"]["round"]
            grid.connected = {101, 102, 103} if round == 1 else {101, 102, 103, 204}
            if round == 2:  # with another number, as a SuperNode without a key has when it starts again
                grid.apps[204], grid.configs[204] = grid.apps[104], grid.configs[104]
        return reply

    grid.change = change
    run_app(tmp_path / "app", config, grid)
    messages = [event["message"] for event in events(tmp_path / "app" / "run")]
    assert "client 3 is left out of round 2: its node is not connected" in messages
    assert [3 in line["clients"] for line in lines(tmp_path / "app" / "run", files.METRICS)] == [True, False, True]
    (back,) = asked(grid, "train", 204)
    assert back.content["task"]["state"] == 1


def test_too_few_answers_stop_the_run_which_goes_on_to_the_same_bits(tmp_path: Path, recipe_file: str) -> None:
    words = [*METHOD, "execution.min_clients=4"]
    config = made_app(tmp_path / "app", recipe_file, *words)
    grid = grid_of(tmp_path / "app", config, state=tmp_path / "state")
    losing(grid, 103, 2)
    with pytest.raises(InputError) as stopped:
        run_app(tmp_path / "app", config, grid)
    assert str(stopped.value) == (
        "3 of 4 clients answered in round 2, and execution.min_clients is 4; when they are back, go on with: "
        "flwr run with the same app and federation, and --run-config resume=true"
    )
    again = grid_of(tmp_path / "app", config, state=tmp_path / "state")
    summary = run_app(tmp_path / "app", app_config(tmp_path / "app", resume=True), again)
    assert summary["status"] == "finished"
    assert model(tmp_path / "app" / "run") == model(serial(tmp_path / "serial", recipe_file, *METHOD))


@pytest.mark.parametrize("died", ["before round 3 was trained", "after it was"])
def test_a_server_that_died_goes_on_with_the_nodes_states_at_the_right_version(
    tmp_path: Path, recipe_file: str, died: str
) -> None:
    config = made_app(tmp_path / "app", recipe_file, *METHOD, "rounds=4")
    grid = grid_of(tmp_path / "app", config, state=tmp_path / "state")
    trained = 0

    def change(message: Message, reply: Message) -> Message:
        nonlocal trained
        if message.metadata.message_type == "train" and message.content["task"]["round"] == 3:
            trained += 1
            if trained == (1 if died.startswith("before") else 4):
                raise Stopped
        return reply

    grid.change = change
    with pytest.raises(Stopped):
        run_app(tmp_path / "app", config, grid)
    again = grid_of(tmp_path / "app", config, state=tmp_path / "state")
    run_app(tmp_path / "app", app_config(tmp_path / "app", resume=True), again)
    assert [m.content["task"]["round"] for m in asked(again, "train", 101)] == [3, 4]
    assert [m.content["task"]["state"] for m in asked(again, "train", 101)] == [2, 3]
    assert model(tmp_path / "app" / "run") == model(serial(tmp_path / "serial", recipe_file, *METHOD, "rounds=4"))


def test_a_damaged_last_checkpoint_leads_back_to_the_one_before_and_the_nodes_have_its_states(
    tmp_path: Path, recipe_file: str
) -> None:
    config = made_app(tmp_path / "app", recipe_file, *METHOD, "rounds=3")
    run_app(tmp_path / "app", config, grid_of(tmp_path / "app", config, state=tmp_path / "state"))
    last = checkpoint.note_of(tmp_path / "app" / "run" / files.CHECKPOINTS, 3)
    last.with_suffix(".safetensors").write_bytes(b"damaged")
    longer = app_config(tmp_path / "app", resume=True, settings="rounds=4")
    run_app(tmp_path / "app", longer, grid_of(tmp_path / "app", longer, state=tmp_path / "state"))
    assert model(tmp_path / "app" / "run") == model(serial(tmp_path / "serial", recipe_file, *METHOD, "rounds=4"))


def test_a_node_that_lost_its_state_is_left_out(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, *METHOD, "rounds=1")
    run_app(tmp_path / "app", config, grid_of(tmp_path / "app", config, state=tmp_path / "state"))
    for path in (tmp_path / "state" / "2").rglob("*.safetensors"):
        path.unlink()
    longer = app_config(tmp_path / "app", resume=True, settings="rounds=2")
    run_app(tmp_path / "app", longer, grid_of(tmp_path / "app", longer, state=tmp_path / "state"))
    messages = [event["message"] for event in events(tmp_path / "app" / "run")]
    assert "client 2 is left out of round 2: its node could not do the work; the node's log says why" in messages


def test_a_run_goes_on_while_a_node_is_away(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, *METHOD, "rounds=1", wait=0)
    run_app(tmp_path / "app", config, grid_of(tmp_path / "app", config, state=tmp_path / "state"))
    longer = app_config(tmp_path / "app", resume=True, settings="rounds=2", wait=0)
    grid = grid_of(tmp_path / "app", longer, state=tmp_path / "state")
    grid.connected.remove(104)
    run_app(tmp_path / "app", longer, grid)
    assert sorted(lines(tmp_path / "app" / "run", files.METRICS)[1]["clients"]) == [0, 1, 2]


def test_a_run_does_not_begin_before_all_clients_are_there(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, wait=0)
    grid = grid_of(tmp_path / "app", config, state=tmp_path)
    grid.connected.remove(104)
    with pytest.raises(InputError, match=r"of 4 clients, these have not come within 0 seconds: 3$"):
        run_app(tmp_path / "app", config, grid)
    assert not (tmp_path / "app" / "run").exists()


def test_a_client_with_other_data_than_before_takes_no_part_in_what_is_resumed(
    tmp_path: Path, recipe_file: str
) -> None:
    config = made_app(tmp_path / "app", recipe_file, *METHOD, "rounds=1", wait=0)
    run_app(tmp_path / "app", config, grid_of(tmp_path / "app", config, state=tmp_path / "state"))
    longer = app_config(tmp_path / "app", resume=True, settings="rounds=2", wait=0)
    grid = grid_of(tmp_path / "app", longer, state=tmp_path / "state")
    grid.configs[101]["partition-id"], grid.configs[102]["partition-id"] = 1, 0
    grid.app_config = {**longer, "settings": "rounds=2"}

    federation = load_federation(load_recipe(recipe_file))
    for k, path in enumerate((tmp_path / "0.npz", tmp_path / "1.npz")):
        np.savez(path, **arrays_of(federation, k))
    grid.configs[101]["data"], grid.configs[102]["data"] = str(tmp_path / "0.npz"), str(tmp_path / "1.npz")
    run_app(tmp_path / "app", longer, grid)
    messages = [event["message"] for event in events(tmp_path / "app" / "run")]
    assert any("node 101 takes no part: client 1 has" in message for message in messages)


def test_a_folder_that_has_a_run_is_not_begun_again(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, "rounds=1")
    run_app(tmp_path / "app", config, grid_of(tmp_path / "app", config, state=tmp_path))
    with pytest.raises(InputError, match="has a run: go on with it by --run-config resume=true"):
        run_app(tmp_path / "app", config, grid_of(tmp_path / "app", config, state=tmp_path))


def test_a_run_of_a_federation_is_not_simulated_to_its_end(tmp_path: Path, recipe_file: str, fedrecall: Any) -> None:
    config = made_app(tmp_path / "app", recipe_file, "rounds=1")
    run_app(tmp_path / "app", config, grid_of(tmp_path / "app", config, state=tmp_path))
    done = fedrecall("resume", tmp_path / "app" / "run", "rounds=2")
    assert done.code == 2
    assert "is that of a federation; its app goes on with it, by flwr run and --run-config resume=true" in done.err


def test_what_is_no_run_of_a_federation_is_not_resumed(tmp_path: Path, recipe_file: str) -> None:
    config = made_app(tmp_path / "app", recipe_file, resume=True)
    with pytest.raises(InputError, match="is not the folder of a run on a federation"):
        run_app(tmp_path / "app", config, grid_of(tmp_path / "app", config, state=tmp_path))
