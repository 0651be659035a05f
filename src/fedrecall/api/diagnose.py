"""Diagnosis of what a user's model forgets: one round with cross-entropy and one with WSM, from the same weights.

The two rounds share the clients, the order of batches and all other random draws, so they differ only in the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedrecall.algorithms import ALGORITHM, FedAvg
from fedrecall.api.diagnosis import Diagnosis
from fedrecall.api.execute import execute, write_report
from fedrecall.api.pairing import plan_both, with_both_objectives
from fedrecall.api.python_recipe import Named, recipe_and_parts
from fedrecall.api.run import Run
from fedrecall.backend.device import CPU
from fedrecall.data.federation import Federation
from fedrecall.errors import InputError, short_repr
from fedrecall.models.build import build_model, has_statistics
from fedrecall.models.weights import check_weights, read_weights, with_weights
from fedrecall.objectives import OBJECTIVE, WSM, CrossEntropy, Objective
from fedrecall.recipe.display_titles import titles
from fedrecall.recipe.recipe import FROM_PYTHON, Recipe
from fedrecall.recipe.settings import Local
from fedrecall.report.diagnosis import DIAGNOSIS, findings, opening, sentences
from fedrecall.runs import files
from fedrecall.runs.reader import load_run
from fedrecall.simulation.experiment import Parts, build
from fedrecall.simulation.progress import wants_progress

ENOUGH = 10  # least clients by default: with fewer, one unusual client decides the result

# Keys of a recipe that a diagnosis fixes, and the end of the message about each.
FIXED = {
    "algorithm": "the rounds are FedAvg's",
    "rounds": "there is one round with each objective",
    "participation": "the number of clients was expected instead: --clients N, or clients=N in Python",
    "clients_per_round": "--clients N was expected instead, or clients=N in Python",
}


@dataclass(frozen=True)
class StartingPoint:
    """The start of the rounds: a description, and the weights unless they are the model's own."""

    words: str
    weights: Mapping[str, Tensor] | None = None
    untrained: bool = False
    of_run: bool = False  # the model is a run's own, with the statistics that the run saved
    partition: str | None = None  # digest of the partition that it was trained on, if known


def diagnose(
    model: nn.Module | Callable[[], nn.Module] | Named,
    federation: Federation,
    *,
    weights: str | Path | Mapping[str, Tensor] | None = None,
    objective: WSM | Named | None = None,
    local: Local | Mapping[str, Any] | None = None,
    clients: int | None = None,
    engine: str = "auto",
    workers: int | str = "auto",
    device: str = "auto",
    out: str | Path | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Diagnosis:
    """Train one round with cross-entropy and one with WSM from the same weights, and report what is forgotten.

    It starts from the weights of `model`, or from `weights`: a safetensors file or a state dict. `objective` is
    WSM with other options. `clients` is the number that train, by default at least ten, or all. The other keys of
    a recipe are keywords too (`seed`, `batch_norm`, `forgetting={"sample": 100}`, ..). Without `out`, each call
    makes a new folder below `runs`, with a run for each objective and a report.html about both. `progress` is as
    in `federate`.

    >>> import numpy as np, tempfile, torch
    >>> from fedrecall import Federation, Iid, diagnose
    >>> x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40) % 2
    >>> federation = Federation.from_arrays(x, y, partition=Iid(clients=4, validation=0.2))
    >>> diagnosis = diagnose(torch.nn.Linear(3, 2), federation, out=tempfile.mkdtemp())
    >>> print(str(diagnosis)[:28])
    One round with all 4 clients
    """
    refuse_fixed(settings)
    recipe, parts = recipe_and_parts(
        model,
        federation,
        settings,
        objective=objective,
        local=local,
        execution={"engine": engine, "workers": workers, "device": device},
    )
    loss, make_model = parts.objective, parts.model
    assert make_model is not None
    if not isinstance(loss, WSM):
        raise InputError(f"objective is {short_repr(objective)}; a diagnosis compares cross-entropy with a WSM")
    start = StartingPoint("a new model", untrained=True)
    if isinstance(model, nn.Module):
        start = StartingPoint("the given model")
    if weights is not None:
        start = start_from_weights(weights)
    return examine(recipe, make_model, federation, loss, start, clients, out, quiet=not wants_progress(progress))


def start_from_weights(weights: str | Path | Mapping[str, Tensor]) -> StartingPoint:
    if isinstance(weights, str | Path):
        return StartingPoint(f"the weights in {str(weights)!r}", read_weights(Path(weights)))
    return StartingPoint("the given weights", weights)


def refuse_fixed(settings: Mapping[str, Any]) -> None:
    for key, instead in FIXED.items():
        if key in settings:
            raise InputError(f"{key} is given, but in a diagnosis {instead}")


def examine(
    recipe: Recipe,
    make_model: Callable[[], nn.Module],
    federation: Federation,
    objective: WSM,
    start: StartingPoint,
    clients: int | None = None,
    out: str | Path | None = None,
    *,
    quiet: bool = True,
) -> Diagnosis:
    """Run both rounds and return the diagnosis; nothing is written before all checks have passed."""
    count = training_client_count(recipe, federation.population, clients)
    refuse_unmeasurable(federation)
    check_start(recipe, make_model, federation, start)
    if start.weights is not None:
        make_model = partial(with_weights, make_model, start.weights)
    one = one_round(recipe, count, start, tested=federation.test is not None)
    recipes = with_both_objectives(one, OBJECTIVE.describe(objective))
    losses: tuple[Objective, ...] = (CrossEntropy(), objective)
    experiments = {
        name: build(chosen, federation, Parts(model=make_model, algorithm=FedAvg(), objective=loss))
        for (name, chosen), loss in zip(recipes.items(), losses)
    }

    parent, plans = plan_both(experiments, out, "diagnose")
    report = parent.path / files.REPORT
    execute(plans, report=None, quiet=quiet)  # the report is written below, after the diagnosis
    runs = {name: Run(plan.folder.path, make_model) for name, plan in zip(experiments, plans)}
    found = {
        name: findings(run.forgetting[1], federation.class_names, federation.population) for name, run in runs.items()
    }
    notes = warnings_about([run.path for run in runs.values()])
    first = opening(
        start.words,
        found["cross_entropy"],
        count,
        federation.population,
        federation.num_classes,
        initial=start.untrained,
    )
    if start.partition not in (None, federation.assignment.digest()):
        notes.append("The clients do not have the samples that they had in the run: its data have changed.")
    said = (first, *sentences(found["cross_entropy"], found["wsm"], federation.client_names))
    diagnosis = Diagnosis(said, tuple(notes), found, runs["cross_entropy"], runs["wsm"], report)
    parent.write_json(DIAGNOSIS, diagnosis.tree())
    write_report([run.path for run in runs.values()], report)
    return diagnosis


def training_client_count(recipe: Recipe, population: int, asked: int | None) -> int:
    """Return the number of clients that train: as requested, else the recipe's, but at least `ENOUGH` or all."""
    if asked is None:
        usual = recipe.clients_per_round or recipe.create_participation().expected(population)
        return min(population, max(usual, ENOUGH))
    if not 1 <= asked <= population:
        raise InputError(f"clients is {asked}; a number from 1 to {population}, who may train, was expected")
    return asked


def refuse_unmeasurable(federation: Federation) -> None:
    able = len(np.unique(federation.owners()))
    if not able:
        raise InputError(
            "forgetting is measured on the clients' validation data, and there are none: partition.validation is 0"
        )
    if able < 2:
        raise InputError(
            "forgetting is measured on the other clients' validation data, and only 1 of "
            f"{federation.population} clients has any"
        )


def check_start(
    recipe: Recipe, make_model: Callable[[], nn.Module], federation: Federation, start: StartingPoint
) -> None:
    """Raise an `InputError` if the start's weights do not fit the model."""
    if start.weights is None:
        return
    module = build_model(make_model, federation, recipe.seed, recipe.local.threads, CPU.torch).module
    check_weights(start.weights, module, start.words)
    if start.of_run and recipe.batch_norm == "local" and has_statistics(module):
        raise InputError(
            "batch_norm is 'local': the run left its batch-norm statistics with the clients, and its model "
            "has none; give weights that have them with --weights"
        )


def one_round(recipe: Recipe, clients: int, start: StartingPoint, *, tested: bool) -> Recipe:
    """Return the recipe of a single round, whose rate is `local.lr`: a schedule is for many rounds."""
    tree = recipe.tree()
    tree.pop("participation", None)
    sample = {"sample": recipe.forgetting.sample} if recipe.forgetting.sample else {}
    tree |= {
        "algorithm": ALGORITHM.describe(FedAvg()),
        "rounds": 1,
        "clients_per_round": clients,
        "local": {**tree["local"], "schedule": "constant"},
        "evaluation": {"every": 1, "test_last": int(tested and recipe.batch_norm != "local")},
        "forgetting": {"rounds": [1], **sample},
    }
    model = tree["model"]
    if start.weights is not None and model != FROM_PYTHON:
        # The recipe alone starts from other weights: mark it as unable to repeat this round.
        tree["model"] = {**model, **FROM_PYTHON, "class": f"{model['name']} from {start.words}"}
    return Recipe(**tree)


def warnings_about(runs: list[Path]) -> list[str]:
    """Return the warnings in the report about these runs."""
    from fedrecall.report.comparison import group_methods  # only needed for reports
    from fedrecall.report.warnings import warnings

    found = warnings(group_methods([load_run(run) for run in runs], titles()))
    return [f"{', '.join(warning.about)}: {warning.text}" if warning.about else warning.text for warning in found]
