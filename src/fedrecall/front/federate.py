"""Starting runs, from Python objects or from a recipe, and reading a finished one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedrecall.algorithms import ALGORITHMS, Algorithm, FedAvg
from fedrecall.client.work import Job
from fedrecall.data.federation import Federation
from fedrecall.data.sources import DataSet
from fedrecall.errors import InputError
from fedrecall.measure.user_metrics import Metric
from fedrecall.models.build import dry_batch
from fedrecall.models.weights import read_weights
from fedrecall.objectives import OBJECTIVES, WSM, Objective
from fedrecall.recipe.files import Tree
from fedrecall.recipe.recipe import FROM_PYTHON, Recipe
from fedrecall.recipe.settings import Local
from fedrecall.rng import default_generator
from fedrecall.runs.folder import RunFolder, finished_summary, read_lines
from fedrecall.safe_parsing import arrays
from fedrecall.simulation.loop import Watch, carry_out
from fedrecall.simulation.resume import go_on, has_checkpoint
from fedrecall.simulation.round import Experiment
from fedrecall.vector import materialise


class Run:
    """A run's folder, read."""

    def __init__(self, path: str | Path, make_model: Callable[[], nn.Module] | None = None) -> None:
        self.path = Path(path)
        self._make_model = make_model

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One dictionary a round, as in `metrics.jsonl`."""
        return read_lines(self.path / "metrics.jsonl")

    @property
    def forgetting(self) -> dict[int, dict[str, np.ndarray]]:
        """For each probed round: `before` [k], `after` [i, k], `models` [i], and more (docs/metrics.md)."""
        found = {}
        for path in sorted((self.path / "forgetting").glob("round-*.npz")):
            try:
                found[int(path.stem.removeprefix("round-"))] = arrays(path)
            except ValueError as error:
                raise InputError(f"the file {str(path)!r} is damaged: {error}") from None
        return found

    def model(self) -> nn.Module:
        """The trained global model."""
        if self._make_model is None:
            raise InputError(
                f"{str(self.path)!r} does not say how its model is built; load model.safetensors into yours"
            )
        model = self._make_model()
        model.load_state_dict(read_weights(self.path / "model.safetensors"))
        return model.eval()

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page about this run and return where it is."""
        from fedrecall.report.page import write_report  # not for who only trains

        return write_report([self.path], Path(path) if path else self.path / "report.html")


def federate(
    model: nn.Module | Callable[[], nn.Module],
    federation: Federation,
    *,
    algorithm: Algorithm | None = None,
    objective: Objective | None = None,
    local: Local | Mapping[str, Any] | None = None,
    engine: str = "auto",
    workers: int | str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    metrics: Mapping[str, Metric] | None = None,
    **settings: Any,
) -> Run:
    """Train `model` across the clients of `federation`, starting from its weights, and return the run.

    The other keys of a recipe are keywords too (`rounds`, `participation`, `seed`, `evaluation={"every": 10}`, ..)
    and have the recipe's defaults. `metrics` are functions of logits [n, C] and labels [n], by name: their values
    on the pooled validation data are in the metrics of the evaluated rounds, as `val_NAME`. Without `out`, each
    call makes a new folder below `runs`. With `resume`, a run that is in `out` already goes on from its last
    checkpoint, with the same bits as if it had never stopped, and one that is finished is returned as it is. The
    given model is not changed (but for lazy modules, which get their shapes): `run.model()` is the trained one.

    >>> import numpy as np, tempfile, torch
    >>> from fedrecall import Federation, Iid, federate
    >>> x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40) % 2
    >>> federation = Federation.from_arrays(x, y, test=(x, y), partition=Iid(clients=4, validation=0.2))
    >>> run = federate(torch.nn.Linear(3, 2), federation, rounds=2, out=tempfile.mkdtemp())
    >>> [line["round"] for line in run.metrics]
    [1, 2]
    """
    algorithm, objective = algorithm or FedAvg(), objective or WSM()
    for key in ("data", "partition", "model"):
        if key in settings:
            raise InputError(f"{key} is given, but it comes with the model and the federation here")
    tree: Tree = {
        **settings,
        "data": FROM_PYTHON,
        "partition": FROM_PYTHON,
        "model": FROM_PYTHON,
        "algorithm": described(algorithm, ALGORITHMS),
        "objective": described(objective, OBJECTIVES),
        "execution": {"engine": engine, "workers": workers, **settings.get("execution", {})},
    }
    recipe = Recipe(**tree if local is None else {**tree, "local": local})
    make_model = copies_of(model, federation, recipe.seed) if isinstance(model, nn.Module) else model
    job = Job(make_model, algorithm, objective, recipe.local, recipe.seed, recipe.batch_norm)
    if resume and out is None:
        raise InputError("resume is given, but not out: the folder of the run to go on with")
    path = Path(out) if resume and out is not None and (Path(out) / "recipe.yaml").is_file() else None
    experiment = Experiment(recipe, job, federation, metrics, resumed=path is not None and has_checkpoint(path))
    if path is not None:
        done = finished_summary(path)
        if done is None or done.get("recipe_sha256") != experiment.digest:
            go_on(RunFolder.reopen(path), experiment, watch)
        return Run(path, make_model)
    folder = RunFolder.create(Path(out)) if out is not None else RunFolder.create_new(Path("runs"), "run")
    carry_out(experiment, folder, watch)
    return Run(folder.path, make_model)


def copies_of(model: nn.Module, federation: Federation, seed: int) -> Callable[[], nn.Module]:
    """A function that returns a copy of the model with the weights it has."""
    with default_generator(seed, "init"):
        materialise(model, partial(dry_batch, federation))
    try:
        copy.deepcopy(model)
    except RuntimeError as error:
        raise InputError(f"the model cannot be copied: {' '.join(str(error).split())}") from None
    return partial(copy.deepcopy, model)


def described(thing: Any, listing: Mapping[str, Any]) -> Tree:
    """An algorithm or objective as a recipe names it; one of the user's own as what it is and holds."""
    values = (
        {field.name: getattr(thing, field.name) for field in fields(thing)} if is_dataclass(thing) else vars(thing)
    )
    for name, kind in listing.items():
        if kind is type(thing):
            return {"name": name, **values}
    plain = {
        key: value if isinstance(value, str | int | float | None) else repr(value) for key, value in values.items()
    }
    return {**FROM_PYTHON, "class": f"{type(thing).__module__}:{type(thing).__qualname__}", "options": plain}


def load_federation(recipe: Recipe) -> Federation:
    """The data and the partition that a recipe names."""
    data = recipe.build("data", folder=recipe.execution.data)
    if not isinstance(data, DataSet):
        raise InputError(
            f"data is {recipe.data['name']!r}, which returned a {type(data).__name__}; expected a DataSet"
        )
    return Federation.from_data(data, recipe.build("partition"))


def recipe_experiment(recipe: Recipe, federation: Federation, *, resumed: bool = False) -> Experiment:
    """The run that a recipe describes, ready to start or to go on."""
    make_model = partial(
        recipe.build, "model", sample_shape=federation.sample_shape, num_classes=federation.num_classes
    )
    algorithm, objective = recipe.build("algorithm"), recipe.build("objective")
    job = Job(make_model, algorithm, objective, recipe.local, recipe.seed, recipe.batch_norm)
    return Experiment(recipe, job, federation, resumed=resumed)
