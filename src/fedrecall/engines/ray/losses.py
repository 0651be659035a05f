"""The workers and nodes that a run on a cluster has lost, as sentences for its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple


class NodePlace(NamedTuple):
    """A node of the cluster, as it is named in a sentence."""

    node: str  # its id
    host: str

    def __str__(self) -> str:
        """
        >>> str(NodePlace("4f0c21aa93", "10.0.0.2"))
        'node 10.0.0.2 (4f0c21aa)'
        """
        return f"node {self.host} ({self.node[:8]})"


@dataclass
class RoundLosses:
    """The workers that were lost in a round, and the clients that were trained again because of it."""

    workers: Counter[NodePlace] = field(default_factory=Counter)
    clients: int = 0

    def sentence(self, round: int) -> str:
        """
        >>> RoundLosses(Counter({NodePlace("4f0c21aa93", "10.0.0.2"): 2}), 12).sentence(7)
        'round 7 lost 2 workers on the node 10.0.0.2 (4f0c21aa); 12 clients were run again by others'
        """
        lost = " and ".join(f"{counted(number, 'worker')} on the {place}" for place, number in self.workers.items())
        again = f"{counted(self.clients, 'client')} {'was' if self.clients == 1 else 'were'} run again by others"
        return f"round {round} lost {lost or 'updates on the cluster'}" + (f"; {again}" if self.clients else "")


@dataclass
class Losses:
    """The losses of a run."""

    rounds: dict[int, RoundLosses] = field(default_factory=dict)
    dead: dict[NodePlace, int] = field(default_factory=dict)  # nodes that are gone, and the round that lost them

    def worker(self, round: int, place: NodePlace, clients: int) -> None:
        """Add a lost worker with the clients that it had."""
        losses = self.rounds.setdefault(round, RoundLosses())
        losses.workers[place] += 1
        losses.clients += clients

    def updates(self, round: int, clients: int) -> None:
        """Add clients whose updates were lost with the node that stored them."""
        self.rounds.setdefault(round, RoundLosses()).clients += clients

    def unexplained(self) -> set[str]:
        """Return the ids of nodes on which workers were lost and that are not known to be gone."""
        places = {place for losses in self.rounds.values() for place in losses.workers}
        return {place.node for place in places if place not in self.dead}

    def explain(self, gone: Collection[str]) -> None:
        """Note the nodes that are gone, given by their ids."""
        for round, losses in self.rounds.items():
            for place in losses.workers:
                if place.node in gone:
                    self.dead.setdefault(place, round)

    def sentences(self) -> list[str]:
        found = [losses.sentence(round) for round, losses in self.rounds.items()]
        return found + [f"the {place} was lost in round {round}" for place, round in self.dead.items()]


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
