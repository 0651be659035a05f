"""Text and arrays that may be damaged, or made to harm: parsed within bounds; what is wrong is an `InputError`.

Nothing of ours is deep or refers to itself, so that such a file is refused before anything walks through it.
"""

from __future__ import annotations

import json
import math
import re
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.lib import format as npy

from fedrecall.errors import InputError

MOST_DEPTH = 30
MOST_YAML = 2**17  # characters, which take seconds; a recipe has some thousands
MOST_NODES = 50_000  # in YAML, each counted as often as it is referred to
LARGEST = 2**63  # whole numbers beyond are read as floats, as other readers of JSON do
MOST_UNPACKED = 2**30  # bytes that arrays may unpack to, whatever the size of their file
MOST_PACKING = 100  # else this many times the size of their file


def regular_file(path: Path) -> Path:
    """The path, if it leads to a file: who opens a pipe waits without end. What is not there is an `OSError`."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise InputError("it is a folder")
    if not stat.S_ISREG(mode):
        raise InputError("it is no regular file")
    return path


def reason_of(error: Exception) -> str:
    """Why a file could not be read, in words."""
    if isinstance(error, OSError):
        return error.strerror or "it cannot be read"
    return "it is not text" if isinstance(error, UnicodeDecodeError) else one_line(error)


def one_line(error: object) -> str:
    return " ".join(str(error).split())


def yaml_value(text: str) -> Any:
    """Plain values from YAML. Keys are words; aliases are taken as what they refer to, within bounds."""
    if len(text) > MOST_YAML:
        raise InputError(f"it has more than {MOST_YAML} characters")
    loader = yaml.SafeLoader("")
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        count_values(node, {}, 0)
        return loader.construct_document(node)
    except InputError:
        raise
    except RecursionError:
        raise InputError(f"it is nested more than {MOST_DEPTH} deep") from None
    except Exception as error:  # the parser raises whatever a value that is none leads to
        raise InputError(f"it is not YAML: {one_line(error) or type(error).__name__}") from None
    finally:
        loader.dispose()


def count_values(node: yaml.Node, sizes: dict[int, int], depth: int) -> int:
    """How many values a node stands for, when every alias is written out."""
    if depth > MOST_DEPTH:  # also of what contains itself
        raise InputError(f"it is nested more than {MOST_DEPTH} deep")
    if id(node) not in sizes:
        if node.tag not in PLAIN:
            raise InputError(
                f"it has a value of the type {node.tag.rpartition(':')[2]!r}; quote it, if it is a word"
            )
        inner: list[yaml.Node] = []
        if isinstance(node, yaml.ScalarNode):
            refuse_half_characters(node.value)
        elif isinstance(node, yaml.SequenceNode):
            inner = list(node.value)
        elif isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode) or key.tag not in TEXT:
                    raise InputError(f"it has the key {shown_key(key)}, and keys are words")
                refuse_half_characters(key.value)
                if key.value in keys:
                    raise InputError(f"it has the key {shown_key(key)} twice")
                keys.add(key.value)
                inner.append(value)
        sizes[id(node)] = 1 + sum(count_values(part, sizes, depth + 1) for part in inner)
    if sizes[id(node)] > MOST_NODES:
        raise InputError(f"it stands for more than {MOST_NODES} values")
    return sizes[id(node)]


TAG = "tag:yaml.org,2002:"
TEXT = (f"{TAG}str", f"{TAG}merge")
PLAIN = {f"{TAG}{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map")}


HALF = re.compile(r"\\u[dD]")  # how JSON spells half of a character, and two halves one that has none of its own


def refuse_half_characters(text: str) -> None:
    """An `InputError` for text that can be escaped but not written."""
    if not is_text(text):
        raise InputError("it has half of a character, which is not text")


def is_text(text: str) -> bool:
    """Can it be written in UTF-8? Half characters cannot, nor names of files that are not UTF-8 themselves."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_key(key: yaml.Node) -> str:
    return repr(key.value) if isinstance(key, yaml.ScalarNode) else "of several values"


def json_value(text: str) -> Any:
    """Plain values from JSON, all numbers finite."""
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite, parse_int=_whole)
    except RecursionError:
        raise InputError(f"it is nested more than {MOST_DEPTH} deep") from None
    except ValueError as error:
        raise InputError(f"it is not JSON: {one_line(error)}") from None
    if HALF.search(text):
        refuse_half_characters(json.dumps(value, ensure_ascii=False))
    if text.count("[") + text.count("{") > MOST_DEPTH and deeper(value, MOST_DEPTH):
        raise InputError(f"it is nested more than {MOST_DEPTH} deep")
    return value


def deeper(value: Any, most: int) -> bool:
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
    return int(text) if len(text) < 19 or abs(int(text)) < LARGEST else _finite(text)


def arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file: no pickles, and nothing is unpacked before the headers are found good."""
    try:
        with zipfile.ZipFile(regular_file(path)) as archive:
            members = archive.infolist()
            most = max(MOST_UNPACKED, MOST_PACKING * path.stat().st_size)
            if sum(member.file_size for member in members) > most:
                raise InputError(f"it unpacks to more than {most} bytes")
            for member in members:
                with archive.open(member) as stream:
                    refuse_header(stream, member.file_size)
        with np.load(path, allow_pickle=False) as found:
            return dict(found)
    except InputError:
        raise
    except OSError as error:
        raise InputError(error.strerror or one_line(error)) from None
    except Exception as error:  # numpy and zipfile raise whatever damage leads to
        raise InputError(one_line(error) or type(error).__name__) from None


def refuse_header(stream: Any, size: int) -> None:
    """An array that says it is larger than it is, or that is a pickle."""
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(stream)]
    shape, _, dtype = read(stream)
    if dtype.hasobject:
        raise InputError("it has an array of Python objects, which is a pickle, and pickles are never read")
    if math.prod(shape) * dtype.itemsize > size:
        raise InputError(f"an array of it says that its shape is {shape}, but has {size} bytes")
