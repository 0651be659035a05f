"""Data at the server, for the algorithms that need some."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrecall import Federation
from fedrecall.algorithms import ALGORITHMS


def at_the_server(algorithm: str, federation: Federation) -> dict[str, Any]:
    """The keyword of `federate` with a few unlabelled samples; empty for algorithms that need none."""
    if "server_data" not in ALGORITHMS[algorithm].needs:
        return {}
    return {"server_data": np.array(federation.train.x[:12])}
