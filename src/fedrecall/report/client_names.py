"""Names of clients for readers: their own names if they have some, else their numbers.

Names are the user's data. They come out on one line, printable and short; each output escapes them for itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedrecall.runs.reader import RunRecord

LONGEST = 40  # characters of a name
LONGEST_TICK = 14


def printable_line(name: str) -> str:
    """Return a name from a user's file on one line, with `?` for unprintable characters."""
    return "".join(sign if sign.isprintable() else "?" for sign in " ".join(name.split()))


def client_names(run: RunRecord) -> list[str]:
    """Return the names of a run's clients; empty if they have numbers only."""
    names = run.card.get("client_names")
    return [str(name) for name in names] if isinstance(names, list) else []


def short_client_name(names: Sequence[str], client: int, longest: int = LONGEST_TICK) -> str:
    """Return the name for a narrow place, as a tick on an axis; the number of a client without a name."""
    if not 0 <= client < len(names):
        return str(client)
    name = printable_line(names[client])
    if name.isdecimal():  # or it would be taken for the number
        name = f"id {name}"
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def client_title(names: Sequence[str], client: int) -> str:
    """Return `Basel (client 3)`, or `client 3` for a client without a name.

    >>> client_title(["Basel", "17"], 0), client_title(["Basel", "17"], 1), client_title([], 1)
    ('Basel (client 0)', 'id 17 (client 1)', 'client 1')
    """
    if not 0 <= client < len(names):
        return f"client {client}"
    return f"{short_client_name(names, client, LONGEST)} (client {client})"
