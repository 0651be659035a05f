"""Parse untrusted YAML, JSON and arrays within bounds; raise an `InputError` for bad content."""

from __future__ import annotations

import json
import math
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.lib import format as npy

from fedrecall.errors import InputError

MOST_DEPTH = 30
MOST_YAML = 2**17  # characters, which take seconds to parse; a recipe has some thousands
LARGEST = 2**63  # larger integers are read as floats, as in other JSON readers
MOST_UNPACKED = 2**30  # bytes that the arrays of any file may unpack to
MOST_PACKING = 100  # times the file size that larger arrays may unpack to

TAG = "tag:yaml.org,2002:"
PLAIN = {f"{TAG}{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map")}
TOO_DEEP = f"it is nested more than {MOST_DEPTH} deep"


def regular_file(path: Path) -> Path:
    """Return the path of a regular file; opening a pipe would block. Raise an `OSError` for a missing file."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise InputError("it is a folder")
    if not stat.S_ISREG(mode):
        raise InputError("it is no regular file")
    return path


def reason_of(error: Exception) -> str:
    """Return why a file could not be read, in words."""
    if isinstance(error, OSError):
        return error.strerror or "it cannot be read"
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    return " ".join(str(error).split()) or type(error).__name__


def is_text(text: str) -> bool:
    """Whether UTF-8 can encode the text: it has no lone surrogates, as a file's name may have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_half_characters(text: str) -> None:
    """Raise an `InputError` for text with a lone surrogate, which can be escaped but not written."""
    if not is_text(text):
        raise InputError("it has half of a character, which is not text")


class PlainLoader(yaml.SafeLoader):
    """Load plain values with unique string keys; refuse anchors and aliases."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if event.anchor is not None:
            raise InputError(f"it has the anchor or alias {event.anchor!r}; write the value out in each place")
        if isinstance(event, yaml.ScalarEvent):
            refuse_half_characters(event.value)
        if self.depth > MOST_DEPTH:
            raise InputError(TOO_DEEP)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        if node is not None and node.tag not in PLAIN:
            kind = node.tag.rpartition(":")[2]
            raise InputError(f"it has a value of the type {kind!r}; quote it, if it is a word")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if key.tag != f"{TAG}str":
                shown = repr(key.value) if isinstance(key, yaml.ScalarNode) else "of several values"
                raise InputError(f"it has the key {shown}, and keys are words")
            if key.value in seen:
                raise InputError(f"it has the key {key.value!r} twice")
            seen.add(key.value)
        return node


def yaml_value(text: str) -> Any:
    """Return the plain values of a YAML document."""
    if len(text) > MOST_YAML:
        raise InputError(f"it has more than {MOST_YAML} characters")
    try:
        return yaml.load(text, PlainLoader)
    except InputError:
        raise
    except Exception as error:  # the parser raises any exception for malformed values
        raise InputError(f"it is not YAML: {reason_of(error)}") from None


def json_value(text: str) -> Any:
    """Return the plain values of a JSON document; refuse numbers that are not finite."""
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite, parse_int=_whole)
    except RecursionError:
        raise InputError(TOO_DEEP) from None
    except ValueError as error:
        raise InputError(f"it is not JSON: {reason_of(error)}") from None
    if deeper(value, MOST_DEPTH):
        raise InputError(TOO_DEEP)
    if "\\u" in text:  # an escape may be a lone surrogate
        refuse_half_characters(json.dumps(value, ensure_ascii=False))
    return value


def deeper(value: Any, most: int) -> bool:
    """Whether lists and dictionaries are nested deeper than `most`."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return most < 0 or any(deeper(part, most - 1) for part in inner if isinstance(part, dict | list))


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _whole(text: str) -> int | float:
    value = int(text)
    return value if abs(value) < LARGEST else _finite(text)


def arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an `.npz` file; refuse pickles and oversized archives."""
    found = {}
    try:
        with zipfile.ZipFile(regular_file(path)) as archive:
            members = archive.infolist()
            most = max(MOST_UNPACKED, MOST_PACKING * path.stat().st_size)
            if sum(member.file_size for member in members) > most:
                raise InputError(f"it unpacks to more than {most} bytes")
            for member in members:
                with archive.open(member) as stream:
                    found[member.filename.removesuffix(".npy")] = npy.read_array(stream, allow_pickle=False)
    except Exception as error:  # numpy and zipfile raise any exception for damage, even a MemoryError
        raise InputError(reason_of(error)) from None
    return found
