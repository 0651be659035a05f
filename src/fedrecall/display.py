"""Text as terminals and notebooks may have it: names from files can hold what these obey."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


def printable(text: str) -> str:
    r"""One line, with everything escaped that is not seen.

    >>> print(printable("cat\x1b[31m\n"))
    cat\x1b[31m\n
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """The same for text of several lines, which stay apart."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))


def facts_table(title: str, facts: Mapping[str, str]) -> str:
    """A title, and a line for each fact, as HTML.

    >>> facts_table("A <b>", {"clients": "4"})
    '<table><caption>A &lt;b&gt;</caption><tr><th>clients</th><td>4</td></tr></table>'
    """
    rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in facts.items())
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"
