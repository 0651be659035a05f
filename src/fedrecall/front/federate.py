"""`federate`: a run of Python objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedrecall.algorithms import ALGORITHM, Algorithm, FedAvg
from fedrecall.components import required
from fedrecall.data.federation import Federation
from fedrecall.errors import InputError, short_repr
from fedrecall.front.callbacks import Callback, watchers_of
from fedrecall.front.execute import Plan, execute, new_folder
from fedrecall.front.run import Run
from fedrecall.measure.user_metrics import UserMetric
from fedrecall.models.build import dry_batch
from fedrecall.objectives import OBJECTIVE, WSM, Objective
from fedrecall.recipe.files import Tree
from fedrecall.recipe.layers import from_layers
from fedrecall.recipe.names import titles
from fedrecall.recipe.recipe import FROM_PYTHON, Recipe
from fedrecall.recipe.settings import Local
from fedrecall.rng import default_generator
from fedrecall.runs.folder import RunFolder
from fedrecall.runs.reader import finished_summary, is_run
from fedrecall.simulation.experiment import build
from fedrecall.simulation.progress import is_wanted
from fedrecall.torch_state import fixed_torch_state
from fedrecall.vector import materialise

Named = str | Mapping[str, Any]  # as in a recipe: a name, or a group of keys with one


def federate(
    model: nn.Module | Callable[[], nn.Module] | Named,
    federation: Federation,
    *,
    algorithm: Algorithm | type[Algorithm] | Named | None = None,
    objective: Objective | type[Objective] | Callable[..., Any] | Named | None = None,
    local: Local | Mapping[str, Any] | None = None,
    engine: str = "auto",
    workers: int | str = "auto",
    device: str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    other_device: bool = False,
    watch: Callback | None = None,
    callbacks: Sequence[Callback] = (),
    metrics: Mapping[str, UserMetric] | None = None,
    progress: bool | None = None,
    report: bool = False,
    **settings: Any,
) -> Run:
    """Train `model` across the clients of `federation`, starting from its weights, and return the run.

    `algorithm`, `objective` and `model` may be given by name, with options or without, as in a recipe: "scaffold",
    {"name": "scaffold", "server_lr": 0.5}, "module:name". An objective may also be a loss of `torch.nn`, or any
    function of logits [n, C] and labels [n] that returns the loss of the batch. The other keys of a recipe are
    keywords too (`rounds`, `participation`, `seed`, `preset`, `evaluation={"every": 10}`, ..), with its defaults.

    `metrics` are functions of logits [n, C] and labels [n], by name: their values on the pooled validation data
    are in the metrics of the evaluated rounds, as `val_NAME`. `callbacks` are watchers, or functions that are
    shown each round's line of metrics; `watch` is one of them (docs/runs.md). `progress` shows a bar, which is
    there by itself in a terminal and in a notebook; `report` writes report.html, the page about the run.

    Without `out`, each call makes a new folder below `runs`. With `resume`, a run that is in `out` already goes on
    from its last checkpoint, with the same bits as if it had never stopped, and one that is finished is returned
    as it is; on another device it goes on only with `other_device`. The given model is not changed (but for lazy
    modules, which get their shapes): `run.model()` is the trained one.

    >>> import numpy as np, tempfile, torch
    >>> from fedrecall import Federation, Iid, federate
    >>> x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40) % 2
    >>> federation = Federation.from_arrays(x, y, test=(x, y), partition=Iid(clients=4, validation=0.2))
    >>> run = federate(torch.nn.Linear(3, 2), federation, rounds=2, out=tempfile.mkdtemp())
    >>> [line["round"] for line in run.metrics]
    [1, 2]
    """
    check_given(model, federation)
    chosen_algorithm = FedAvg() if algorithm is None else ALGORITHM.from_python(algorithm)
    chosen_objective = WSM() if objective is None else OBJECTIVE.from_python(objective)
    watchers = watchers_of([*([watch] if watch else []), *callbacks])
    for key in ("data", "partition", "model"):
        if key in settings:
            raise InputError(f"{key} is given, but it comes with the model and the federation here")
    tree: Tree = {
        **settings,
        "data": FROM_PYTHON,
        "partition": FROM_PYTHON,
        "model": model if is_named(model) else FROM_PYTHON,
        "algorithm": algorithm if is_named(algorithm) else ALGORITHM.describe(chosen_algorithm),
        "objective": objective if is_named(objective) else OBJECTIVE.describe(chosen_objective),
        "execution": {"engine": engine, "workers": workers, "device": device, **settings.get("execution", {})},
    }
    if local is not None:
        tree["local"] = local.model_dump(exclude_unset=True) if isinstance(local, Local) else local
    recipe = from_layers([tree])
    make_model = model_maker(model, federation, recipe)
    if resume and out is None:
        raise InputError("resume is given, but not out: the folder of the run to go on with")
    path = Path(out) if resume and out is not None and is_run(Path(out)) else None
    experiment = build(
        recipe,
        federation,
        model=make_model,
        algorithm=chosen_algorithm,
        objective=chosen_objective,
        metrics=metrics,
        given_weights=isinstance(model, nn.Module),
        run=path,
    )
    if path is not None:
        done = finished_summary(path)
        if done is not None and done.get("recipe_sha256") == experiment.digest:
            return finished(Run(path, make_model), report=report)
        folder = RunFolder.reopen(path)
    else:
        folder = new_folder(out, "run")
    plan = Plan(experiment, folder, titles().method(recipe.tree()), path is not None, other_device=other_device)
    execute([plan], report=None, quiet=not is_wanted(progress), callbacks=watchers)
    return finished(Run(folder.path, make_model), report=report)


def finished(run: Run, *, report: bool) -> Run:
    """The run, with its page if that is asked for."""
    if report:
        run.report()
    return run


def is_named(given: Any) -> bool:
    """Is it given as a recipe would have it?"""
    return isinstance(given, str | Mapping)


def check_given(model: Any, federation: Any) -> None:
    """An `InputError` if they are not what they should be."""
    if not callable(model) and not is_named(model):
        raise InputError(
            f"the model is {short_repr(model)}; a torch.nn.Module, a function that returns one, or a name was "
            "expected"
        )
    if callable(model) and not isinstance(model, nn.Module) and (needed := required(model)):
        raise InputError(
            f"the model is {short_repr(model)}, which needs {', '.join(needed)}; an instance, or a function "
            "without parameters that returns one, was expected"
        )
    if not isinstance(federation, Federation):
        raise InputError(f"the federation is {short_repr(federation)}; a Federation was expected")


def model_maker(model: Any, federation: Federation, recipe: Recipe) -> Callable[[], nn.Module]:
    """A function that returns the model as it is before the first round."""
    if is_named(model):
        shapes = {"sample_shape": federation.sample_shape, "num_classes": federation.num_classes}
        return partial(recipe.create, "model", **shapes)
    return copies_of(model, federation, recipe.seed) if isinstance(model, nn.Module) else model


def copies_of(model: nn.Module, federation: Federation, seed: int) -> Callable[[], nn.Module]:
    """A function that returns a copy of the model with the weights it has."""
    with fixed_torch_state(), default_generator(seed, "init"):
        materialise(model, partial(dry_batch, federation))
    try:
        copy.deepcopy(model)
    except RuntimeError as error:
        raise InputError(f"the model cannot be copied: {' '.join(str(error).split())}") from None
    return partial(copy.deepcopy, model)
