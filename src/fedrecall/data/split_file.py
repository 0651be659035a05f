"""A partition from a file: the samples of each client, as others publish their splits."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.random import Generator

from fedrecall.data.partition import HeldOut, Ids, Partition, Seed, Validation
from fedrecall.data.partition_draws import Ints
from fedrecall.data.sources.own_files import name_errors, own_path
from fedrecall.errors import InputError, short_repr
from fedrecall.storage.safe_parsing import json_value, regular_file

LARGEST = 2**28  # bytes
KEY = re.compile(r"([{,]\s*)(\d+)(\s*:)")  # of a dictionary as Python prints it
LINE = re.compile(r"\[?[\d\s,]*\]?,?")
SHAPE = "a list of sample numbers for each client was expected"


@dataclass(frozen=True)
class SplitFile(Partition):
    """The clients' samples from a file, as lists of positions in the training data that count from 0.

    One list a line, JSON ([[3, 1], [0]] or {"0": [3, 1], ..}), or a dictionary as Python prints it. Samples in no
    list stay unassigned.
    """

    path: Annotated[str, "the file, in the working folder or below the data folder (--data)"]
    validation: Validation = 0.1
    seed: Seed = 0
    held_out: HeldOut = 0
    folder: str | Path | None = None  # the data folder

    def deal(self, rng: Generator, labels: Ints, num_classes: int, ids: Ids) -> tuple[Ints, Ints]:
        file = self._file()
        with name_errors(f"the split file {str(file)!r}"):
            lists = [np.array(numbers, np.int64) for numbers in client_lists(read_text(file))]
            check_lists(lists, len(labels))
        return np.concatenate(lists), np.array([len(numbers) for numbers in lists])

    def description(self) -> dict[str, Any]:
        digest = hashlib.sha256(self._file().read_bytes()).hexdigest()
        return {"name": "split_file", "folder": None, "sha256": digest[:16]}

    def _file(self) -> Path:
        return own_path("partition.path", self.path, self.folder)


def read_text(file: Path) -> str:
    size = regular_file(file).stat().st_size
    if size > LARGEST:
        raise InputError(f"it has {size} bytes; at most {LARGEST} were expected")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"it is not text in UTF-8; {SHAPE}") from None


def client_lists(text: str) -> list[list[int]]:
    """Return the list of each client.

    >>> client_lists("[3, 1]\\n[0]"), client_lists("3 1\\n0"), client_lists("{1: [0], 0: [3, 1]}")
    ([[3, 1], [0]], [[3, 1], [0]], [[3, 1], [0]])
    """
    try:
        found = json_value(KEY.sub(r'\1"\2"\3', text))
    except InputError:  # as lines, of which each may be JSON, are not
        found = None
    if isinstance(found, dict):
        found = in_order(found)
    if isinstance(found, list) and found and all(map(is_numbers, found)):
        return found
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not all(map(LINE.fullmatch, lines)):
        raise InputError(f"it begins with {short_repr(text[:40])}; {SHAPE}")
    return [[int(number) for number in re.findall(r"\d+", line)] for line in lines]


def in_order(lists: dict[str, Any]) -> list[Any]:
    """Return the values of a dictionary whose keys are the clients' numbers."""
    missing = [number for number in range(len(lists)) if str(number) not in lists]
    if missing:
        raise InputError(
            f"it has {len(lists)} clients, but none with number {missing[0]}; numbers from 0 were expected"
        )
    return [lists[str(number)] for number in range(len(lists))]


def is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int for number in value)


def check_lists(lists: Sequence[Ints], samples: int) -> None:
    """Raise an `InputError` if a client has no samples, or a sample has no or several places."""
    if not lists:
        raise InputError(f"it is empty; {SHAPE}")
    for client, numbers in enumerate(lists):
        if not len(numbers):
            raise InputError(f"client {client} has no samples; at least one was expected")
        for number in (numbers.min(), numbers.max()):
            if not 0 <= number < samples:
                raise InputError(
                    f"client {client} has sample {number}, but the training data have {samples}; numbers from 0 to "
                    f"{samples - 1} were expected"
                )
    every = np.concatenate(lists)
    times = np.bincount(every)
    if times.max() > 1:
        twice = int(times.argmax())
        holders = [client for client, numbers in enumerate(lists) if (numbers == twice).any()]
        where = f"client {holders[0]} twice" if len(holders) == 1 else f"clients {holders[0]} and {holders[1]}"
        raise InputError(f"sample {twice} is listed for {where}; one client for each was expected")
