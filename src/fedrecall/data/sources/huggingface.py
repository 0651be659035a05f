"""A Hugging Face data set, from a folder or from the hub. Needs the extra `hf`.

Its columns are read in batches and written as arrays into the cache. Code that comes with a data set is never run.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedrecall.data.cache import cached_arrays, write_rows
from fedrecall.data.places import data_root
from fedrecall.data.sources.base import DataSet
from fedrecall.data.sources.huggingface_columns import column, read_samples, same_kind
from fedrecall.data.sources.own_files import stored_transform, write_statistics
from fedrecall.errors import InputError, nearest

STREAM = 0x68756266  # "hubf": keeps these draws apart from other uses of an equal seed


def hf(
    path: Annotated[str, "a folder (of save_to_disk, or of data files), or the data set's name on the hub"],
    folder: str | Path | None = None,
    subset: Annotated[str | None, "which configuration of the data set, if it has several"] = None,
    train: Annotated[str, "the split that is trained on"] = "train",
    test: Annotated[str, "the split that is tested on"] = "test",
    test_fraction: Annotated[
        float | None, "instead of `test`: this share of each id's training samples, drawn at random"
    ] = None,
    split_seed: Annotated[int, "of the draw for `test_fraction`"] = 0,
    features: Annotated[str | list[str], "the column of images, vectors or token ids; or columns of numbers"] = "image",
    label: Annotated[str, "the column of classes: ClassLabel, whole numbers or text"] = "label",
    id_column: Annotated[str | None, "the column of client ids, for the natural partition"] = None,
    mode: Annotated[str | None, "L or RGB: what images become; as they are unless given"] = None,
    layout: Annotated[str, "auto | nhwc | nchw: where uint8 arrays have their channels"] = "auto",
) -> DataSet:
    """A Hugging Face data set from a folder (below --data, or anywhere) or from the hub; needs the extra hf.

    Images and uint8 arrays become uint8 images, normalised by the mean and deviation of the training images; other
    arrays of whole numbers stay so (token ids); all other numbers become float32. Classes that are numbers or text
    are counted in their sorted order.
    """
    columns = (features,) if isinstance(features, str) else tuple(features)
    reading = ColumnPlan(columns, label, id_column, test_fraction, split_seed, mode, layout)
    splits = load_splits(path, data_root(folder), subset, train)
    chosen = {"train": split_of(splits, train, "train", path)}
    if test_fraction is None:
        chosen["test"] = split_of(splits, test, "test", path)
    for split, rows in chosen.items():
        reading.check(rows.column_names, ids=split == "train")
    # The same files may be read in several ways, each with a cache entry of its own.
    stored = (reading, train, test, *(["id_names"] if id_column else []))
    way = hashlib.sha256(repr(stored).encode()).hexdigest()[:8]
    files = [Path(file["filename"]) for rows in chosen.values() for file in rows.cache_files]
    arrays = cached_arrays(f"hf-{way}", files, lambda target: reading.write(chosen, target))
    names, transform = arrays.pop("class_names").tolist(), stored_transform(arrays, augment=False)
    arrays.pop("statistics", None)
    return DataSet("hf", **arrays, num_classes=len(names), class_names=tuple(names), transform=transform)


@dataclass(frozen=True)
class ColumnPlan:
    """Which columns become samples, classes and client ids, and how."""

    features: tuple[str, ...]
    label: str
    id_column: str | None
    test_fraction: float | None
    split_seed: int
    mode: str | None
    layout: str

    def __post_init__(self) -> None:
        if not self.features:
            raise InputError("data.features is empty; at least one column was expected")
        if self.test_fraction is not None and not 0 < self.test_fraction < 1:
            raise InputError(f"data.test_fraction is {self.test_fraction}; it must be above 0 and below 1")
        if self.split_seed < 0:
            raise InputError(f"data.split_seed is {self.split_seed}; a whole number from 0 was expected")
        if self.mode not in (None, "L", "RGB"):
            raise InputError(f"data.mode is {self.mode!r}; L or RGB was expected")

    def check(self, names: Sequence[str], ids: bool) -> None:
        """Raise an `InputError` if a column is missing; `ids`: whether the column of client ids is needed."""
        wanted = [*(("features", name) for name in self.features), ("label", self.label)]
        if ids and self.id_column is not None:
            wanted.append(("id_column", self.id_column))
        for key, name in wanted:
            if name not in names:
                raise InputError(f"data.{key} is {name!r}, but there is no such column; {nearest(name, names)}")

    def write(self, parts: Mapping[str, Any], target: Path) -> None:
        """Write all arrays as files below `target`, after drawing the test set from "train" if asked for."""
        ids = None
        if self.id_column is not None:
            names, ids = number_ids(column(parts["train"], self.id_column), self.id_column)
            np.save(target / "id_names.npy", names.astype(str))
        if self.test_fraction is not None:
            rows = parts["train"]
            tested = choose_test(len(rows), ids, self.test_fraction, self.split_seed)
            parts = {"train": rows.select(np.flatnonzero(~tested)), "test": rows.select(np.flatnonzero(tested))}
            ids = None if ids is None else ids[~tested]
        if ids is not None:
            np.save(target / "ids.npy", ids)
        write_labels(parts, self.label, target)
        for split, rows in parts.items():
            samples = same_kind(read_samples(rows, self.features, self.mode, self.layout))
            write_rows(target / f"x_{split}.npy", len(rows), samples)
        images = np.load(target / "x_train.npy", mmap_mode="r", allow_pickle=False)
        if images.dtype == np.uint8:
            write_statistics(target, images)


def needed(module: str, what: str) -> Any:
    """Import a module of the extra `hf`, which `what` needs."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # the module is installed, a dependency of it is not
            raise
        raise InputError(f"{what} needs the extra hf: pip install 'fedrecall[hf]'") from None


def load_splits(path: str, root: Path, subset: str | None, train: str) -> Mapping[str, Any]:
    """Load the splits by name, from `root / path`, from `path`, or from the hub."""
    datasets = needed("datasets", "data hf")
    folder = next((found for found in (root / path, Path(path).expanduser()) if found.is_dir()), None)
    try:
        if folder and any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
            found = datasets.load_from_disk(str(folder), keep_in_memory=False)
        else:
            found = datasets.load_dataset(
                str(folder or path), name=subset, keep_in_memory=False, trust_remote_code=False
            )
    except Exception as error:  # the library raises many kinds: no network, no such name, damaged file ..
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        place = f"the folder {folder}" if folder else f"{path!r}, which is no folder here, from the hub"
        raise InputError(f"data hf: cannot load {place}: {reason}") from error
    return found if isinstance(found, dict) else {train: found}


def split_of(splits: Mapping[str, Any], name: str, key: str, path: str) -> Any:
    if name not in splits:
        instead = ", or give data.test_fraction" if key == "test" else ""
        found = ", ".join(splits)
        raise InputError(f"data.{key} is {name!r}, which is no split of {path}; name one of {found}{instead}")
    if len(splits[name]) == 0:
        raise InputError(f"data.{key} is {name!r}, but this split of {path} is empty")
    return splits[name]


def number_ids(ids: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted ids, and the position of each id among them."""
    if ids.ndim != 1 or ids.dtype.kind not in "iuU":
        raise InputError(f"data.id_column is {name!r}, but its values are not all whole numbers, or all text")
    return np.unique(ids, return_inverse=True)


def choose_test(count: int, ids: np.ndarray | None, fraction: float, seed: int) -> np.ndarray:
    """Return which samples are for the test: a random share of each id's samples, never all of them."""
    ids = np.zeros(count, np.int64) if ids is None else ids
    sizes = np.bincount(ids)
    shuffled = np.lexsort((np.random.default_rng([seed, STREAM]).random(count), ids))
    place = np.arange(count) - (np.cumsum(sizes) - sizes)[ids[shuffled]]
    taken = np.minimum(np.rint(fraction * sizes), sizes - 1)
    tested = np.zeros(count, np.bool_)
    tested[shuffled] = place < taken[ids[shuffled]]
    if not tested.any():
        raise InputError(f"data.test_fraction is {fraction}, which is less than one sample of every client")
    return tested


def write_labels(parts: Mapping[str, Any], name: str, target: Path) -> None:
    """Write y_train, y_test and class_names."""
    kinds = [rows.features[name] for rows in parts.values()]
    values = np.concatenate([column(rows, name) for rows in parts.values()])
    if kinds[0] != kinds[-1]:
        raise InputError(f"data.label is {name!r}, but its type is {kinds[0]} in one split, {kinds[-1]} in the other")
    if values.ndim != 1 or values.dtype.kind not in "iubU":
        raise InputError(f"data.label is {name!r}, but its values are not all whole numbers, or all text")
    if hasattr(kinds[0], "names"):  # a ClassLabel
        names, y = kinds[0].names, values.astype(np.int64)
        if y.min() < 0 or y.max() >= len(names):
            raise InputError(f"data.label is {name!r}, which has unlabelled samples (their class is -1)")
    else:
        found, y = np.unique(values, return_inverse=True)
        names = [str(value) for value in found]
    np.save(target / "class_names.npy", np.array(names))
    first = len(parts["train"])
    np.save(target / "y_train.npy", y[:first])
    np.save(target / "y_test.npy", y[first:])
