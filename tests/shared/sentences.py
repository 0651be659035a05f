"""What a command must do with bad input: exit with code 2 and say why in one sentence."""

from __future__ import annotations

from typing import Any


def check_one_sentence(finished: Any, named: str) -> None:
    """A sentence on standard error that names this, without another line or anything that a terminal obeys."""
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith("fedrecall: error: ")
    assert finished.err.endswith("\n")
    assert finished.err[:-1].isprintable()
    assert named in finished.err
