"""Errors that a user can fix: one plain sentence, shown without a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class InputError(ValueError):
    """Bad input. The command line prints the message, one sentence with the key, the value and what was expected,
    and exits with code 2."""


class WriteError(InputError):
    """A file could not be written, for example on a full disk; the run can be resumed once that is fixed."""

    remedy = "make room"  # what to do before a resume


class Note(UserWarning):
    """A notice that needs no action; the command line prints it as one line."""


class TooFewClientsError(InputError):
    """Fewer clients answered in a round than the recipe requires; the run can be resumed when they are back."""


class ClientError(RuntimeError):
    """A client's work failed in a worker process; the message names the round, the client and the cause."""


class ClusterLostError(ClientError):
    """The cluster that a run trains on has gone; the run can be resumed on another one."""


class DivergedError(RuntimeError):
    """The numbers of a run are no longer finite; the message names the round and the last good state."""


class Interrupted(KeyboardInterrupt):
    """A run was stopped from outside, after a checkpoint; the message names the round and how to resume."""


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return the closest candidate, or else all candidates, as the end of a sentence.

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


EXPECTED = {  # by pydantic's error type; placeholders are keys of its context
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type"), "a group of keys"),
    **dict.fromkeys(("string_type", "path_type"), "text"),
    **dict.fromkeys(("set_type", "frozen_set_type"), "a list"),
    **dict.fromkeys(("callable_type",), "a function"),
    **dict.fromkeys(("literal_error", "enum"), "{expected}"),
    "finite_number": "a finite number",
    "none_required": "null",
    "is_instance_of": "an object of class {class}",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "at least {min_length} entries",
    "too_long": "at most {max_length} entries",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "missing": "one more entry",
    "extra_forbidden": "no such key",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_pattern_mismatch": "text that matches {pattern}",
}
OWN_WORDS = (
    "value_error",
    "assertion_error",
)  # from validators of ours or the user's, with their own message


def expectation(*errors: ErrorDetails) -> str:
    """Return what was expected in place of the first error's value, as the end of a sentence.

    Several errors about one value come from the branches of a union.

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
