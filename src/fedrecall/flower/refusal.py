"""Messages that are not what a round expects."""

from __future__ import annotations


class RefusedError(ValueError):
    """What came is not used. The sentence goes to the other side too, so it says nothing about anyone's data."""
