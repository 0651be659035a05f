"""The server's side of a federation: the usual round loop, with real clients as the engine."""

from __future__ import annotations

import secrets
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from fedrecall.api.execute import RunPlan, execute
from fedrecall.data.sources.own_files import name_errors
from fedrecall.errors import ClientError, DivergedError, InputError
from fedrecall.flower.app import App
from fedrecall.flower.engine import Flower
from fedrecall.flower.nodes import NodeFacts, Nodes
from fedrecall.flower.remote_federation import RemoteFederation
from fedrecall.measure.watcher import Round, Watcher
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs import files
from fedrecall.runs.folder import RunFolder
from fedrecall.runs.reader import read_tree
from fedrecall.simulation.experiment import Parts, build
from fedrecall.storage.safe_parsing import json_value

OWN_DATA = (
    "the clients are the nodes of a federation: what the recipe says of data and partition, and that it repeats "
    "the run, holds only if the nodes' data were made from it"
)
OF_RECIPE = "recipe"  # stands for the test set of the data that the recipe names


def server_app(folder: Path) -> ServerApp:
    """Return the server's app for the recipe in a folder."""

    def main(grid: Grid, context: Context) -> None:
        try:
            summary = run_federation(grid, App.of(folder, context.run_config))
        except (InputError, DivergedError, ClientError) as error:
            log(ERROR, "fedrecall: error: %s", error)
            raise type(error)(str(error)) from None  # Flower prints a traceback, which then has no lines of ours
        log(INFO, "final accuracy: %s; warnings: %s", summary.get("final_accuracy"), summary["warnings"])

    app = ServerApp()
    app.main()(main)
    return app


def run_federation(grid: Grid, app: App) -> dict[str, Any]:
    """Run or resume the recipe on the connected nodes, write a report and return the run's summary."""
    recipe, out = app.recipe, Path(app.get("out", str, "runs/flower")).expanduser()
    resume = app.get("resume", bool, False)
    refuse_what_needs_data(recipe)
    if not resume and (out / files.RECIPE).exists():
        raise InputError(
            f"the folder {str(out)!r} has a run: go on with it by --run-config resume=true, or name another by out"
        )
    told = read_tree(out / files.NODES, json_value) if resume else {}
    if told is None:
        raise InputError(f"resume is true, but {str(out)!r} is not the folder of a run on a federation")
    run = str(told.get("run") or secrets.token_hex(8))
    nodes = wait_for_clients(grid, app, told)
    facts = [nodes.facts[client] for client in range(nodes.clients)]
    test = test_set(app)
    if test is not None and recipe.create("algorithm").personal:
        raise InputError(
            f"algorithm is {recipe.algorithm['name']!r}, which gives each client a model of its own: the server "
            "has none to test; say test='' in the app's configuration"
        )
    federation = RemoteFederation(app.kind, facts, test, recipe.partition)
    if nodes.classes:
        federation.class_counts(0)  # raises an `InputError` if they are not known
    notes = [OWN_DATA, *notes_on_forgetting(recipe, nodes)]
    engine = Flower(nodes, run, app.get("clipping-norm", float, 0.0), notes)
    experiment = build(recipe, federation, Parts(engine=engine), run=out if resume else None)
    folder = RunFolder.reopen(out) if resume else RunFolder.create(out)
    folder.write_json(files.NODES, {"run": run, "clients": nodes.told()})
    plan = RunPlan(experiment, folder, out.name, resume=resume)
    watchers = [RoundLog(folder, nodes, recipe.rounds)]
    (summary,) = execute([plan], report=out / files.REPORT, quiet=True, callbacks=watchers)
    log(INFO, "the report: %s", out / files.REPORT)
    return summary


def refuse_what_needs_data(recipe: Recipe) -> None:
    """Raise an `InputError` for settings that need the data of all clients in one place, as in a simulation."""
    algorithm, name = recipe.create("algorithm"), recipe.algorithm["name"]
    if not algorithm.exchanges:
        raise InputError(f"algorithm is {name!r}, a bound for simulations; on a federation there is no such thing")
    if recipe.partition.get("held_out"):
        raise InputError("partition.held_out is not 0, but every node of a federation is a client that may train")
    if recipe.evaluation.metrics:
        raise InputError(
            "evaluation.metrics is given, which would take the logits and labels of the clients' data; "
            "on a federation these stay with the nodes"
        )


def notes_on_forgetting(recipe: Recipe, nodes: Nodes) -> list[str]:
    """Return a note on the clients at which the forgetting that the recipe asks for is not allowed, if any."""
    asked = any(map(recipe.forgetting.due, range(1, recipe.rounds + 1)))
    unwilling = [client for client, facts in sorted(nodes.facts.items()) if not facts.forgetting]
    if not asked or not unwilling:
        return []
    return [
        f"forgetting is measured without {len(unwilling)} of {nodes.clients} clients, at which it is not allowed: "
        f"{', '.join(map(str, unwilling[:20]))}"
    ]


def wait_for_clients(grid: Grid, app: App, told: dict[str, Any]) -> Nodes:
    """Wait for the clients and return their nodes; in a resumed run, some may connect later."""
    recipe, objective = app.recipe, app.recipe.create("objective")
    discloses = "class_counts" in recipe.create("algorithm").discloses
    asks_counts = discloses or bool(objective.asks_population) or recipe.evaluation.prior != "as_trained"
    nodes = Nodes(
        grid,
        recipe.method_digest(),
        app.get("clients", int, recipe.partition.get("clients", 0)),
        app.kind.num_classes if asks_counts else 0,
        recipe.execution.client_timeout or app.get("client-timeout", float, 0.0) or None,
    )
    if nodes.clients < 1:
        raise InputError("clients is not given in the app's configuration; how many there are was expected")
    for client, facts in told.get("clients", {}).items():
        counts = facts["counts"]
        nodes.facts[int(client)] = NodeFacts(**{**facts, "counts": None if counts is None else tuple(counts)})
    nodes.wait(app.get("wait", float, 300.0))
    return nodes


def test_set(app: App) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the server's test set, from the recipe's data or a file with x_test and y_test; None if not set."""
    where = app.get("test", str, "")
    if not where:
        return None
    if where == OF_RECIPE:
        data = app.recipe.create("data", folder=app.recipe.execution.data)
        x, y = np.asarray(data.x_test), np.asarray(data.y_test)
    else:
        path = Path(where).expanduser()
        with name_errors(path), np.load(path, allow_pickle=False) as file:
            x, y = file["x_test"], file["y_test"]
    with name_errors(f"the test set ({where})"):
        app.kind.check(x, y)
    return x, y


class RoundLog(Watcher):
    """Logs a line per round, and records an event for each refusal."""

    def __init__(self, folder: RunFolder, nodes: Nodes, rounds: int) -> None:
        self.folder, self.nodes, self.rounds = folder, nodes, rounds

    def before(self, round: Round) -> None:
        self._note(round.number)

    def after(self, round: Round) -> None:
        self._note(round.number)
        measured = {key: round.line[key] for key in ("val_accuracy", "test_accuracy") if key in round.line}
        words = [f"{key} {value:.4f}" for key, value in measured.items()]
        words += [f"without clients {round.missing}"] if round.missing else []
        log(INFO, "round %d of %d: %s", round.number, self.rounds, "; ".join(words) or "done")

    def _note(self, t: int) -> None:
        while self.nodes.notes:
            note = self.nodes.notes.pop(0)
            log(WARNING, "%s", note)
            self.folder.event("refused", t, note)
