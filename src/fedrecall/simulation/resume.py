"""Resume a run from its last intact checkpoint, and check what may differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrecall.backend.device import Device
from fedrecall.engines import ENGINES
from fedrecall.errors import InputError, short_repr
from fedrecall.measure.live_round import Observer
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs import checkpoint, files
from fedrecall.runs.checkpoint import Checkpoint
from fedrecall.runs.client_states import StateFiles
from fedrecall.runs.environment import differing, environment
from fedrecall.runs.folder import RunFolder
from fedrecall.runs.identity import digest_of, lengthened, round_identity
from fedrecall.runs.reader import RunRecord, finished_summary
from fedrecall.runs.records import check_records
from fedrecall.simulation.experiment import Experiment
from fedrecall.simulation.loop import run_experiment
from fedrecall.version import __version__


def starting_point(
    path: Path, experiment: Experiment, *, force: bool = False, other_device: bool = False
) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint to resume from (None if there is none yet) and notes for the user."""
    point, notes = checkpoint.newest(path / files.CHECKPOINTS, experiment.engine.states_below(path / files.STATES))
    recipe = experiment.recipe
    if point is None and not force:
        refuse_to_start_again(path, recipe, notes)
    notes += other_environment(path, experiment.device)
    if point is None:
        return None, notes
    notes += check_records(path, point.records, point.round, force=force)
    notes += other_device_than(point, experiment.device, allowed=force or other_device)
    if not force:
        refuse_other(point, recipe)
        refuse_other_engine(point, experiment)
        refuse_other_data(path, experiment)
    refuse_other_model(point, experiment)
    completed = (finished_summary(path) or {}).get("rounds_done") == point.round
    if point.round > recipe.rounds or (point.round == recipe.rounds and completed):
        done = "its only round" if recipe.rounds == 1 else f"all its {recipe.rounds:,} rounds"
        raise InputError(f"the run in {str(path)!r} has {done}; rounds=N makes it longer")
    if recipe.rounds != point.recipe.get("rounds") and recipe.local.schedule.name == "cosine":
        notes.append("the rate follows a cosine over all rounds: a run of this length from the start would differ")
    return point, notes


def refuse_to_start_again(path: Path, recipe: Recipe, damaged: Sequence[str]) -> None:
    """Raise an `InputError` if starting again without a checkpoint would erase results that cannot be repeated."""
    again = "--force starts the run again from its beginning"
    if damaged:
        raise InputError(f"no checkpoint is whole: {damaged[0]}; {again}")
    run = RunRecord(path)
    if run.finished:
        raise InputError(f"the run in {str(path)!r} is finished, but its checkpoints are gone; {again}")
    began = run.origin.get("recipe")
    if began not in (None, recipe.method_digest()):
        raise InputError(f"the recipe in {str(path)!r} is not the one that the run began with; {again}")


def other_device_than(point: Checkpoint, device: Device, *, allowed: bool) -> list[str]:
    """Return a warning if the device has changed; raise an `InputError` unless that is allowed."""
    now = device.rounding or "cpu"
    if point.device == now:
        return []
    if not allowed:
        raise InputError(
            f"the run trained on {point.device} and would go on with {now}, whose bits are others; choose with "
            "--device, or --other-device goes on all the same"
        )
    return [f"trained on {point.device} until round {point.round} and on {now} from there on: the bits are others"]


def refuse_other_engine(point: Checkpoint, experiment: Experiment) -> None:
    """Raise an `InputError` if the engine rounds differently from the one that the run began with."""
    own = [kind.name for kind in ENGINES.values() if kind.own_rounding]
    device = "" if point.device == "cpu" else point.device
    digests = {name: digest_of(point.recipe, name, experiment.weights, device) for name in own}
    began = next((name for name, digest in digests.items() if point.recipe_sha256 == digest), "")
    goes_on = experiment.engine.rounding
    if began != goes_on:
        raise InputError(
            f"the run began with {began or 'another'} engine and would go on with {goes_on or 'another'}, but "
            f"{(began or goes_on)!r} rounds in its own way; choose with --engine, or --force goes on all the same"
        )


def refuse_other_data(path: Path, experiment: Experiment) -> None:
    """Raise an `InputError` if the data or the partition have changed since the run began."""
    run, federation = RunRecord(path), experiment.federation
    try:
        who, what = run.card.get("digest"), run.origin.get("data", {}).get("digest")
    except InputError:  # damaged files are rewritten
        return
    if what not in (None, federation.digest()):
        raise InputError(
            f"the data are not those that the run in {str(path)!r} began with; --force goes on all the same"
        )
    if who not in (None, federation.assignment.digest()):
        raise InputError(
            f"the clients do not have the samples that they had when the run in {str(path)!r} began; "
            "--force goes on all the same"
        )


def refuse_other_model(point: Checkpoint, experiment: Experiment) -> None:
    """Raise an `InputError` if the tensors of the model have other names or shapes than the run's."""
    fresh = experiment.job.init_server(experiment.flat.w.clone()), experiment.flat.buffers()
    for there, now in zip((point.server, point.buffers), fresh):
        before, after = ({name: list(t.shape) for name, t in group.items()} for group in (there, now))
        if before != after:
            raise InputError(f"the model is not the run's: {'; '.join(changed_keys(before, after))}")


def refuse_other(point: Checkpoint, recipe: Recipe, advice: str = "--force goes on all the same") -> None:
    """Raise an `InputError` if the recipe or the version of fedrecall is not the run's."""
    if point.fedrecall != __version__:
        raise InputError(
            f"the run was made by fedrecall {point.fedrecall} and this is {__version__}: its rounds may differ; "
            f"{advice}"
        )
    began = lengthened(point.recipe, recipe.rounds)
    changed = list(changed_keys(round_identity(began), round_identity(recipe.tree())))
    if changed:
        raise InputError(f"the recipe is not the run's: {'; '.join(changed)}; {advice}")


def changed_keys(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield each key that has changed, with both values."""
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from changed_keys(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key} was {short_repr(old)} and is {short_repr(new)}"


def other_environment(path: Path, device: Device) -> list[str]:
    """Return a warning if the machine or its software has changed."""
    try:
        before = RunRecord(path).environment
    except InputError:
        before = {}
    if not before:
        return []
    now = environment(device)
    changed = [f"{key} was {before.get(key)} and is {now.get(key)}" for key in differing(before, now)]
    return [f"bits may differ from now on: {'; '.join(changed)}"] if changed else []


def resume_experiment(
    folder: RunFolder,
    experiment: Experiment,
    observers: Sequence[Observer] = (),
    *,
    force: bool = False,
    other_device: bool = False,
) -> dict[str, Any]:
    """Resume the run in a folder; return its summary."""
    if (folder.path / files.NODES).exists() and not experiment.engine.leaves_out_clients:
        raise InputError(
            f"the run in {str(folder.path)!r} is that of a federation; its app goes on with it, by flwr run and "
            "--run-config resume=true"
        )
    folder.lock()
    try:
        point, notes = starting_point(folder.path, experiment, force=force, other_device=other_device)
        if point is None:  # stopped before its first checkpoint
            reset_run(folder)
        return run_experiment(experiment, folder, observers, point, notes)
    finally:
        folder.close()


def reset_run(folder: RunFolder) -> None:
    """Delete all rounds of a run and the partial files of a killed process."""
    folder.cut_back(0, folder.lines_until(0))
    folder.delete(files.SUMMARY)
    checkpoint.drop_after(folder.path / files.CHECKPOINTS, 0)
    StateFiles(folder.path / files.STATES).delete_others([])
