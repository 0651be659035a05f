"""A node of a federation: which client it is, what its owner allows, and its own data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall.api.execute import load_federation
from fedrecall.data.arrays import checked
from fedrecall.data.assignment import Assignment
from fedrecall.data.export import arrays_of
from fedrecall.data.federation import Federation
from fedrecall.data.partition import Iid
from fedrecall.data.samples import Samples
from fedrecall.data.sources import DataSet
from fedrecall.data.sources.own_files import name_errors
from fedrecall.errors import InputError, nearest, short_repr
from fedrecall.flower.samples import SampleKind
from fedrecall.recipe.files import read_recipe
from fedrecall.recipe.recipe import Recipe
from fedrecall.storage.scratch import ScratchFolder

PARTS = ("x_train", "y_train", "x_validation", "y_validation")
OWN_KEYS = ("data", "validation", "seed")  # keys of a node's YAML file about its data

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Node:
    """The node's own configuration, with the app's as a fallback.

    A node without data of its own, such as a simulated one, has nothing to protect: it allows everything that its
    configuration does not forbid.
    """

    client: int  # partition-id
    data: str | None  # a file from `fedrecall partition --export`, or a YAML file that names a data source
    state_dir: Path | None
    forgetting: bool  # whether others' models may be evaluated here, and this client's model at others
    class_counts: bool  # whether the server may know the number of samples of each class

    @classmethod
    def of(cls, own: Config, app: Config) -> Node:
        client = own.get("partition-id")
        if type(client) is not int or client < 0:
            raise InputError(
                f"partition-id is {short_repr(client)} in the node's configuration; a client's number was expected"
            )
        state_dir, data = own.get("state-dir") or app.get("state-dir"), text_or_none(own, "data")
        return cls(
            client,
            data,
            Path(str(state_dir)) / f"client-{client}" if state_dir else None,
            flag(own, "forgetting", default=data is None),
            flag(own, "share-class-counts", default=data is None),
        )

    def federation(self, recipe: Recipe, kind: SampleKind, nodes: str | None) -> Federation:
        """Return a federation in which only this client has samples.

        They are read from the file that the node's configuration names; else, on one machine, from the app's
        folder of exported clients; else they are the client's part of the recipe's data.
        """
        if self.data is not None:
            own = Path(self.data).expanduser()
            arrays = from_source(own, recipe) if own.suffix in (".yaml", ".yml") else exported(own)
        elif nodes:
            arrays = exported(file_of_client(Path(nodes).expanduser(), self.client))
        else:
            arrays = arrays_of(load_federation(recipe), self.client)
        for split in ("train", "validation"):
            kind.check(arrays[f"x_{split}"], arrays[f"y_{split}"])
        sizes = [len(arrays["y_train"]), len(arrays["y_validation"])]
        if not sizes[0]:
            raise InputError(f"client {self.client} has no training samples")
        folder = ScratchFolder("node")
        x, y = (np.concatenate([arrays[f"{part}_train"], arrays[f"{part}_validation"]]) for part in "xy")
        owner = np.full(sum(sizes), self.client, np.int32)
        assignment = Assignment(owner, np.repeat([False, True], sizes), self.client + 1)
        samples = Samples.write(folder.path, "own", x, y)
        rest = kind.num_classes, kind.transform, kind.class_names, folder
        return Federation(samples, None, assignment, *rest)


def flag(config: Config, key: str, *, default: bool) -> bool:
    value = config.get(key, default)
    if type(value) is not bool:
        raise InputError(f"{key} is {short_repr(value)} in the node's configuration; true or false was expected")
    return value


def text_or_none(config: Config, key: str) -> str | None:
    value = config.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{key} is {short_repr(value)} in the node's configuration; a path was expected")
    return value or None


def exported(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a client's file, as `fedrecall partition --export` writes it."""
    with name_errors(path), np.load(path, allow_pickle=False) as file:
        arrays = {}
        for name in PARTS:
            if name not in file.files:
                raise InputError(f"there is no array {name}; {nearest(name, file.files)}")
            arrays[name] = file[name]
        arrays["x_train"], arrays["y_train"] = checked(arrays["x_train"], arrays["y_train"], None, "training")
        if len(arrays["y_validation"]):
            pair = checked(arrays["x_validation"], arrays["y_validation"], None, "validation")
            arrays["x_validation"], arrays["y_validation"] = pair
        return arrays


def file_of_client(folder: Path, client: int) -> Path:
    for path in folder.glob("client-*.npz"):
        if re.fullmatch(rf"client-0*{client}\.npz", path.name):
            return path
    raise InputError(f"the folder {str(folder)!r} has no file of client {client}, as client-{client}.npz")


def from_source(path: Path, recipe: Recipe) -> dict[str, np.ndarray]:
    """Return the training samples of the data source in a node's file, a share of them for validation."""
    with name_errors(path):
        tree = read_recipe(str(path))
        unknown = [key for key in tree if key not in OWN_KEYS]
        if "data" not in tree or unknown:
            wrong = f"there is no key {unknown[0]!r}" if unknown else "the key 'data' is missing"
            raise InputError(f"{wrong}; {nearest(unknown[0] if unknown else 'data', OWN_KEYS)}")
        data = Recipe(data=tree["data"]).create("data", folder=recipe.execution.data)
        if not isinstance(data, DataSet):
            raise InputError(f"data returned a {type(data).__name__}; expected a DataSet")
        given = {"validation": recipe.partition.get("validation", 0.0), "seed": 0, **tree}
        split = Iid(clients=1, validation=given["validation"], seed=given["seed"])
        kept = split.assign(np.asarray(data.y_train), data.num_classes).validation
        return {
            "x_train": data.x_train[~kept],
            "y_train": data.y_train[~kept],
            "x_validation": data.x_train[kept],
            "y_validation": data.y_train[kept],
        }
