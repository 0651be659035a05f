"""A sweep over Python objects: models, federations, algorithms and objectives as named choices.

Objects cannot be rebuilt from a recipe, so the runs are carried out in this process, one after the other. A cell is
recognised by its names: `study.yaml` and the cells' folders have the names in place of the objects.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedrecall.api.execute import RunPlan, execute
from fedrecall.api.python_recipe import is_named, recipe_and_parts
from fedrecall.config.components import PYTHON
from fedrecall.data.federation import Federation
from fedrecall.errors import DivergedError, InputError, Interrupted
from fedrecall.recipe.files import Tree
from fedrecall.recipe.layers import set_value
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs.folder import RunFolder
from fedrecall.runs.identity import identity
from fedrecall.runs.reader import RunRecord, is_run
from fedrecall.simulation.experiment import Experiment, build
from fedrecall.simulation.resume import changed_keys, refuse_other_data
from fedrecall.storage.atomic_files import write_text
from fedrecall.studies.cells import Cell, RunSlot, cells_of
from fedrecall.studies.design import Design, dotted
from fedrecall.studies.folder import OVER, StudyFolder
from fedrecall.user_code import their_traceback

SECTIONS_OF_OBJECTS = ("model", "federation", "algorithm", "objective", "optimiser", "participation", "updates")
KEYS = (*SECTIONS_OF_OBJECTS, "server_data")


@dataclass(frozen=True)
class ObjectStudy:
    """A planned study of objects."""

    design: Design
    choices: Mapping[str, Mapping[str, Any]]  # the objects by key of the grid and name
    fixed: Mapping[str, Any]  # the objects that all runs share, by key
    execution: Tree
    path: Path | None

    @classmethod
    def of(
        cls,
        grid: Mapping[str, Sequence[Any] | Mapping[str, Any]],
        fixed: Mapping[str, Any],
        settings: Mapping[str, Any],
        execution: Tree,
        out: str | Path | None,
        **given: Any,
    ) -> ObjectStudy:
        """Plan a study; objects among the settings are the same for all runs."""
        choices = {key: choices_of(key, values) for key, values in grid.items() if isinstance(values, Mapping)}
        for key, values in grid.items():
            if key in KEYS and key not in choices and not all(map(is_named, values)):
                raise InputError(f"{key} has objects among its values; a dict was expected, with a name for each")
        objects = {key: value for key, value in settings.items() if key in KEYS and not is_named(value)}
        plain = {key: value for key, value in settings.items() if key not in objects}
        shared = {**objects, **{key: value for key, value in fixed.items() if value is not None}}
        for key in shared:
            if key in grid:
                raise InputError(f"{key} is given, and is in the grid too; one of them was expected")
        named = {key: list(values) for key, values in grid.items()}
        given = {key: value for key, value in given.items() if value is not None}
        design = Design(recipe=PYTHON, grid=named, settings=dotted(plain), **given)
        return cls(design, choices, shared, execution, None if out is None else Path(out))

    def arguments(self, cell: Cell, seed: int) -> Tree:
        """Return the arguments of a run, as `federate` takes them."""
        tree: Tree = {"seed": seed}
        for key, value in {**self.design.settings, **cell.settings}.items():
            chosen = self.choices[key][value] if key in self.choices else value
            set_value(tree, key.split("."), chosen, key)
        tree |= self.fixed
        for key in ("model", "federation"):
            if key not in tree:
                raise InputError(f"{key} is missing; it was expected as an argument or in the grid")
        if not isinstance(tree["federation"], Federation) and callable(tree["federation"]):
            tree["federation"] = tree["federation"](seed)
        return tree

    def experiment(self, cell: Cell, slot: RunSlot, run: Path | None = None) -> Experiment:
        """Return the experiment of a run, whose recipe has the names of the chosen objects."""
        given = self.arguments(cell, slot.seed)
        model, federation = given.pop("model"), given.pop("federation")
        objects = {key: given.pop(key) for key in KEYS if key in given}
        recipe, parts = recipe_and_parts(
            model, federation, given, **objects, local=given.pop("local", None), execution=self.execution
        )
        return build(
            with_names(recipe, self.names(cell)),
            federation,
            parts,
            given_weights=isinstance(model, nn.Module),
            run=run,
        )

    def names(self, cell: Cell) -> dict[str, str]:
        """Return the names of the objects that a recipe describes by their class only."""
        chosen = {key: str(cell.settings[key]) for key in self.choices if key in SECTIONS_OF_OBJECTS}
        return {key: name for key, name in chosen.items() if not is_named(self.choices[key][cell.settings[key]])}

    def check(self, folder: StudyFolder, cells: Sequence[Cell]) -> None:
        """Raise an `InputError` for wrong objects or another study in the folder, before anything is run."""
        for cell in cells:
            for slot in cell.slots:
                place = folder.run(slot)
                if slot is not cell.slots[0] and not is_run(place):
                    continue
                try:
                    experiment = self.experiment(cell, slot)
                except InputError as error:
                    raise InputError(f"the cell {cell.name!r}: {error}" if len(cells) > 1 else str(error)) from None
                if is_run(place):
                    refuse_other_objects(place, experiment)


def choices_of(key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choices of a key by name."""
    for name in values:
        if not isinstance(name, str) or not name:
            raise InputError(f"{key} has a choice named {name!r}; a text was expected")
    if not values:
        raise InputError(f"{key} has no choices; at least one was expected")
    return dict(values)


def with_names(recipe: Recipe, names: Mapping[str, str]) -> Recipe:
    """Return the recipe with the name of each chosen object: two functions may have the same description."""
    tree = recipe.tree()
    places = {"federation": tree["data"], "optimiser": tree["local"]["optimiser"]}
    for key, name in names.items():
        place = places[key] if key in places else tree[key]
        for described in place if isinstance(place, list) else [place]:
            if isinstance(described, dict) and described["name"] == PYTHON:
                described["choice"] = name
    return Recipe(**tree)


def refuse_other_objects(path: Path, experiment: Experiment) -> None:
    """Raise an `InputError` if the run in the folder has another recipe, data or initial weights."""
    record = RunRecord(path)
    changed = list(changed_keys(identity(record.recipe), identity(experiment.recipe.tree())))
    weights = record.origin.get("model", {}).get("weights")
    if not changed and weights != experiment.weights:
        changed = ["the model has other initial weights"]
    if changed:
        raise InputError(f"the run in {str(path)!r} is another one: {'; '.join(changed)}; choose another folder")
    refuse_other_data(path, experiment)


def run_object_study(asked: ObjectStudy, *, quiet: bool) -> Path:
    """Carry out the runs that are not done; return the folder."""
    cells = cells_of(asked.design)
    if asked.path is not None:
        asked.check(StudyFolder(asked.path), cells)
    path = asked.path or RunFolder.create_new(Path("runs"), "sweep").path
    folder = StudyFolder.of(path, asked.design)
    if folder.saved()["recipe"] != PYTHON or set(folder.saved()["grid"]) != set(asked.design.grid):
        raise InputError(f"the folder {str(path)!r} has another study, over {keys_text(folder.saved())}")
    with folder.locked():
        folder.save(asked.design)
        total = sum(len(cell.slots) for cell in cells)
        for number in range(len(asked.design.seeds)):
            for cell in cells:
                slot = cell.slots[number]
                if folder.state(slot).kind not in OVER:
                    try:
                        carry_out(asked, folder, cell, slot, quiet=quiet)
                    except KeyboardInterrupt:
                        done = sum(folder.state(slot).kind in OVER for each in cells for slot in each.slots)
                        said = f"stopped with {done} of {total} runs done; the same call goes on with out={str(path)!r}"
                        raise Interrupted(said) from None
    return path


def keys_text(saved: Tree) -> str:
    return ", ".join(saved["grid"]) if saved["recipe"] == PYTHON else str(saved["recipe"])


def carry_out(asked: ObjectStudy, folder: StudyFolder, cell: Cell, slot: RunSlot, *, quiet: bool) -> None:
    """Run or resume one run; a run that fails says why in its log, and the others go on."""
    place = folder.run(slot)
    folder.forget_failure(slot)
    try:
        resumed = is_run(place)
        experiment = asked.experiment(cell, slot, place if resumed else None)
        run = RunFolder.reopen(place) if resumed else RunFolder.create(place)
        execute([RunPlan(experiment, run, slot.title, resume=resumed)], report=None, quiet=quiet)
    except DivergedError:
        return
    except InputError as error:
        note_failure(folder, slot, str(error), str(error))
    except Exception as error:
        note_failure(folder, slot, f"{type(error).__name__}; see {folder.log(slot).name}", their_traceback(error))


def note_failure(folder: StudyFolder, slot: RunSlot, words: str, log: str) -> None:
    """Note why a run failed."""
    folder.note_failure(slot, words)
    write_text(folder.log(slot), log.rstrip() + "\n")
    print(f"fedrecall: {slot.title} failed: {words}", file=sys.stderr)
