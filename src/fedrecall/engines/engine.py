"""The interface of engines, which run the tasks of a round where the data is stored.

Other modules decide by an engine's traits, never by its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from fedrecall.backend.device import CPU, Device
from fedrecall.client.job import Job
from fedrecall.client.partial_sums import Contribution, Result
from fedrecall.client.predictions import EvaluateResult
from fedrecall.client.tasks import Task, TrainTask
from fedrecall.client.update import MissingClient
from fedrecall.core.vector import Tensors
from fedrecall.data.federation import Federation
from fedrecall.recipe.settings import Execution
from fedrecall.runs.client_states import StateFiles, States


class Engine(ABC):
    """Base class of the engines."""

    name: ClassVar[str]
    own_rounding: ClassVar[bool] = False  # bits differ from `serial`, so its name enters the recipe's digest
    replaces_workers: ClassVar[bool] = False  # replaces a worker that dies or hangs, and runs its tasks again
    leaves_out_clients: ClassVar[bool] = False  # a round continues without clients that do not answer in time
    records_steps: ClassVar[bool] = False  # records steps before round 1; later, the forward pass must not change
    in_this_process: ClassVar[bool] = True  # user code runs in this process, where breakpoint() works
    elsewhere: ClassVar[bool] = False  # workers may be on other machines, with devices that this one lacks
    most_workers: ClassVar[int | None] = None

    workers: int = 1
    devices: Sequence[Device] = (CPU,)  # the devices that its workers train on
    failed: Task | None = None  # the task that raised the exception of `run`
    resume_command: str | None = None  # command that resumes its runs, if not `fedrecall resume`
    resume_with: str = ""  # command that resumes the run at hand, for an engine that may end with this process
    notes: Sequence[str] = ()  # notes for the user on where it runs
    nodes: Sequence[Mapping[str, Any]] = ()  # environments of the other machines that it runs on

    @classmethod
    @abstractmethod
    def create(cls, workers: int, execution: Execution, devices: Sequence[Device] = (CPU,)) -> Self:
        """Return an engine with this many workers on these devices, without starting them."""

    @classmethod  # noqa: B027
    def check(cls, execution: Execution) -> None:
        """Raise an `InputError` if something that the settings need is known to be missing before the run."""

    @classmethod
    def why_not(cls, job: Job) -> str | None:
        """Return why this engine cannot run a job; None if it can."""
        return None

    def states_below(self, folder: Path) -> StateFiles:
        """Return the store of the clients' states, for a run that keeps its own in `folder`."""
        return StateFiles(folder)

    @abstractmethod
    def open(self, job: Job, federation: Federation, states: States) -> None: ...

    @abstractmethod
    def publish(self, round: int, server: Tensors, buffers: Tensors) -> None:
        """Set the state that the following tasks start from or evaluate."""

    @abstractmethod
    def run(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield the results in the order of the tasks. The receiver owns their tensors."""

    def train(self, tasks: Sequence[TrainTask], *, track_updates: bool) -> Iterator[Contribution | MissingClient]:
        """Like `run`, but may yield partial sums, and tensors are valid only until the next result is requested.

        `track_updates` also asks for update norms and cosines.
        """
        for result in self.run(tasks):
            assert not isinstance(result, EvaluateResult)
            yield result

    @abstractmethod
    def close(self) -> None: ...

    @property
    def rounding(self) -> str:
        """Return the engine's name in a recipe's digest; empty if it has the bits of `serial`."""
        return self.name if self.own_rounding else ""
