"""Arrays of your own, from an `.npz` file, which is not trusted: no pickles, no surprise in size."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from fedrecall.data.arrays import checked
from fedrecall.data.cache import cached_arrays, write_rows
from fedrecall.data.sources.base import DataSet
from fedrecall.data.sources.own_files import (
    PIECE,
    Augmented,
    Classes,
    Layout,
    Limit,
    Where,
    as_kept,
    class_count,
    name_errors,
    own_path,
    refuse_bomb,
    write_statistics,
)
from fedrecall.data.transform import channels_last
from fedrecall.errors import InputError, nearest

KEYS = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("ids_train", "ids", "class_names")
KINDS = {  # by what a key begins with: numpy's letters for the types that it may have, in words
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
) -> DataSet:
    """An .npz file with x_train, y_train, x_test, y_test; optional ids_train (or ids) and class_names.

    uint8 samples of two or three dimensions are images and are normalised by the mean and deviation of the
    training images; other numbers go to the model as they are. `ids_train` names the client of each training
    sample for the partition `natural`, `class_names` has a string a class.
    """
    file = own_path("data.path", path, folder)
    if not file.is_file():
        raise InputError(f"data.path is {path!r}, which is not a file")

    def decode(target: Path) -> None:
        with name_errors(file):
            unpack(file, target, layout, limit)

    arrays = cached_arrays(f"npz-{layout}", [file], decode)
    with name_errors(file):
        names = [str(name) for name in arrays.get("class_names", ())]
        count = class_count([arrays["y_train"], arrays["y_test"]], names, classes)
    return DataSet(
        name="npz",
        **{key: arrays[key] for key in KEYS},
        num_classes=count,
        class_names=tuple(names),
        transform=as_kept(arrays, augment),
        ids=arrays.get("ids_train", arrays.get("ids")),
    )


class Header(NamedTuple):
    """What the beginning of an array in the file says of it."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def sample(self) -> tuple[object, ...]:
        """The type and shape of a sample, as it is kept."""
        return (np.dtype(np.float32) if self.dtype.kind == "f" else self.dtype.newbyteorder("="), self.shape[1:])


def unpack(file: Path, target: Path, layout: str, limit: int | None) -> None:
    """Write the arrays of the file as `.npy` files. Nothing is unpacked before all headers are found good."""
    with zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for key in KEYS:
            if key not in members:
                readable = [name for name in members if name.isprintable()][:20]
                others = [name for name in readable if name not in KEYS]
                raise InputError(f"there is no array {key}; {nearest(key, others or readable)}")
        wanted = [key for key in (*KEYS, *OPTIONAL) if key in members]
        headers = {}
        for key in wanted:
            with name_errors(key), archive.open(members[key]) as stream:
                headers[key] = read_header(stream, key, members[key].file_size)
        refuse_bomb(file, sum(header.size for header in headers.values()), limit)
        compare(headers)
        for key in wanted:
            with name_errors(key), archive.open(members[key]) as stream:
                read_header(stream, key, members[key].file_size)
                write_rows(target / f"{key}.npy", headers[key].shape[0], rows(stream, headers[key], key, layout))
    arrays = {key: np.load(target / f"{key}.npy", mmap_mode="r", allow_pickle=False) for key in wanted}
    for split, what in (("train", "training"), ("test", "test")):
        with name_errors(f"x_{split} and y_{split}"):
            checked(arrays[f"x_{split}"], arrays[f"y_{split}"], None, what)
    if are_images(headers["x_train"]):
        write_statistics(target, arrays["x_train"])


def read_header(stream: IO[bytes], key: str, size: int) -> Header:
    """The header at the beginning of the stream of that size, if it is one of an array that we take."""
    read = HEADERS.get(npy.read_magic(stream))
    if read is None:
        raise InputError("it is of a version of numpy's format that is not known")
    with warnings.catch_warnings():  # numpy's about files that Python 2 wrote
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


def compare(headers: Mapping[str, Header]) -> None:
    """Lengths and samples that do not fit together."""
    rows = {key: header.shape[0] for key, header in headers.items()}
    for key, other in (("y_train", "x_train"), ("y_test", "x_test"), ("ids_train", "x_train"), ("ids", "x_train")):
        if key in rows and rows[key] != rows[other]:
            raise InputError(f"{other} has {rows[other]} samples, but {key} has {rows[key]} entries")
    if headers["x_train"].sample != headers["x_test"].sample:
        (dtype, shape), (test_dtype, test_shape) = headers["x_train"].sample, headers["x_test"].sample
        raise InputError(
            f"a sample of x_train is {dtype} of shape {shape}, "
            f"but one of x_test is {test_dtype} of shape {test_shape}"
        )


def are_images(header: Header) -> bool:
    return header.dtype == np.uint8 and len(header.shape) in (3, 4)


def rows(stream: IO[bytes], header: Header, key: str, layout: str) -> Iterator[np.ndarray]:
    """An array of the file, some rows at a time, in the form in which they are kept."""
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
            with np.errstate(over="ignore"):  # what does not fit is infinite then, and found as such
                yield piece.astype(np.float32)
        else:
            yield piece.astype(piece.dtype.newbyteorder("="))


# What the readers of a user's own files share.
