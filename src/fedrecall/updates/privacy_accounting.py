"""The privacy that noisy sums of a run cost: epsilon at a delta, by Renyi differential privacy."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from fedrecall.display import quiet_logger
from fedrecall.errors import InputError


@dataclass(frozen=True)
class NoisySums:
    """One noisy sum a round over clients that are chosen anew each round.

    The relation says which federations are neighbours: `add-or-remove-one` client changes a sum by at most C,
    `replace-one` by at most 2 C, so that noise of z C then counts as a multiplier of z / 2.
    """

    noise_multiplier: float  # z
    relation: str
    sampling: str  # "poisson", "without-replacement" or "no-amplification"
    chosen: float = 1.0  # the probability of each client, or the fixed number of clients in a round
    population: int = 1

    def epsilon(self, rounds: int, delta: float) -> float:
        """Return the epsilon of the first `rounds` rounds; it grows with them."""
        if rounds == 0:
            return 0.0
        event, rdp = load_accountant()
        # Noise over sensitivity; a client's absence from some rounds never costs more than its presence in all.
        gaussian = event.GaussianDpEvent(self.noise_multiplier / (2.0 if self.relation == "replace-one" else 1.0))
        with quiet_logger(
            logging.getLogger("absl"), logging.ERROR
        ):  # it notes each order that it leaves out of the minimum
            releases = gaussian, self._sampled(event, gaussian)
            return min(self._spent(rdp, release, rounds, delta) for release in releases)

    def _spent(self, rdp: Any, release: Any, rounds: int, delta: float) -> float:
        relation = getattr(rdp.rdp_privacy_accountant.NeighborRel, self.relation.replace("-", "_").upper())
        accountant = rdp.RdpAccountant(neighboring_relation=relation)
        accountant.compose(release, rounds)
        return float(accountant.get_epsilon(delta))

    def _sampled(self, event: Any, gaussian: Any) -> Any:
        """Return a round as the accountant describes it."""
        if self.sampling == "poisson":
            return event.PoissonSampledDpEvent(self.chosen, gaussian)
        if self.sampling == "without-replacement":
            return event.SampledWithoutReplacementDpEvent(self.population, int(self.chosen), gaussian)
        return gaussian

    def affordable_rounds(self, most: int, delta: float, max_epsilon: float) -> int:
        """Return how many of `most` rounds cost at most `max_epsilon`."""
        low, high = 0, most
        while low < high:
            middle = math.ceil((low + high) / 2)
            low, high = (middle, high) if self.epsilon(middle, delta) <= max_epsilon else (low, middle - 1)
        return low


def load_accountant() -> tuple[Any, Any]:
    """Return the modules of dp-accounting that describe and add up private releases."""
    try:
        from dp_accounting import dp_event, rdp
    except ImportError:
        raise InputError(
            "updates has the stage 'dp', whose epsilon needs the extra privacy: pip install 'fedrecall[privacy]'"
        ) from None
    return dp_event, rdp
