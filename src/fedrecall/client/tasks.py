"""The tasks of a round: a client's local training, and the evaluation of a model on pooled samples."""

from __future__ import annotations

from typing import NamedTuple

from fedrecall.data.federation import EVERYONE


class TrainTask(NamedTuple):
    """One client's local training. Rounds have many of them."""

    round: int
    order: int  # its place in the sum
    client: int
    lr: float = 0.0
    steps: int = 0  # local steps, if not as many as the settings say
    state_version: int = 0  # the round that wrote the client's state; 0: it has none yet
    probe: bool = False  # also evaluate the client's model on the pooled validation data
    clients: tuple[int, ...] = ()  # of the validation data, only that of these clients; none named: all of it
    cohort: int = 1  # how many clients take part in the round

    def __str__(self) -> str:
        who = "all clients as one," if self.client == EVERYONE else f"client {self.client}"
        return f"{who} in round {self.round}"


class EvaluateTask(NamedTuple):
    """The evaluation of a model on a range of pooled samples."""

    round: int
    order: int
    split: str  # "validation", "test" or "held_out"
    client: int | None = None  # whose own model; None: the published one
    state_version: int = 0
    clients: tuple[int, ...] = ()
    logits: bool = False  # give them back too
    start: int = 0
    stop: int = 0

    def __str__(self) -> str:
        return f"evaluation on {self.split} data in round {self.round}"


Task = TrainTask | EvaluateTask
