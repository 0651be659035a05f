"""Data sets from a user's CSV and Parquet tables."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np

from fedrecall.data.arrays import split_off
from fedrecall.data.sources.base import DataSet
from fedrecall.data.sources.own_files import (
    Classes,
    Limit,
    Seed,
    TestFraction,
    Where,
    class_count,
    name_errors,
    own_path,
)
from fedrecall.data.sources.table_files import Columns, Table, as_number, read_csv, read_parquet
from fedrecall.data.transform import Plain
from fedrecall.errors import InputError, short_repr

WHOLE = re.compile(r"[+-]?[0-9]{1,18}").fullmatch

Label = Annotated[str, "the column with the classes: whole numbers from 0, or words (then sorted)"]
TestFile = Annotated[str | None, "another file with the same columns, for the test"]
Id = Annotated[str | None, "the column with the client of each row, for the partition natural"]
Features = Annotated[tuple[str, ...] | None, "the columns with the numbers (default: all the others)"]
Standardise = Annotated[bool, "minus the column's mean, over its deviation, both of the training rows"]
Folder = str | Path | None
Separator = Annotated[str, "the character between the cells"]


def csv(
    path: Where,
    label: Label,
    folder: Folder = None,
    test: TestFile = None,
    test_fraction: TestFraction = 0.2,
    seed: Seed = 0,
    id: Id = None,
    features: Features = None,
    standardise: Standardise = True,
    classes: Classes = None,
    separator: Separator = ",",
) -> DataSet:
    """A CSV file in UTF-8 whose first line names the columns."""
    if len(separator) != 1 or separator in '\r\n"':
        raise InputError(f"data.separator is {separator!r}; one character was expected")
    read = partial(read_csv, separator=separator)
    tables = read_tables(read, Columns(label, id, features), path, test, folder)
    return table_data("csv", tables, test_fraction, seed, standardise, classes)


def parquet(
    path: Where,
    label: Label,
    folder: Folder = None,
    test: TestFile = None,
    test_fraction: TestFraction = 0.2,
    seed: Seed = 0,
    id: Id = None,
    features: Features = None,
    standardise: Standardise = True,
    classes: Classes = None,
    limit: Limit = None,
) -> DataSet:
    """A Parquet file, read with pyarrow: the extra `tables`."""
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise InputError("data parquet needs the extra tables: pip install 'fedrecall[tables]'") from None
    read = partial(read_parquet, limit=limit, arrow=importlib.import_module("pyarrow"))
    tables = read_tables(read, Columns(label, id, features), path, test, folder)
    return table_data("parquet", tables, test_fraction, seed, standardise, classes)


def read_tables(
    read: Callable[[Path, Columns], Table], columns: Columns, path: str, test: str | None, folder: Folder
) -> list[Table]:
    """Read the training table, and the test table if there is one."""
    tables: list[Table] = []
    for key, name in (("data.path", path), ("data.test", test)):
        if name is None:
            continue
        file = own_path(key, name, folder)
        with name_errors(file):
            tables.append(read(file, columns))
            if not tables[-1].pieces:
                raise InputError("there are no rows in it")
        columns = replace(tables[0].columns, id=None)  # test rows belong to no client
    return tables


def table_data(
    name: str, tables: Sequence[Table], test_fraction: float, seed: int, standardise: bool, classes: int | None
) -> DataSet:
    """Return the rows of one table, split into training and test, or of two as a data set."""
    first = tables[0]
    count = len(first.labels)
    x = np.concatenate([piece for table in tables for piece in table.pieces])
    with name_errors(first.file):
        if len(tables) > 1:
            train, test = np.split(np.arange(len(x)), [count])
        else:
            train, test = split_off(count, test_fraction, seed)
        with name_errors(f"the column {short_repr(first.columns.label)}"):
            names, number = encoded({word for table in tables for word in table.labels}, classes)
        x = as_float32(x, train, standardise, first.columns.features or ())
    y = np.array([number[word] for table in tables for word in table.labels], np.int64)
    place = ranks(set(first.ids))
    ids = np.array([place[word] for word in first.ids], np.int64)[train] if first.ids else None
    rest = len(names), tuple(names), Plain(), ids, np.array(list(place)) if place else None
    return DataSet(name, x[train], y[train], x[test], y[test], *rest)


def encoded(found: set[str], classes: int | None) -> tuple[list[str], dict[str, int]]:
    """Return the names of the classes, and the class of each word in the label column."""
    place = ranks(found)
    words = list(place)
    if not all(map(WHOLE, words)):
        if not any(math.isnan(as_number(word)) and word.lower() != "nan" for word in words):
            fraction = next(word for word in words if not WHOLE(word))
            raise InputError(f"a label is {short_repr(fraction)}; whole numbers from 0, or words, were expected")
        class_count([np.array([len(words) - 1])], words, classes)
        return words, place
    number = {word: int(word) for word in words}
    lowest, highest = number[words[0]], number[words[-1]]
    if lowest < 0:
        raise InputError(f"a label is {lowest}; whole numbers from 0 were expected")
    if lowest > 0 and classes is None:  # labels from 1, say: an empty class 0 would mislead
        class_count([np.array([len(words) - 1])], (), None)
        return words, place
    count = class_count([np.array([highest])], (), classes)
    return [str(c) for c in range(count)], number


def ranks(words: set[str]) -> dict[str, int]:
    """Return the position of each word, whole numbers by size and other words by the alphabet."""
    ordered = sorted(words)
    if all(map(WHOLE, ordered)):
        ordered.sort(key=int)
    return {word: place for place, word in enumerate(ordered)}


def as_float32(x: np.ndarray, train: np.ndarray, standardise: bool, names: Sequence[str]) -> np.ndarray:
    """Return the columns as float32, standardised by the training rows if asked for."""
    with np.errstate(all="ignore"):  # overflow is found at the end
        if standardise:
            training = x[train]
            x -= training.mean(axis=0)
            # A constant column has no deviation to divide by; an infinite deviation would make the column 0.
            deviation = np.where(np.ptp(training, axis=0) > 0, training.std(axis=0), 1)
            x /= np.where(np.isfinite(deviation), deviation, np.nan)
        kept = x.astype(np.float32)
    good = np.isfinite(kept).all(axis=0)
    if not good.all():
        raise InputError(f"the column {short_repr(names[int(good.argmin())])} has numbers too large for 32 bits")
    return kept
