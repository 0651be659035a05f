"""FEMNIST's JSON files as LEAF makes them: handwritten digits and letters with their writers.

The files are large, 100 MB and more each with 800,000 images in all. The extents of a file's writers are found
without parsing it; then one writer after the other is parsed and written into the cache.
"""

from __future__ import annotations

import json
import mmap
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedrecall.data.cache import cached_arrays, write_rows
from fedrecall.data.places import data_folder
from fedrecall.errors import InputError

SIDE = 28
CLASS_NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
SPLITS = ("train", "test")

USER_DATA = re.compile(rb'"user_data"\s*:\s*\{')
NAME = re.compile(rb'\s*("(?:[^"\\]|\\.)*")\s*:\s*(?=\{)')
NEXT = re.compile(rb"\s*([,}])")

# A pixel has one of 256 values: remembering them halves the time of parsing.
parse_float = lru_cache(maxsize=1024)(float)


class LeafFiles:
    """The JSON files of FEMNIST in `train` and `test`."""

    def locate(self, folder: str | Path | None) -> Path:
        """Return the folder that holds `train` and `test`, or should."""
        root = data_folder("femnist", folder, "femnist")
        places = [place for place in (root / "data", root) if place.is_dir()]
        return next(filter(has_splits, places), places[0])

    def file_names(self) -> list[str]:
        return [f"{split}/*.json" for split in SPLITS]

    def check(self, folder: str | Path | None = None) -> None:
        """Raise an `InputError` if a split has no file. Files are not read: they may be gigabytes."""
        place = self.locate(folder)
        for pattern in self.file_names():
            if not any(place.glob(pattern)):
                raise InputError(f"there is no file {pattern} in {place}.")

    def arrays(self, folder: str | Path | None) -> dict[str, np.ndarray]:
        """Return x_train, y_train, ids, id_names (the writers), x_test and y_test, from the cache."""
        files = self._json_files(folder)

        def decode(target: Path) -> None:
            for split, paths in files.items():
                write_split(paths, target, split)

        return cached_arrays("femnist-writers", files["train"] + files["test"], decode)

    def _json_files(self, folder: str | Path | None) -> dict[str, list[Path]]:
        place = self.locate(folder)
        if not has_splits(place):
            root = data_folder("femnist", folder, "femnist")
            raise InputError(
                f"femnist: {root} has no folders train and test (or data/train and data/test) of LEAF's "
                "JSON files; say with --data DIR or FEDRECALL_DATA where they are."
            )
        files = {split: sorted((place / split).glob("*.json")) for split in SPLITS}
        for split, paths in files.items():
            if not paths:
                raise InputError(f"femnist: {place / split} holds no JSON file; run LEAF's preprocessing first.")
        return files


FEMNIST = LeafFiles()


def has_splits(place: Path) -> bool:
    return all((place / split).is_dir() for split in SPLITS)


@dataclass(frozen=True)
class Writer:
    """A writer's extent in a file, and the number of samples that the file lists for it."""

    name: str
    samples: int
    extent: slice


def write_split(paths: Sequence[Path], target: Path, split: str) -> None:
    """Write the images and labels of all files in their order, and the writer of each training image."""
    outlines = [(path, outline(path)) for path in paths]
    writers = [writer for _, listed in outlines for writer in listed]
    counts = [writer.samples for writer in writers]
    if sum(counts) == 0:
        raise InputError(f"femnist: the files in {paths[0].parent} hold no samples.")
    labels = []

    def images() -> Iterator[np.ndarray]:
        for path, listed in outlines:
            for x, y in samples(path, listed):
                labels.append(y)
                yield x

    write_rows(target / f"x_{split}.npy", sum(counts), images())
    np.save(target / f"y_{split}.npy", np.concatenate(labels))
    if split == "train":
        number = {name: i for i, name in enumerate(sorted({writer.name for writer in writers}))}
        np.save(target / "id_names.npy", np.array(list(number)))
        np.save(target / "ids.npy", np.repeat([number[writer.name] for writer in writers], counts))


def outline(path: Path) -> list[Writer]:
    """Return the writers of a LEAF file with their extents."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            extents, user_data = find_writers(text)
            # Everything but the samples is small, and is parsed at once.
            facts = json.loads(text[: user_data.start] + b'"user_data": 0' + text[user_data.stop :])
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a JSON file of LEAF: {error}.") from None
    users, counts = (facts.get(key) if isinstance(facts, dict) else None for key in ("users", "num_samples"))
    if not isinstance(users, list) or not isinstance(counts, list):
        raise InputError(f"{path} has no lists 'users' and 'num_samples', as LEAF's files have.")
    if len(users) != len(counts) or sorted(map(str, users)) != sorted(name for name, _ in extents):
        raise InputError(
            f"{path} lists {len(users)} users, {len(counts)} num_samples and the data of {len(extents)} users; "
            "they must be the same users."
        )
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise InputError(f"{path} has num_samples that are not whole numbers from 0.")
    sizes = dict(zip(map(str, users), counts))
    return [Writer(name, sizes[name], extent) for name, extent in extents]


def find_writers(text: mmap.mmap) -> tuple[list[tuple[str, slice]], slice]:
    """Return each writer's name and extent, and the extent of "user_data", which holds all of them.

    A writer's data are an object of number lists, so the first closing brace ends it.
    """
    opening = USER_DATA.search(text)
    if not opening:
        raise ValueError("it has no 'user_data'")
    extents, position = [], opening.end()
    following = NEXT.match(text, position)  # only for a file without writers
    while not following or following[1] == b",":
        name = NAME.match(text, position)
        stop = text.find(b"}", name.end()) + 1 if name else 0
        following = NEXT.match(text, stop) if stop else None
        if not name or not following:
            raise ValueError(f"'user_data' breaks off or is damaged at byte {position}")
        extents.append((json.loads(name[1]), slice(name.end(), stop)))
        position = following.end()
    return extents, slice(opening.start(), following.end())


def samples(path: Path, writers: Sequence[Writer]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the images and labels of one writer after the other."""
    with path.open("rb") as file:
        for writer in writers:
            file.seek(writer.extent.start)
            text = file.read(writer.extent.stop - writer.extent.start)
            where = f"{path}, user {writer.name!r}"
            try:
                record = json.loads(text, parse_float=parse_float)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where}: the data are not JSON: {error}.") from None
            if not {"x", "y"} <= set(record):
                raise InputError(f"{where}: 'x' and 'y' were expected, but there are {sorted(record)}.")
            yield (
                checked_images(record["x"], writer.samples, where),
                checked_labels(record["y"], writer.samples, where),
            )


def checked_images(rows: Any, count: int, where: str) -> np.ndarray:
    """Return rows of 784 numbers from 0 to 1 as uint8 images (count, 28, 28, 1)."""
    x = as_numbers(rows, "fiu")
    if not isinstance(rows, list) or len(rows) != count:
        raise InputError(f"{where}: num_samples is {count}, but 'x' has {size(rows)}.")
    if count == 0:
        return np.zeros((0, SIDE, SIDE, 1), np.uint8)
    if x is None or x.shape != (count, SIDE * SIDE):
        raise InputError(f"{where}: every row of 'x' must have {SIDE * SIDE} numbers.")
    if not ((x >= 0) & (x <= 1)).all():  # NaN is neither
        raise InputError(f"{where}: 'x' has values that are not between 0 and 1.")
    images: np.ndarray = np.rint(255 * x).astype(np.uint8)
    return images.reshape(count, SIDE, SIDE, 1)


def checked_labels(values: Any, count: int, where: str) -> np.ndarray:
    y = as_numbers(values, "iu")
    if not isinstance(values, list) or len(values) != count:
        raise InputError(f"{where}: num_samples is {count}, but 'y' has {size(values)}.")
    if count == 0:
        return np.zeros(0, np.int64)
    highest = len(CLASS_NAMES) - 1
    if y is None or y.shape != (count,) or y.min() < 0 or y.max() > highest:
        raise InputError(f"{where}: 'y' has a label that is not a whole number from 0 to {highest}.")
    return y.astype(np.int64)


def as_numbers(values: Any, kinds: str) -> np.ndarray | None:
    """Return the values as an array, or None if they do not form one of these NumPy kinds."""
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        return None
    return array if array.dtype.kind in kinds else None


def size(values: Any) -> str:
    return f"{len(values)}" if isinstance(values, list) else "no list"
