"""Tables of your own, CSV and Parquet: a column of labels, columns of numbers, and maybe one of client ids."""

from __future__ import annotations

import csv as text_tables
import importlib
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any

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
    refuse_bomb,
)
from fedrecall.data.transform import Plain
from fedrecall.errors import InputError, nearest, short_repr

ROWS = 4096  # as text in memory at a time
LONGEST_LINE = 2**24  # characters
WHOLE = re.compile(r"[+-]?[0-9]{1,18}").fullmatch
NUMBER = "a finite number was expected (leave words out with data.features, or make numbers of them)"

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
    tables = read_all(read, {"data.path": path, "data.test": test}, folder, Columns(label, id, features))
    return data_set("csv", tables, test_fraction, seed, standardise, classes)


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
    tables = read_all(read, {"data.path": path, "data.test": test}, folder, Columns(label, id, features))
    return data_set("parquet", tables, test_fraction, seed, standardise, classes)


@dataclass(frozen=True)
class Columns:
    """Which columns are used. Without `features` it is all the others."""

    label: str
    id: str | None
    features: tuple[str, ...] | None

    def found(self, names: Sequence[str]) -> Columns:
        """With the features spelled out, if the file has all of them, each once."""
        times = Counter(names)
        for place, name in enumerate(names, start=1):
            if not name:
                raise InputError(f"column {place} has no name; name it or take it out")
            if times[name] > 1:
                raise InputError(f"the column {short_repr(name)} is there {times[name]} times")
        words = [self.label] if self.id is None else [self.label, self.id]
        features = [name for name in names if name not in words] if self.features is None else self.features
        if not features:
            raise InputError("there is no column of numbers beside the labels")
        chosen: set[str] = set()
        for name in (*words, *features):
            if name not in times:
                readable = [known for known in names if known.isprintable()][:20]
                raise InputError(f"there is no column {short_repr(name)}; {nearest(name, readable)}")
            if name in chosen:
                raise InputError(
                    f"the column {short_repr(name)} can be the label, the id or a feature, but not twice"
                )
            chosen.add(name)
        return replace(self, features=tuple(features))


@dataclass
class Table:
    """What was read of a file."""

    file: Path
    columns: Columns
    labels: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    pieces: list[np.ndarray] = field(default_factory=list)  # float64 (rows, features)

    def add(self, cells: Mapping[str, Sequence[Any]], places: Sequence[str]) -> None:
        """Some more rows, by their columns, and where each of them is."""
        self.labels.extend(words(cells[self.columns.label], self.columns.label, places))
        if self.columns.id:
            self.ids.extend(words(cells[self.columns.id], self.columns.id, places))
        features = [numbers(cells[name], name, places) for name in self.columns.features or ()]
        self.pieces.append(np.stack(features, axis=1))


def words(cells: Sequence[Any], name: str, places: Sequence[str]) -> Iterator[str]:
    for cell, place in zip(cells, places):
        if cell is None or not str(cell).strip():
            raise InputError(f"{place}: the column {short_repr(name)} is empty")
        yield sys.intern(str(cell).strip())  # in memory once, however many rows have it


def numbers(cells: Sequence[Any], name: str, places: Sequence[str]) -> np.ndarray:
    try:
        values = np.array(cells, np.float64)
        if np.isfinite(values).all():
            return values
    except ValueError:
        pass
    place, cell = next((place, cell) for place, cell in zip(places, cells) if not math.isfinite(as_number(cell)))
    what = "empty" if cell is None or cell == "" else short_repr(cell)
    raise InputError(f"{place}: the column {short_repr(name)} is {what}; {NUMBER}")


def as_number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


def read_all(
    read: Callable[[Path, Columns], Table], given: Mapping[str, str | None], folder: Folder, columns: Columns
) -> list[Table]:
    """The training table, and the test table if there is one."""
    tables: list[Table] = []
    for key, name in given.items():
        if name is None:
            continue
        file = own_path(key, name, folder)
        with name_errors(file):
            tables.append(read(file, columns))
            if not tables[-1].pieces:
                raise InputError("there are no rows in it")
        columns = replace(tables[0].columns, id=None)  # the test rows are nobody's
    return tables


def data_set(
    name: str, tables: Sequence[Table], test_fraction: float, seed: int, standardise: bool, classes: int | None
) -> DataSet:
    """Rows of one table, split, or of two, as arrays."""
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
    return DataSet(name, x[train], y[train], x[test], y[test], len(names), tuple(names), Plain(), ids)


def encoded(found: set[str], classes: int | None) -> tuple[list[str], dict[str, int]]:
    """The names of the classes, and the class of each word."""
    words = sorted(found)
    if all(map(WHOLE, words)):
        number = {word: int(word) for word in words}
        if min(number.values()) < 0:
            raise InputError(f"a label is {min(number.values())}; whole numbers from 0 were expected")
        if min(number.values()) > 0 and classes is None:  # from 1, say: a class 0 that nobody has would mislead
            class_count([np.array([len(words) - 1])], (), None)
            place = ranks(found)
            return sorted(words, key=int), place
        count = class_count([np.array(list(number.values()))], (), classes)
        return [str(c) for c in range(count)], number
    if not any(math.isnan(as_number(word)) and word.lower() != "nan" for word in words):
        fraction = next(word for word in words if not WHOLE(word))
        raise InputError(f"a label is {short_repr(fraction)}; whole numbers from 0, or words, were expected")
    class_count([np.array([len(words) - 1])], words, classes)
    return words, {word: place for place, word in enumerate(words)}


def ranks(words: set[str]) -> dict[str, int]:
    """Each id's place: whole numbers by size, else by the alphabet."""
    ordered = sorted(words)
    if all(map(WHOLE, ordered)):
        ordered.sort(key=int)
    return {word: place for place, word in enumerate(ordered)}


def as_float32(x: np.ndarray, train: np.ndarray, standardise: bool, names: Sequence[str]) -> np.ndarray:
    with np.errstate(all="ignore"):  # what does not fit is found at the end
        if standardise:
            training = x[train]
            x -= training.mean(axis=0)
            # A constant column has no deviation to divide by; by one that is infinite, all would be 0.
            deviation = np.where(np.ptp(training, axis=0) > 0, training.std(axis=0), 1)
            x /= np.where(np.isfinite(deviation), deviation, np.nan)
        kept = x.astype(np.float32)
    good = np.isfinite(kept).all(axis=0)
    if not good.all():
        raise InputError(f"the column {short_repr(names[int(good.argmin())])} has numbers too large for 32 bits")
    return kept


def read_csv(file: Path, columns: Columns, separator: str) -> Table:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        reader = text_tables.reader(bounded(stream), delimiter=separator, strict=True, skipinitialspace=True)
        try:
            names = [name.strip() for name in next(reader, [])]
            if not names:
                raise InputError("its first line does not name the columns")
            table = Table(file, columns.found(names))
            while part := list(islice(numbered_rows(reader, len(names)), ROWS)):
                places, rows = zip(*part)
                table.add(dict(zip(names, zip(*rows))), places)
        except text_tables.Error as error:
            raise InputError(f"line {reader.line_num}: {error}") from None
    return table


def bounded(stream: IO[str]) -> Iterator[str]:
    """The lines of a file, none so long that it fills the memory."""
    while line := stream.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise InputError(f"a line has {LONGEST_LINE} characters or more")
        yield line


def numbered_rows(reader: Any, width: int) -> Iterator[tuple[str, list[str]]]:
    for row in reader:
        if len(row) not in (0, width):  # a blank line is no row
            raise InputError(f"line {reader.line_num} has {len(row)} cells, expected {width}")
        if row:
            yield f"line {reader.line_num}", row


def read_parquet(file: Path, columns: Columns, limit: int | None, arrow: Any) -> Table:
    with arrow.parquet.ParquetFile(file) as source:
        table = Table(file, columns.found(source.schema_arrow.names))
        features = table.columns.features or ()
        for name in features:
            kind = source.schema_arrow.field(name).type
            if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind)):
                raise InputError(f"the column {short_repr(name)} is of type {kind}; {NUMBER}")
        used = [name for name in (*features, columns.label, columns.id) if name is not None]
        refuse_bomb(file, 8 * len(used) * source.metadata.num_rows, limit)
        numeric, start = set(features), 1
        for batch in source.iter_batches(ROWS, columns=used):
            cells = {}
            for name, column in ((name, batch.column(name)) for name in used):
                plain = name in numeric and column.null_count == 0
                cells[name] = column.to_numpy(zero_copy_only=False) if plain else column.to_pylist()
            table.add(cells, [f"row {start + i}" for i in range(len(batch))])
            start += len(batch)
    return table
