"""Text for terminals and notebooks: escaped, because names from files may hold control characters or HTML."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape


def printable(text: str) -> str:
    r"""Return the text with non-printable characters escaped.

    >>> print(printable("cat\x1b[31m\n"))
    cat\x1b[31m\n
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Return the text with each line escaped by `printable`."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))


def count_of(count: int, thing: str) -> str:
    """Return a number of things.

    >>> count_of(1, "run"), count_of(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def facts_table(title: str, facts: Mapping[str, str]) -> str:
    """Return an HTML table with a title and a row for each fact.

    >>> facts_table("A <b>", {"clients": "4"})
    '<table><caption>A &lt;b&gt;</caption><tr><th>clients</th><td>4</td></tr></table>'
    """
    rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in facts.items())
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"


@contextmanager
def quiet_logger(logger: logging.Logger, level: int) -> Iterator[None]:
    """Let a library's logger pass lines of this level and above; restore its own level on exit."""
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
