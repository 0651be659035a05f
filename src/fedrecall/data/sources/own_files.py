"""Options, checks and paths that the readers of users' own files share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedrecall.config.options import Positive, Whole
from fedrecall.data.arrays import MOST_CLASSES
from fedrecall.data.places import data_root
from fedrecall.data.transform import Images, Plain, Transform, normalised
from fedrecall.errors import InputError

PIECE = 2**24  # bytes in memory at a time
MOST_GIVEN = 1_000_000  # classes; counts by client and class are kept in memory
Where = Annotated[str, "the file, in the working folder or below the data folder (--data)"]
Layout = Annotated[Literal["auto", "nhwc", "nchw"], "of colour images: channels last or first"]
Classes = Annotated[
    Annotated[int, Field(ge=1, le=MOST_GIVEN)] | None,
    "how many classes there are (default: class_names, or the largest label + 1)",
]
Limit = Annotated[Positive | None, "bytes that it may unpack to (default: 100 times the file, at least 1 GiB)"]
TestFraction = Annotated[float, "without `test`: this share, drawn at random, is for the test"]
Seed = Annotated[Whole, "of that draw"]
Augmented = Annotated[bool, "images: random crops after padding by 4, and horizontal flips"]


def write_statistics(target: Path, images: np.ndarray) -> None:
    """Write the mean and deviation of images, so that not every run has to count all pixels."""
    transform = normalised(images)
    np.save(target / "statistics.npy", np.array([transform.mean, transform.std]))


def stored_transform(arrays: Mapping[str, np.ndarray], augment: bool) -> Transform:
    """Return the transform of cached samples: that of images if the cache has their statistics."""
    if "statistics" not in arrays:
        if augment:
            raise InputError("data.augment is true, but the samples are not images")
        return Plain()
    mean, std = arrays["statistics"].tolist()
    return Images(tuple(mean), tuple(std), crop_padding=4 if augment else 0, flip=augment)


def own_path(key: str, given: str, folder: str | Path | None) -> Path:
    """Return the path of a user's file or folder, which is relative to the working or the data folder."""
    named = os.path.expanduser(given)
    below = os.path.join(data_root(folder), named)
    for found in (named, below):
        if os.path.exists(found):
            return Path(found)
    raise InputError(f"{key} is {given!r}, but there is no such file or folder")


@contextmanager
def name_errors(part: object) -> Iterator[None]:
    """Turn errors inside into an `InputError` that begins with the file, or the part of it, that was read."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{part}: {error}") from None
    except Exception as error:  # libraries raise many kinds on damaged files
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"{part} cannot be read: {reason}") from None


def check_unpacked_size(file: Path, unpacked: int, limit: int | None) -> None:
    """Raise an `InputError` if a small file claims to unpack to a huge one."""
    packed = file.stat().st_size
    most = max(2**30, 100 * packed) if limit is None else limit
    if unpacked > most:
        raise InputError(
            f"it has {packed} bytes and says that it unpacks to {unpacked}; "
            f"more than {most} are unpacked only when data.limit allows them"
        )


def class_count(labels: Sequence[np.ndarray], names: Sequence[str], classes: int | None) -> int:
    """Return the number of classes, if the labels, the class names and the option agree on it."""
    most = max(int(part.max()) for part in labels)
    if classes is not None and names and classes != len(names):
        raise InputError(f"data.classes is {classes}, but there are {len(names)} class names")
    count = classes or len(names) or most + 1
    if most >= count:
        raise InputError(f"a label is {most}; labels from 0 to {count - 1} were expected")
    if count > MOST_CLASSES and classes is None:
        raise InputError(f"a label is {most}; if there are {count} classes, say so with data.classes")
    check_names(names)
    return count


def check_names(names: Sequence[str]) -> None:
    """Raise an `InputError` if a name cannot be encoded, and so not be written into a run's files."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InputError(f"the class name {name!r} is not valid text") from None
