"""The identity of a run: the keys of a recipe that decide its result, each round, and the method."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MISSING = object()
MOST_TESTED = 100  # rounds, unless `evaluation.test_last` asks for more

# Where a run is executed, when it is saved and which trackers watch it does not change its result.
EXECUTION = ("execution", "checkpoint", "trackers")
# Runs of one method may also differ in these keys: seeds, and what is only measured.
SEEDS = ("seed", "partition.seed")
MEASURED = ("forgetting", "evaluation.every", "evaluation.personalised")


class ImpliedValue(NamedTuple):
    """A key that older recipes lack, and the value that they imply.

    With that value the key is left out of the identity, so that old and new runs have the same digest.
    """

    section: str  # as a dotted key
    key: str
    value: Any
    name: str | None = None  # the component that the key is an option of; None: any


LATER = [
    ImpliedValue("local", "beta_from", "train"),
    ImpliedValue("local.optimiser", "state", "reset"),
    ImpliedValue("local.optimiser.options", "state", "reset"),  # of an object given in Python
    ImpliedValue("local", "optimiser", {"name": "sgd"}),
    *(
        ImpliedValue(section, key, value)
        for section in ("participation", "participation.options")
        for key, value in (("dropout", 0.0), ("stragglers", 0.0), ("late", "fewer_steps"))
    ),
    ImpliedValue("data", "augment", False, name="femnist"),
    ImpliedValue("data", "test_fraction", None, name="npz"),
    ImpliedValue("data", "seed", 0, name="npz"),
    ImpliedValue("data", "by_client", False, name="image_folder"),
    ImpliedValue("evaluation", "prior", "as_trained"),
    ImpliedValue("objective", "prior", "uniform", name="wsm"),
    *(ImpliedValue("model", "head", "linear", name=name) for name in ("lenet", "resnet18", "mlp", "embedding")),
    *(ImpliedValue("model", "scale", 10.0, name=name) for name in ("lenet", "resnet18", "mlp", "embedding")),
]


def identity(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a recipe's tree that decides the result."""
    kept = {key: value for key, value in tree.items() if key not in EXECUTION}
    if not kept.get("updates"):  # older runs lack the key
        kept.pop("updates", None)
    for later in LATER:
        kept = without_implied(kept, later.section.split("."), later)
    return kept


def without_implied(tree: Mapping[str, Any], path: Sequence[str], later: ImpliedValue) -> dict[str, Any]:
    """Return the tree without the key in the section at this path, if it has the implied value."""
    found = dict(tree)
    if path and isinstance(found.get(path[0]), Mapping):
        found[path[0]] = without_implied(found[path[0]], path[1:], later)
    elif not path and later.name in (None, found.get("name")) and found.get(later.key, MISSING) == later.value:
        del found[later.key]
    return found


def round_identity(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part that decides each round: the identity without the number of rounds."""
    return {key: value for key, value in identity(tree).items() if key != "rounds"}


def lengthened(tree: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """Return the tree with another number of rounds, on which the default of `evaluation.test_last` depends."""
    longer, evaluation = {**tree, "rounds": rounds}, tree.get("evaluation") or {}
    if evaluation.get("test_last") is None and -(-rounds // 10) >= MOST_TESTED:
        longer["evaluation"] = {**evaluation, "test_last": MOST_TESTED}
    return longer


def tells_methods_apart(key: str) -> bool:
    """Whether runs that differ in this dotted key belong to different methods."""
    return not any(key == aside or key.startswith(f"{aside}.") for aside in (*EXECUTION, *SEEDS, *MEASURED))


def hash_of(tree: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a tree, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def digest_of(tree: Mapping[str, Any], rounding: str, weights: str | None, device: str) -> str:
    """Return the hash of all that decides the result.

    `rounding` names an engine with its own rounding, `device` a device other than the CPU, and `weights` is the
    digest of given initial weights.
    """
    others = {"engine": rounding, "device": device, "weights": weights}
    return hash_of({**identity(tree), **{key: value for key, value in others.items() if value}})
