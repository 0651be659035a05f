"""CSV and Parquet files read as rows: a column of labels, columns of numbers, and optionally one of client ids."""

from __future__ import annotations

import csv
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedrecall.data.sources.own_files import check_unpacked_size
from fedrecall.errors import InputError, nearest, short_repr

ROWS = 4096  # in memory as text at a time
LONGEST_LINE = 2**24  # characters
NUMBER = "a finite number was expected (leave words out with data.features, or make numbers of them)"


@dataclass(frozen=True)
class Columns:
    """The columns that are used. Without `features`, these are all the others."""

    label: str
    id: str | None
    features: tuple[str, ...] | None

    def among(self, names: Sequence[str]) -> Columns:
        """Return the columns with all features named; a column that is missing or repeated is an `InputError`."""
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
                raise InputError(f"the column {short_repr(name)} can be the label, the id or a feature, but not twice")
            chosen.add(name)
        return replace(self, features=tuple(features))


@dataclass
class Table:
    """The rows read from a file."""

    file: Path
    columns: Columns
    labels: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    pieces: list[np.ndarray] = field(default_factory=list)  # float64 (rows, features)

    def add(self, cells: Mapping[str, Sequence[Any]], places: Sequence[str]) -> None:
        """Add rows, given by column, and the place of each row in the file."""
        self.labels.extend(cell_words(cells[self.columns.label], self.columns.label, places))
        if self.columns.id:
            self.ids.extend(cell_words(cells[self.columns.id], self.columns.id, places))
        features = [cell_numbers(cells[name], name, places) for name in self.columns.features or ()]
        self.pieces.append(np.stack(features, axis=1))


def cell_words(cells: Sequence[Any], name: str, places: Sequence[str]) -> Iterator[str]:
    """Yield the cells of a column as words; an empty cell is an `InputError`."""
    for cell, place in zip(cells, places):
        if cell is None or not str(cell).strip():
            raise InputError(f"{place}: the column {short_repr(name)} is empty")
        yield sys.intern(str(cell).strip())  # in memory once for all rows that have it


def cell_numbers(cells: Sequence[Any], name: str, places: Sequence[str]) -> np.ndarray:
    """Return the cells of a column as float64; a cell that is no finite number is an `InputError`."""
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


def read_csv(file: Path, columns: Columns, separator: str) -> Table:
    """Read a CSV file whose first line names the columns."""
    with file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(bounded(stream), delimiter=separator, strict=True, skipinitialspace=True)
        try:
            names = [name.strip() for name in next(reader, [])]
            if not names:
                raise InputError("its first line does not name the columns")
            table = Table(file, columns.among(names))
            while part := list(islice(numbered_rows(reader, len(names)), ROWS)):
                places, rows = zip(*part)
                table.add(dict(zip(names, zip(*rows))), places)
        except csv.Error as error:
            raise InputError(f"line {reader.line_num}: {error}") from None
    return table


def bounded(stream: IO[str]) -> Iterator[str]:
    """Yield the lines of a file; one that could fill the memory is an `InputError`."""
    while line := stream.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise InputError(f"a line has {LONGEST_LINE} characters or more")
        yield line


def numbered_rows(reader: Any, width: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the cells of each row."""
    for row in reader:
        if len(row) not in (0, width):  # a blank line is no row
            raise InputError(f"line {reader.line_num} has {len(row)} cells, expected {width}")
        if row:
            yield f"line {reader.line_num}", row


def read_parquet(file: Path, columns: Columns, limit: int | None, arrow: Any) -> Table:
    """Read a Parquet file with `arrow`, the imported pyarrow."""
    with arrow.parquet.ParquetFile(file) as source:
        table = Table(file, columns.among(source.schema_arrow.names))
        features = table.columns.features or ()
        for name in features:
            kind = source.schema_arrow.field(name).type
            if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind)):
                raise InputError(f"the column {short_repr(name)} is of type {kind}; {NUMBER}")
        used = [name for name in (*features, columns.label, columns.id) if name is not None]
        check_unpacked_size(file, 8 * len(used) * source.metadata.num_rows, limit)
        numeric, start = set(features), 1
        for batch in source.iter_batches(ROWS, columns=used):
            cells = {}
            for name, column in ((name, batch.column(name)) for name in used):
                plain = name in numeric and column.null_count == 0
                cells[name] = column.to_numpy(zero_copy_only=False) if plain else column.to_pylist()
            table.add(cells, [f"row {start + i}" for i in range(len(batch))])
            start += len(batch)
    return table
