"""`fedrecall flower` where Flower is not installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def test_without_the_extra_a_sentence_says_how_to_install_it(
    fedrecall: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrecall.cli.flower.find_spec", lambda name: None)
    done = fedrecall("flower", "init", "anything", "--recipe", "demo")
    assert done.code == 2
    assert done.err == ("fedrecall: error: fedrecall flower needs the extra flower: pip install 'fedrecall[flower]'\n")
