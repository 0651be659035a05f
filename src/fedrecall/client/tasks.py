"""The tasks of a round: a client's local training, and the evaluation of a model on pooled samples."""

from __future__ import annotations

from typing import NamedTuple

from fedrecall.data.federation import EVERYONE


class TrainTask(NamedTuple):
    """One client's local training. A named tuple, because rounds have many."""

    round: int
    order: int  # position in the sum
    client: int
    lr: float = 0.0
    steps: int = 0  # number of local steps; 0: as in the settings
    state_version: int = 0  # the round that wrote the client's state; 0 if none
    probe: bool = False  # also evaluate the client's model on the pooled validation data
    clients: tuple[int, ...] = ()  # restricts the validation data to these clients; empty: all
    cohort: int = 1  # number of clients selected for the round

    def __str__(self) -> str:
        who = "all clients as one," if self.client == EVERYONE else f"client {self.client}"
        return f"{who} in round {self.round}"


class EvaluateTask(NamedTuple):
    """The evaluation of a model on a range of pooled samples."""

    round: int
    order: int
    split: str  # "validation", "test" or "held_out"
    client: int | None = None  # evaluate this client's own model; None: the published one
    state_version: int = 0
    clients: tuple[int, ...] = ()
    logits: bool = False  # also return the logits
    start: int = 0
    stop: int = 0

    def __str__(self) -> str:
        return f"evaluation on {self.split} data in round {self.round}"


Task = TrainTask | EvaluateTask
