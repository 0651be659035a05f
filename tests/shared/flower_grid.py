"""A federation without processes: Flower's real messages, through its own bytes, to real ClientApps."""

from __future__ import annotations

import json
import runpy
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedrecall.api.execute import RunPlan, execute, load_federation
from fedrecall.flower.app import App
from fedrecall.flower.init import PACKAGE, write_app
from fedrecall.flower.server import run_federation
from fedrecall.recipe.layers import load_recipe
from fedrecall.runs import files
from fedrecall.runs.folder import RunFolder
from fedrecall.simulation.experiment import build

RAISED = 2  # Flower's code for an app that raised an exception

Change = Callable[[Message, Message], Message | None]  # of a request and its reply: what arrives in its place


class LocalGrid(Grid):
    """Every node is a ClientApp and its configuration. `change` may lose or alter replies on their way."""

    def __init__(self, apps: dict[int, ClientApp], configs: dict[int, dict[str, Any]], app_config: dict[str, Any]):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as Flower does for a ServerApp
        self.apps, self.configs, self.app_config = apps, configs, app_config
        self.log: list[Message] = []  # all that left a node
        self.asked: list[Message] = []
        self.change: Change = lambda message, reply: reply
        self.connected = set(apps)
        self.timeouts: list[float | None] = []

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError  # deprecated

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.connected)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        self.timeouts.append(timeout)
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            arrived = message_from_proto(message_to_proto(message))
            self.asked.append(arrived)
            reply = message_from_proto(message_to_proto(self._answer(arrived)))
            self.log.append(reply)
            changed = self.change(arrived, reply)
            replies += [] if changed is None else [changed]
        return replies[::-1]  # in any order

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(1, node, self.configs[node], RecordDict(), self.app_config)
        try:
            return self.apps[node](message, context)
        except Exception as error:
            return Message(Error(RAISED, repr(error)), reply_to=message)


def app_config(folder: Path, **changed: Any) -> dict[str, Any]:
    """The settings of an app, as Flower reads them."""
    config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    return {**config, **changed}


def made_app(folder: Path, recipe: str, *words: str, **changed: Any) -> dict[str, Any]:
    write_app(folder, load_recipe(recipe, words))
    return app_config(folder, **changed)


def app_of(folder: Path, name: str) -> Any:
    """The app of a generated module."""
    return runpy.run_path(str(folder / PACKAGE / f"{name}.py"))["app"]


def grid_of(folder: Path, config: dict[str, Any], *, state: Path, **own: Any) -> LocalGrid:
    """The nodes of an app, one a client; `own` goes into each one's configuration."""
    clients = config["clients"]
    apps = {101 + k: app_of(folder, "client_app") for k in range(clients)}
    configs = {101 + k: {"partition-id": k, "state-dir": str(state / str(k)), **own} for k in range(clients)}
    return LocalGrid(apps, configs, config)


def run_app(folder: Path, config: dict[str, Any], grid: LocalGrid) -> dict[str, Any]:
    """The run's summary."""
    return run_federation(grid, App.of(folder / PACKAGE, config))


def lines(run: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def events(run: Path) -> list[dict[str, Any]]:
    """But for warnings: there is one in every run on a federation, about whose the data are."""
    return [event for event in lines(run, files.EVENTS) if event["event"] != "warning"]


def serial(folder: Path, recipe: str, *words: str) -> Path:
    loaded = load_recipe(recipe, [*words, "execution.engine=serial"])
    plan = RunPlan(build(loaded, load_federation(loaded)), RunFolder.create(folder), "serial")
    execute([plan], report=None, quiet=True)
    return folder


def model(run: Path) -> bytes:
    return (run / files.MODEL).read_bytes()
