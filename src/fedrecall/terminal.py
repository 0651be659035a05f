"""Text as a terminal may have it: names from files can hold what a terminal obeys."""

from __future__ import annotations


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
