"""`federate`: a run from Python objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fedrecall.algorithms import Algorithm
from fedrecall.api.callbacks import Callback, watchers_of
from fedrecall.api.execute import RunPlan, execute, new_folder
from fedrecall.api.python_recipe import Named, recipe_and_parts, split_trackers
from fedrecall.api.run import Run
from fedrecall.data.federation import Federation
from fedrecall.errors import InputError
from fedrecall.measure.user_metrics import UserMetric
from fedrecall.measure.watcher import Watcher
from fedrecall.objectives import Objective
from fedrecall.optimisers import Optimiser
from fedrecall.participation import Participation
from fedrecall.recipe.display_titles import titles
from fedrecall.recipe.settings import Local
from fedrecall.runs.folder import RunFolder
from fedrecall.runs.reader import finished_summary, is_run
from fedrecall.simulation.experiment import build
from fedrecall.simulation.progress import wants_progress
from fedrecall.trackers import Tracker
from fedrecall.updates import Stage


def federate(
    model: nn.Module | Callable[[], nn.Module] | Named,
    federation: Federation,
    *,
    algorithm: Algorithm | type[Algorithm] | Named | None = None,
    objective: Objective | type[Objective] | Callable[..., Any] | Named | None = None,
    optimiser: Optimiser | type[Optimiser] | Named | None = None,
    participation: float | Participation | type[Participation] | Callable[..., Any] | Named | None = None,
    updates: Sequence[Stage | type[Stage] | Named] = (),
    server_data: Any = None,
    local: Local | Mapping[str, Any] | None = None,
    engine: str = "auto",
    workers: int | str = "auto",
    device: str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    other_device: bool = False,
    watch: Callback | None = None,
    callbacks: Sequence[Callback] = (),
    trackers: Sequence[Tracker | Watcher | Named] = (),
    metrics: Mapping[str, UserMetric] | None = None,
    progress: bool | None = None,
    report: bool = False,
    **settings: Any,
) -> Run:
    """Train `model` across the clients of `federation`, starting from its weights, and return the run.

    `algorithm`, `objective` and `model` may be given by name, with options or without, as in a recipe: "scaffold",
    {"name": "scaffold", "server_lr": 0.5}, "module:name". The default objective is WSM, the re-weighted softmax,
    which does not suit all clients (docs/when-wsm-hurts.md); "cross_entropy" is the plain loss. An objective may
    also be a loss of `torch.nn`, or any function of logits [n, C] and labels [n] that returns the loss of the batch.
    `optimiser`, `participation` and the stages in `updates` are given likewise, `participation` also as a fraction or
    as a function of the round, the population and a random generator; `server_data` is an array of samples, or a
    name. The other keys of a recipe are keywords too (`rounds`, `seed`, `preset`, `evaluation={"every": 10}`, ..),
    with its defaults.

    `metrics` are functions of logits [n, C] and labels [n], by name: their values on the pooled validation data
    are in the metrics of the evaluated rounds, as `val_NAME`. `callbacks` are watchers, or functions that receive
    each round's line of metrics; `watch` is one of them (docs/runs.md). `trackers` are names or objects
    (docs/trackers.md). `progress` shows a bar, by default only in
    a terminal and in a notebook; `report` writes report.html, the page about the run.

    Without `out`, each call makes a new folder below `runs`. With `resume`, a run in `out` continues from its last
    checkpoint, with the same bits as if it had never stopped; a finished run is returned as it is. Continuing on
    another device needs `other_device`. The given model is not changed (except that lazy modules get their
    shapes); `run.model()` returns the trained one.

    >>> import numpy as np, tempfile, torch
    >>> from fedrecall import Federation, Iid, federate
    >>> x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40) % 2
    >>> federation = Federation.from_arrays(x, y, test=(x, y), partition=Iid(clients=4, validation=0.2))
    >>> run = federate(torch.nn.Linear(3, 2), federation, rounds=2, out=tempfile.mkdtemp())
    >>> [line["round"] for line in run.metrics]
    [1, 2]
    """
    named, unnamed = split_trackers(trackers)
    recipe, parts = recipe_and_parts(
        model,
        federation,
        {**settings, **({"trackers": named} if named else {})},
        algorithm=algorithm,
        objective=objective,
        optimiser=optimiser,
        participation=participation,
        updates=updates,
        server_data=server_data,
        local=local,
        execution={"engine": engine, "workers": workers, "device": device},
    )
    watchers = watchers_of([*unnamed, *([watch] if watch else []), *callbacks])
    if resume and out is None:
        raise InputError("resume is given, but not out: the folder of the run to go on with")
    if not resume and out is not None and is_run(Path(out)):
        raise InputError(
            f"the folder {str(out)!r} has a run: resume=True goes on with it, and returns it if it is finished; "
            "or give another folder with out="
        )
    path = Path(out) if resume and out is not None and is_run(Path(out)) else None
    parts = replace(parts, metrics=metrics)
    experiment = build(recipe, federation, parts, given_weights=isinstance(model, nn.Module), run=path)
    if path is not None:
        done = finished_summary(path)
        if done is not None and done.get("recipe_sha256") == experiment.digest:
            return finished(Run(path, parts.model), report=report)
        folder = RunFolder.reopen(path)
    else:
        folder = new_folder(out, "run")
    plan = RunPlan(experiment, folder, titles().method(recipe.tree()), path is not None, other_device=other_device)
    execute([plan], report=None, quiet=not wants_progress(progress), callbacks=watchers)
    return finished(Run(folder.path, parts.model), report=report)


def finished(run: Run, *, report: bool) -> Run:
    """Return the run, after writing its report if requested."""
    if report:
        run.report()
    return run
