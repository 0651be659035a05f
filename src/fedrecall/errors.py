"""Errors that a user can mend: one plain sentence, shown without a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class InputError(ValueError):
    """Bad input. Its message is one sentence: which key, which value, what was expected.

    The command line prints it and leaves with exit code 2.
    """


class WriteError(InputError):
    """A file could not be written, as on a full disk. That too can be mended, and the run goes on from there."""

    remedy = "make room"  # what there is to do before it goes on


class Note(UserWarning):
    """Something that a user should know, and need not mend: the command line prints it as a line."""


class TooFewClientsError(InputError):
    """Fewer clients answered in a round than the recipe asks for. The run can go on when they are back."""


class ClientError(RuntimeError):
    """A client's work failed in a worker process; the message has the round, the client and what happened."""


class DivergedError(RuntimeError):
    """The numbers of a run are no longer finite; the message has the round and the last good state."""


class Interrupted(KeyboardInterrupt):
    """A run was stopped from outside, after a checkpoint; the message says after which round and how to go on."""


def nearest(name: str, candidates: Iterable[str]) -> str:
    """The nearest right name as the end of a sentence, or what there is to choose from.

    >>> nearest("fedavgg", ["fedavg", "scaffold"])
    "did you mean 'fedavg'?"
    >>> nearest("zzz", ["fedavg", "scaffold"])
    'there are: fedavg, scaffold'
    """
    names = sorted(candidates)
    found = get_close_matches(name, names, n=1, cutoff=0.5)
    if found:
        return f"did you mean {found[0]!r}?"
    return f"there are: {', '.join(names)}" if names else "there is none"


def short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


EXPECTED = {  # by the type of pydantic's error, with the names of its context
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type"), "a group of keys"),
    **dict.fromkeys(("string_type", "path_type"), "text"),
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_pattern_mismatch": "text that matches {pattern}",
}
OWN_WORDS = ("value_error", "assertion_error")  # of a check of ours or of the user's, which says what is wrong


def expectation(*errors: ErrorDetails) -> str:
    """Return what was expected in place of the first error's value, as the end of a sentence.

    Several errors about one value are those of the branches of a union.

    >>> expectation({"type": "int_parsing", "loc": (), "msg": "", "input": "x"})
    'expected a whole number'
    """
    first = errors[0]
    if first["type"] in OWN_WORDS:
        return str(first["ctx"]["error"])
    branches = [error for error in errors if error["input"] is first["input"] and error["type"] not in OWN_WORDS]
    return f"expected {' or '.join(dict.fromkeys(map(expected, branches)))}"


def expected(error: ErrorDetails) -> str:
    if error["type"] in EXPECTED:
        return EXPECTED[error["type"]].format(**error.get("ctx", {}))
    return re.sub(r"^\w+ should (be|have) ", "", error["msg"]).split(", ")[0].split(" after validation")[0]
