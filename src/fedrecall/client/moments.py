"""An optimiser's moments between rounds: at the client (`state: keep`) or at the server (`state: average`)."""

from __future__ import annotations

from fedrecall.core.vector import Tensors
from fedrecall.optimisers import Optimiser

PREFIX = "optimiser."  # of their names in the state of a client or of the server


def with_moment_prefix(moments: Tensors) -> Tensors:
    """Return the moments by the names that they have in a state."""
    return {f"{PREFIX}{name}": tensor for name, tensor in moments.items()}


def moments_in(state: Tensors) -> Tensors:
    """Return the moments in a state, by the optimiser's names."""
    return {name.removeprefix(PREFIX): tensor for name, tensor in state.items() if name.startswith(PREFIX)}


def stored_moments(optimiser: Optimiser, server: Tensors, client: Tensors) -> Tensors:
    """Return the moments that a client continues with, from the broadcast or its own state; none if it has none."""
    return moments_in({"keep": client, "average": server}.get(optimiser.state, {}))
