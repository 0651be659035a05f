"""The error for messages that are not what a round expects."""

from __future__ import annotations


class RefusedError(ValueError):
    """A message is not used. The reason is also sent to the other side, so it must not reveal any data."""
