"""Read the lines of a run's `.jsonl` files, and convert values to JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedrecall.errors import InputError
from fedrecall.runs import files
from fedrecall.runs.schema import EventLine, MetricsLine, RoundLine, check
from fedrecall.storage.safe_parsing import json_value, reason_of, regular_file

Lines = list[dict[str, Any]]
KINDS: dict[str, type[RoundLine]] = {files.METRICS: MetricsLine, files.EVENTS: EventLine}


def as_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(finite(value), indent=indent, ensure_ascii=False)


def finite(value: Any) -> Any:
    """Return the value with null for NaN and infinity, which JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value


def jsonl_text(lines: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a `.jsonl` file with these lines, which are valid JSON already."""
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def read_lines(path: Path, *, unfinished: bool = False) -> Lines:
    """Return the lines of a `.jsonl` file; none if there is no such file.

    In an `unfinished` run, a partial last line is left out.
    """
    lines: Lines = []
    *texts, last = content_of(path).split(b"\n")
    if last and not unfinished:
        texts.append(last)
    for number, text in enumerate(texts, start=1):
        try:
            lines.append(json_value(text.decode()))
        except ValueError:
            raise InputError(f"line {number} of {str(path)!r} is not JSON") from None
    return lines


def lines_until(path: Path, round: int) -> Lines:
    """Return the lines of a file up to a round; a killed process may have damaged later ones.

    Raise an `InputError` for a damaged line before one of them.
    """
    kind = KINDS.get(path.name, RoundLine)
    lines: Lines = []
    damaged = 0
    for number, text in enumerate(content_of(path).split(b"\n"), start=1):
        try:
            line = json_value(text.decode())
            check("it", line, kind)
        except ValueError:
            damaged = damaged or number
            continue
        if line["round"] <= round:
            if damaged:
                raise InputError(
                    f"line {damaged} of {str(path)!r} is damaged, and the run goes on after round {round}; put "
                    "the file back from a copy, or take that line out"
                )
            lines.append(line)
    return lines


def refuse_gaps(path: Path, lines: Lines, round: int) -> None:
    """Raise an `InputError` unless the lines are those of all rounds up to this one, in order."""
    if [line["round"] for line in lines] != list(range(1, round + 1)):
        raise InputError(
            f"{str(path)!r} is damaged: it does not have the rounds up to {round}, each once and in their order; "
            "put it back from a copy"
        )


def content_of(path: Path) -> bytes:
    """Return the content of a regular file; empty if there is none."""
    try:
        return regular_file(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except (OSError, InputError) as error:
        raise InputError(f"the file {str(path)!r} is damaged: {reason_of(error)}") from None
