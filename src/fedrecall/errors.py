"""Errors that a user can mend: one plain sentence, shown without a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


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
