"""How a refusal looks to a user: one place that knows its form, for all tests that meet one."""

from __future__ import annotations

from typing import Any


def check_one_sentence(finished: Any, *named: str, silent: bool = True) -> None:
    """Check that a command was refused by one plain sentence with each of these texts; `silent`: it printed no more."""
    assert finished.code == 2, finished.err
    assert not (silent and finished.out)
    assert finished.err.startswith("fedrecall: error: ")
    assert finished.err.endswith("\n")
    assert finished.err[:-1].isprintable()  # no other line, and nothing that a terminal obeys
    for text in named:
        assert text in finished.err
