"""What an engine is: it runs the tasks of a round where the data lives.

The traits say what others must know of it; nothing asks an engine for its name to decide something.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from fedrecall.client.job import Job
from fedrecall.client.partial_sums import Contribution, Result
from fedrecall.client.predictions import EvaluateResult
from fedrecall.client.tasks import Task, TrainTask
from fedrecall.client.update import Missing
from fedrecall.data.federation import Federation
from fedrecall.device import CPU, Device
from fedrecall.recipe.settings import Execution
from fedrecall.runs.client_states import StateFiles, States
from fedrecall.vector import Tensors


class Engine(ABC):
    """One file with a subclass, and one line in `ENGINES`."""

    name: ClassVar[str]
    own_rounding: ClassVar[bool] = False  # its bits are not those of `serial`, so it counts in the recipe's hash
    replaces_workers: ClassVar[bool] = False  # a worker that dies or hangs is replaced, and its tasks run again
    leaves_out_clients: ClassVar[bool] = False  # one that does not answer in time; a round goes on without it
    records_steps: ClassVar[bool] = False  # before round 1, so that the model's forward pass must not change
    in_this_process: ClassVar[bool] = True  # user code runs here, where breakpoint() works
    elsewhere: ClassVar[bool] = False  # workers may be on other machines, with other devices than this one has
    most_workers: ClassVar[int | None] = None

    workers: int = 1
    devices: Sequence[Device] = (CPU,)  # where its workers train
    failed: Task | None = None  # whose work raised what `run` raises
    resume_command: str | None = None  # how its runs are resumed, if not by `fedrecall resume`
    notes: Sequence[str] = ()  # what the user should know of where it runs
    nodes: Sequence[Mapping[str, Any]] = ()  # the environments of other machines that it runs on

    @classmethod
    @abstractmethod
    def create(cls, workers: int, execution: Execution, devices: Sequence[Device] = (CPU,)) -> Self:
        """An engine of so many workers on these devices; nothing is started yet."""

    @classmethod  # noqa: B027
    def check(cls, execution: Execution) -> None:
        """An `InputError` if what the settings ask for is not there, as far as that is seen before a run."""

    @classmethod
    def why_not(cls, job: Job) -> str | None:
        """The reason why this engine cannot run a job; None if it can."""
        return None

    def states_below(self, folder: Path) -> StateFiles:
        """Where its clients' states are, for a run that keeps its own in a folder."""
        return StateFiles(folder)

    @abstractmethod
    def open(self, job: Job, federation: Federation, states: States) -> None: ...

    @abstractmethod
    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        """Make this the state that the tasks which follow start from or evaluate."""

    @abstractmethod
    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield the results in the order of the tasks. Their tensors are the receiver's own."""

    def train(self, tasks: Sequence[TrainTask], *, track_updates: bool) -> Iterator[Contribution | Missing]:
        """Yield what a round's clients come to together; `track_updates`: how their updates lie, too.

        Like `run`, but an engine may add some results up where clients trained, and tensors are good only until
        the next result is asked for.
        """
        for result in self.run(tasks):
            assert not isinstance(result, EvaluateResult)
            yield result

    @abstractmethod
    def close(self) -> None: ...

    @property
    def rounding(self) -> str:
        """The word for this engine in a recipe's hash: none, where it has the bits of `serial`."""
        return self.name if self.own_rounding else ""
