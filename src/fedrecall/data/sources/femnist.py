"""FEMNIST, handwritten digits and letters with their writers, from the JSON files that LEAF makes.

The files are large: 100 MB and more each, 800,000 images in all. The places of a file's writers are found without
parsing it; then one writer after the other is parsed and written into the cache.
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
from typing import Annotated, Any

import numpy as np

from fedrecall.data.cache import cached_arrays
from fedrecall.data.places import data_folder, npy_file
from fedrecall.data.sources.base import DataSet
from fedrecall.data.transform import Images, SmallerCrops
from fedrecall.errors import InputError
from fedrecall.titles import titled

SIDE = 28
CLASS_NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)

USER_DATA = re.compile(rb'"user_data"\s*:\s*\{')
NAME = re.compile(rb'\s*("(?:[^"\\]|\\.)*")\s*:\s*(?=\{)')
NEXT = re.compile(rb"\s*([,}])")

# Pixels have 256 values: remembering them halves the time of parsing.
parse_float = lru_cache(maxsize=1024)(float)


# Of 41,130 training images of 289 writers; constants, so that any choice of writers is scaled alike.
MEAN, STD = (0.9615,), (0.1642,)

Augment = Annotated[bool, "random crops of 24x24 after padding by 4, and horizontal flips: as the paper's authors"]


@titled("FEMNIST")
def femnist(folder: str | Path | None = None, augment: Augment = False) -> DataSet:
    """FEMNIST as LEAF writes it: `femnist/data/train` and `femnist/data/test` below `folder`.

    Grey as LEAF has it: the paper is white (255), the ink dark. The ids are the writers of the training images,
    numbered in the sorted order of their names; the test images of all writers are one test set.
    """
    found = leaf_folder(folder)
    files = {split: sorted((found / split).glob("*.json")) for split in ("train", "test")}
    for split, paths in files.items():
        if not paths:
            raise InputError(f"femnist: {found / split} holds no JSON file; run LEAF's preprocessing first.")

    def decode(target: Path) -> None:
        for split, paths in files.items():
            write_split(paths, target, split)

    return DataSet(
        name="femnist",
        **cached_arrays("femnist", files["train"] + files["test"], decode),
        num_classes=len(CLASS_NAMES),
        class_names=CLASS_NAMES,
        transform=SmallerCrops(MEAN, STD, crop_padding=4, flip=True) if augment else Images(MEAN, STD),
    )


def leaf_folder(folder: str | Path | None) -> Path:
    """The folder that holds `train` and `test`."""
    root = data_folder("femnist", folder, "femnist")
    for found in (root / "data", root):
        if (found / "train").is_dir() and (found / "test").is_dir():
            return found
    raise InputError(
        f"femnist: {root} has no folders train and test (or data/train and data/test) of LEAF's JSON files; "
        "say with --data DIR or FEDRECALL_DATA where they are."
    )


@dataclass(frozen=True)
class Writer:
    """A writer's place in a file, and the number of samples that the file says are there."""

    name: str
    samples: int
    place: slice


def write_split(paths: Sequence[Path], target: Path, split: str) -> None:
    """Images and labels of all files, in their order, and for the training files each image's writer."""
    outlines = [(path, outline(path)) for path in paths]
    writers = [writer for _, found in outlines for writer in found]
    counts = [writer.samples for writer in writers]
    if sum(counts) == 0:
        raise InputError(f"femnist: the files in {paths[0].parent} hold no samples.")
    labels = []
    with npy_file(target / f"x_{split}.npy", (sum(counts), SIDE, SIDE, 1)) as images:
        for path, found in outlines:
            for x, y in samples(path, found):
                images.write(x.tobytes())
                labels.append(y)
    np.save(target / f"y_{split}.npy", np.concatenate(labels))
    if split == "train":
        number = {name: i for i, name in enumerate(sorted({writer.name for writer in writers}))}
        np.save(target / "ids.npy", np.repeat([number[writer.name] for writer in writers], counts))


def outline(path: Path) -> list[Writer]:
    """Which writers a LEAF file has, and where."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            places, stretch = find_writers(text)
            # All but the samples is small, and is checked as JSON in one go.
            rest = json.loads(text[: stretch.start] + b'"user_data": 0' + text[stretch.stop :])
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a JSON file of LEAF: {error}.") from None
    users, counts = (rest.get(key) if isinstance(rest, dict) else None for key in ("users", "num_samples"))
    if not isinstance(users, list) or not isinstance(counts, list):
        raise InputError(f"{path} has no lists 'users' and 'num_samples', as LEAF's files have.")
    if len(users) != len(counts) or sorted(map(str, users)) != sorted(name for name, _ in places):
        raise InputError(
            f"{path} lists {len(users)} users, {len(counts)} num_samples and the data of {len(places)} users; "
            "they must be the same users."
        )
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise InputError(f"{path} has num_samples that are not whole numbers from 0.")
    samples_of = dict(zip(map(str, users), counts))
    return [Writer(name, samples_of[name], place) for name, place in places]


def find_writers(text: mmap.mmap) -> tuple[list[tuple[str, slice]], slice]:
    """Each writer's name and place, and the stretch of the text that has them all.

    A writer's data are an object of number lists, so the first closing brace is its end.
    """
    opening = USER_DATA.search(text)
    if not opening:
        raise ValueError("it has no 'user_data'")
    places, position = [], opening.end()
    following = NEXT.match(text, position)  # only for a file without writers
    while not following or following[1] == b",":
        name = NAME.match(text, position)
        stop = text.find(b"}", name.end()) + 1 if name else 0
        following = NEXT.match(text, stop) if stop else None
        if not name or not following:
            raise ValueError(f"'user_data' breaks off or is damaged at byte {position}")
        places.append((json.loads(name[1]), slice(name.end(), stop)))
        position = following.end()
    return places, slice(opening.start(), following.end())


def samples(path: Path, writers: Sequence[Writer]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Images and labels of one writer after the other."""
    with path.open("rb") as file:
        for writer in writers:
            file.seek(writer.place.start)
            text = file.read(writer.place.stop - writer.place.start)
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
    """uint8 (count, 28, 28, 1) of rows of 784 numbers from 0 to 1."""
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
    """An array, if the values form one of numbers of these kinds."""
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        return None
    return array if array.dtype.kind in kinds else None


def size(values: Any) -> str:
    return f"{len(values)}" if isinstance(values, list) else "no list"
