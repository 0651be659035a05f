"""The lines of a run's `.jsonl` files, and JSON as it is written here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedrecall.errors import InputError
from fedrecall.safe_parsing import json_value, regular_file

Lines = list[dict[str, Any]]


def as_json(value: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(value, allow_nan=False, indent=indent, ensure_ascii=False)
    except ValueError:
        return json.dumps(finite(value), indent=indent, ensure_ascii=False)


def finite(value: Any) -> Any:
    """JSON knows no NaN: what is not a number is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def as_text(lines: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a `.jsonl` file with these lines, which were read from one."""
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a `.jsonl` file; none if there is no such file."""
    return list(iterate_lines(path)) if path.exists() else []


def lines_until(path: Path, round: int) -> list[dict[str, Any]]:
    """The lines up to a round of a file that a process may have died writing, after that round.

    A line that is not whole before one of them is damage of another kind, which is not passed over.
    """
    found, damaged = [], 0
    for number, text in enumerate(readable(path).read_bytes().split(b"\n"), start=1):
        try:
            line = json_value(text.decode())
            whole = isinstance(line, dict) and type(line.get("round")) is int
        except ValueError:
            whole = False
        if not whole:
            damaged = damaged or number
        elif line["round"] <= round:
            if damaged:
                raise InputError(
                    f"line {damaged} of {str(path)!r} is damaged, and the run goes on after round {round}; put "
                    "the file back from a copy, or take that line out"
                )
            found.append(line)
    return found


def refuse_gaps(path: Path, lines: list[dict[str, Any]], round: int) -> None:
    """The metrics of a run are numbers, in order, and there up to its checkpoint."""
    rounds = [line["round"] for line in lines]
    for line in lines:
        wrong = [key for key, value in line.items() if not is_metric(key, value)]
        if wrong:
            raise InputError(f"{str(path)!r} is damaged: {wrong[0]!r} of round {line['round']} is not a number")
    if rounds != list(range(1, round + 1)):
        raise InputError(
            f"{str(path)!r} is damaged: it does not have the rounds up to {round}, each once and in their order; "
            "put it back from a copy"
        )


def is_metric(key: str, value: Any) -> bool:
    """Numbers, null for those that are not finite, and the clients' ids."""
    return value is None or type(value) in (int, float) or (key == "clients" and isinstance(value, list))


def iterate_lines(path: Path) -> Iterator[dict[str, Any]]:
    with readable(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield json_value(line.decode())
            except ValueError:
                raise InputError(f"line {number} of {str(path)!r} is not JSON") from None


def readable(path: Path) -> Path:
    """The path of a file that is there, or a sentence."""
    try:
        return regular_file(path)
    except InputError as error:
        raise InputError(f"the file {str(path)!r} is damaged: {error}") from None
