"""What a notebook shows of a thing: a small table, in which whatever comes from a user's files is text."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


def facts_table(title: str, facts: Mapping[str, str]) -> str:
    """A title, and a line for each fact, as HTML.

    >>> facts_table("A <b>", {"clients": "4"})
    '<table><caption>A &lt;b&gt;</caption><tr><th>clients</th><td>4</td></tr></table>'
    """
    rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in facts.items())
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"
