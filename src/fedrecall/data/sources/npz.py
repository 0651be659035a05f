"""Data sets from a user's `.npz` file, which is not trusted: no pickles, and a limit on the unpacked size."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Annotated, NamedTuple

import numpy as np
from numpy.lib import format as npy

from fedrecall.data.arrays import checked, note_unused_zero, split_off
from fedrecall.data.cache import cached_arrays, write_rows
from fedrecall.data.sources.base import DataSet
from fedrecall.data.sources.own_files import (
    PIECE,
    Augmented,
    Classes,
    Layout,
    Limit,
    Seed,
    Where,
    check_unpacked_size,
    class_count,
    name_errors,
    own_path,
    stored_transform,
    write_statistics,
)
from fedrecall.data.transform import channels_last
from fedrecall.errors import InputError, nearest

KEYS = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("ids_train", "ids", "class_names")
Fraction = Annotated[float | None, "without x_test and y_test: the share of samples drawn for the test"]
KINDS = {  # by the first letter of a key: the NumPy kinds that it may have, and the words for them
    "x": ("fiub", "numbers were expected"),
    "y": ("iu", "whole numbers from 0 were expected"),
    "i": ("iuU", "whole numbers or strings were expected"),
    "c": ("U", "strings were expected"),
}
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def npz(
    path: Where,
    folder: str | Path | None = None,
    layout: Layout = "auto",
    classes: Classes = None,
    augment: Augmented = False,
    limit: Limit = None,
    test_fraction: Fraction = None,
    seed: Seed = 0,
) -> DataSet:
    """An .npz file with x_train, y_train, x_test, y_test; optional ids_train (or ids) and class_names.

    Without x_test and y_test, `test_fraction` of the samples is drawn for the test.

    uint8 samples of two or three dimensions are images and are normalised by the mean and deviation of the
    training images; other numbers go to the model as they are. `ids_train` names the client of each training
    sample for the partition `natural`, `class_names` has a string a class.
    """
    file = own_path("data.path", path, folder)
    if not file.is_file():
        raise InputError(f"data.path is {path!r}, which is not a file")

    def decode(target: Path) -> None:
        with name_errors(file):
            unpack_npz(file, target, layout, limit, drawn=test_fraction is not None)
            if test_fraction is not None:
                draw_test_files(target, test_fraction, seed)

    entry = f"npz-{layout}" if test_fraction is None else f"npz-{layout}-{test_fraction}-{seed}"
    arrays = cached_arrays(entry, [file], decode)
    with name_errors(file):
        names = [str(name) for name in arrays.get("class_names", ())]
        labels = [arrays["y_train"], arrays["y_test"]]
        count = class_count(labels, names, classes)
    if classes is None and not names:
        note_unused_zero(count, "data.classes", *labels)
    return DataSet(
        name="npz",
        **{key: arrays[key] for key in KEYS},
        num_classes=count,
        class_names=tuple(names),
        transform=stored_transform(arrays, augment),
        ids=arrays.get("ids_train", arrays.get("ids")),
    )


class Header(NamedTuple):
    """The header of an array in the file."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def sample(self) -> tuple[object, ...]:
        """The type and shape of a sample as it is stored."""
        return (np.dtype(np.float32) if self.dtype.kind == "f" else self.dtype.newbyteorder("="), self.shape[1:])


def draw_test_files(target: Path, fraction: float, seed: int) -> None:
    """Move a drawn part of the unpacked training samples to the test set."""
    kept, drawn = split_off(len(np.load(target / "y_train.npy", mmap_mode="r")), fraction, seed)
    for key in ("x", "y"):
        whole = np.load(target / f"{key}_train.npy", allow_pickle=False)
        np.save(target / f"{key}_test.npy", whole[drawn])
        np.save(target / f"{key}_train.npy", whole[kept])
        if (target / "statistics.npy").exists() and key == "x":
            write_statistics(target, whole[kept])  # of training images alone
    for ids in (target / "ids_train.npy", target / "ids.npy"):
        if ids.exists():
            np.save(ids, np.load(ids, allow_pickle=False)[kept])


def unpack_npz(file: Path, target: Path, layout: str, limit: int | None, *, drawn: bool = False) -> None:
    """Write the arrays of the file as `.npy` files. All headers are checked before anything is unpacked.

    With `drawn`, the file has no test set.
    """
    splits = ["train"] if drawn else ["train", "test"]
    needed = [f"{key}_{split}" for split in splits for key in "xy"]
    with zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if drawn and "x_test" in members:
            raise InputError("it has x_test, and data.test_fraction is given; they exclude each other")
        for key in needed:
            if key not in members:
                readable = [name for name in members if name.isprintable()][:20]
                others = [name for name in readable if name not in KEYS]
                advice = "; data.test_fraction draws a test set" if key == "x_test" else ""
                raise InputError(f"there is no array {key}; {nearest(key, others or readable)}{advice}")
        wanted = [key for key in (*needed, *OPTIONAL) if key in members]
        headers = {}
        for key in wanted:
            with name_errors(key), archive.open(members[key]) as stream:
                headers[key] = read_header(stream, key, members[key].file_size)
        check_unpacked_size(file, sum(header.size for header in headers.values()), limit)
        check_agreement(headers)
        for key in wanted:
            with name_errors(key), archive.open(members[key]) as stream:
                read_header(stream, key, members[key].file_size)
                write_rows(
                    target / f"{key}.npy",
                    headers[key].shape[0],
                    read_array_rows(stream, headers[key], key, layout),
                )
    arrays = {key: np.load(target / f"{key}.npy", mmap_mode="r", allow_pickle=False) for key in wanted}
    for split in splits:
        what = {"train": "training", "test": "test"}[split]
        with name_errors(f"x_{split} and y_{split}"):
            checked(arrays[f"x_{split}"], arrays[f"y_{split}"], None, what)
    if are_images(headers["x_train"]):
        write_statistics(target, arrays["x_train"])


def read_header(stream: IO[bytes], key: str, size: int) -> Header:
    """Read the header of an array from a stream of `size` bytes; one that cannot be used is an `InputError`."""
    read = HEADERS.get(npy.read_magic(stream))
    if read is None:
        raise InputError("it is of a version of numpy's format that is not known")
    with warnings.catch_warnings():  # NumPy warns about files that Python 2 wrote
        warnings.simplefilter("ignore")
        header = Header(*read(stream))
    kinds, expected = KINDS[key[0]]
    if header.dtype.hasobject:
        raise InputError("it is an array of Python objects, which is a pickle, and pickles are never read")
    if header.dtype.kind not in kinds:
        raise InputError(f"it is of type {header.dtype}; {expected}")
    if not header.shape or (key[0] != "x" and len(header.shape) != 1):
        shape = "a row for each sample" if key[0] == "x" else "one dimension"
        raise InputError(f"its shape is {header.shape}; {shape} was expected")
    if min(header.shape) < 1:
        raise InputError(f"its shape is {header.shape}, which is empty")
    there = size - stream.tell()
    if header.size > there:
        raise InputError(f"its header speaks of {header.size} bytes, but only {there} are there")
    return header


def check_agreement(headers: Mapping[str, Header]) -> None:
    """Raise an `InputError` if lengths or samples do not fit together."""
    rows = {key: header.shape[0] for key, header in headers.items()}
    for key, other in (("y_train", "x_train"), ("y_test", "x_test"), ("ids_train", "x_train"), ("ids", "x_train")):
        if key in rows and other in rows and rows[key] != rows[other]:
            raise InputError(f"{other} has {rows[other]} samples, but {key} has {rows[key]} entries")
    if "x_test" in headers and headers["x_train"].sample != headers["x_test"].sample:
        (dtype, shape), (test_dtype, test_shape) = headers["x_train"].sample, headers["x_test"].sample
        raise InputError(
            f"a sample of x_train is {dtype} of shape {shape}, but one of x_test is {test_dtype} of shape {test_shape}"
        )


def are_images(header: Header) -> bool:
    return header.dtype == np.uint8 and len(header.shape) in (3, 4)


def read_array_rows(stream: IO[bytes], header: Header, key: str, layout: str) -> Iterator[np.ndarray]:
    """Yield the rows of an array as they are stored, some at a time."""
    count = header.shape[0]
    step = count if header.fortran else max(1, PIECE * count // max(1, header.size))
    for start in range(0, count, step):
        shape = (min(step, count - start), *header.shape[1:])
        content = stream.read(math.prod(shape) * header.dtype.itemsize)
        piece = np.frombuffer(content, header.dtype).reshape(shape, order="F" if header.fortran else "C")
        if key[0] == "y":
            yield piece.astype(np.int64)
        elif key[0] == "x" and are_images(header):
            yield channels_last(piece, layout)
        elif piece.dtype.kind == "f":
            with np.errstate(over="ignore"):  # overflow becomes infinite, which is found later
                yield piece.astype(np.float32)
        else:
            yield piece.astype(piece.dtype.newbyteorder("="))
