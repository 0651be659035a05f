from __future__ import annotations

from collections.abc import Callable


def cached_object(name: str, compile: Callable[[], bytes]) -> bytes:
    return compile()
