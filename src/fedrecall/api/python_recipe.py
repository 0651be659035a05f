"""The recipe for the Python objects given to `federate` and `diagnose`, as names where they have some."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from fedrecall.algorithms import ALGORITHM, FedAvg
from fedrecall.backend.torch_state import fixed_torch_state
from fedrecall.config.components import Section, required
from fedrecall.core.rng import default_generator
from fedrecall.core.vector import materialise
from fedrecall.data.federation import Federation
from fedrecall.errors import InputError, short_repr
from fedrecall.measure.watcher import Watcher
from fedrecall.models.build import dry_batch
from fedrecall.objectives import OBJECTIVE, WSM
from fedrecall.optimisers import OPTIMISER
from fedrecall.participation import PARTICIPATION
from fedrecall.recipe.files import Tree
from fedrecall.recipe.layers import from_layers
from fedrecall.recipe.recipe import FROM_PYTHON, Recipe
from fedrecall.recipe.settings import Local
from fedrecall.simulation.experiment import Parts
from fedrecall.trackers import TRACKER, TRACKERS, Tracker
from fedrecall.updates import STAGE

Named = str | Mapping[str, Any]  # as in a recipe: a name, or a group of keys with one


def recipe_and_parts(
    model: Any,
    federation: Federation,
    settings: Mapping[str, Any],
    *,
    algorithm: Any = None,
    objective: Any = None,
    optimiser: Any = None,
    participation: Any = None,
    updates: Sequence[Any] = (),
    server_data: Any = None,
    local: Local | Mapping[str, Any] | None = None,
    execution: Mapping[str, Any],
) -> tuple[Recipe, Parts]:
    """Return the recipe that describes the arguments, and the objects that it cannot name."""
    check_given(model, federation)
    for key in ("data", "partition", "model"):
        if key in settings:
            raise InputError(f"{key} is given, but it comes with the model and the federation here")
    chosen_algorithm = FedAvg() if algorithm is None else ALGORITHM.from_python(algorithm)
    chosen_objective = WSM() if objective is None else OBJECTIVE.from_python(objective)
    stages = [stage if is_named(stage) else STAGE.from_python(stage) for stage in updates]
    tree: Tree = {
        **settings,
        "data": FROM_PYTHON,
        "partition": FROM_PYTHON,
        "model": model if is_named(model) else FROM_PYTHON,
        "algorithm": algorithm if is_named(algorithm) else ALGORITHM.describe(chosen_algorithm),
        "objective": objective if is_named(objective) else OBJECTIVE.describe(chosen_objective),
        "execution": {**execution, **settings.get("execution", {})},
    }
    if server_data is not None:
        tree["server_data"] = server_data if is_named(server_data) else FROM_PYTHON
    if stages:
        tree["updates"] = [as_tree(STAGE, stage) for stage in stages]
    if local is not None:
        tree["local"] = local.model_dump(exclude_unset=True) if isinstance(local, Local) else dict(local)
    if optimiser is not None:
        tree["local"] = {**tree.get("local", {}), "optimiser": as_tree(OPTIMISER, optimiser)}
    own_participation = None
    if participation is not None:
        plain = isinstance(participation, int | float) or is_named(participation)
        own_participation = None if plain else PARTICIPATION.from_python(participation)
        tree["participation"] = participation if plain else PARTICIPATION.describe(own_participation)
    recipe = from_layers([tree])
    parts = Parts(
        model=model_maker(model, federation, recipe),
        algorithm=chosen_algorithm,
        objective=chosen_objective,
        optimiser=None if optimiser is None or is_named(optimiser) else OPTIMISER.from_python(optimiser),
        participation=own_participation,
        server_data=None if is_named(server_data) else server_data,
        stages=[STAGE.from_python(stage) for stage in stages] if stages else None,
    )
    return recipe, parts


def split_trackers(trackers: Any) -> tuple[list[Any], list[Any]]:
    """Return the trackers that a recipe can name, as names, and the others."""
    given = [trackers] if isinstance(trackers, str | Mapping | Tracker | Watcher) else list(trackers)
    known = tuple(TRACKERS.values())
    named = [as_tree(TRACKER, item) for item in given if is_named(item) or type(item) in known]
    return named, [item for item in given if not is_named(item) and type(item) not in known]


def as_tree(section: Section[Any], given: Any) -> Any:
    """Return a component in the form of a recipe: its name, or the description of an object."""
    return given if is_named(given) else section.describe(section.from_python(given))


def is_named(given: Any) -> bool:
    """Whether a component is given in the form of a recipe, not as an object."""
    return isinstance(given, str | Mapping)


def check_given(model: Any, federation: Any) -> None:
    """Raise an `InputError` if the model or the federation has the wrong type."""
    if not callable(model) and not is_named(model):
        raise InputError(
            f"the model is {short_repr(model)}; a torch.nn.Module, a function that returns one, or a name was expected"
        )
    if callable(model) and not isinstance(model, nn.Module) and (needed := required(model)):
        raise InputError(
            f"the model is {short_repr(model)}, which needs {', '.join(needed)}; an instance, or a function "
            "without parameters that returns one, was expected"
        )
    if not isinstance(federation, Federation):
        raise InputError(f"the federation is {short_repr(federation)}; a Federation was expected")


def model_maker(model: Any, federation: Federation, recipe: Recipe) -> Callable[[], nn.Module]:
    """Return a function that makes the model as it is before the first round."""
    if is_named(model):
        shapes = {"sample_shape": federation.sample_shape, "num_classes": federation.num_classes}
        return partial(recipe.create, "model", **shapes)
    return copies_of(model, federation, recipe.seed) if isinstance(model, nn.Module) else model


def copies_of(model: nn.Module, federation: Federation, seed: int) -> Callable[[], nn.Module]:
    """Return a function that copies the model with its present weights."""
    with fixed_torch_state(), default_generator(seed, "init"):
        materialise(model, partial(dry_batch, federation))
    try:
        copy.deepcopy(model)
    except RuntimeError as error:
        raise InputError(f"the model cannot be copied: {' '.join(str(error).split())}") from None
    return partial(copy.deepcopy, model)
