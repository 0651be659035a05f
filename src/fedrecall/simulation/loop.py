"""The run loop: from an empty folder or a checkpoint to the summary, however the run ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fedrecall.backend.torch_state import fixed_torch_state
from fedrecall.errors import (
    ClientError,
    ClusterLostError,
    DivergedError,
    InputError,
    Interrupted,
    TooFewClientsError,
    WriteError,
)
from fedrecall.measure.live_round import Observer
from fedrecall.runs import files
from fedrecall.runs.checkpoint import Checkpoint
from fedrecall.runs.client_states import StateTable
from fedrecall.runs.folder import RunFolder
from fedrecall.simulation.experiment import Experiment
from fedrecall.simulation.failure_advice import add_advice, how_to_resume
from fedrecall.simulation.recorder import Recorder
from fedrecall.simulation.round import first_state, play_round
from fedrecall.simulation.signals import noted_signals
from fedrecall.user_code import their_traceback


@fixed_torch_state()
def run_experiment(
    experiment: Experiment,
    folder: RunFolder,
    observers: Sequence[Observer] = (),
    start: Checkpoint | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Run all rounds in an empty folder, or those after a checkpoint; return the summary.

    `observers` see the end of a round once it is recorded. A stopped run can be resumed after its last full round.
    """
    return RunLifecycle(experiment, folder, observers, start).live(notes)


class RunLifecycle:
    """One run of an experiment in a folder, from start to end."""

    def __init__(
        self, experiment: Experiment, folder: RunFolder, observers: Sequence[Observer], start: Checkpoint | None
    ) -> None:
        self.experiment, self.recipe, self.engine = experiment, experiment.recipe, experiment.engine
        self.folder, self.observers = folder, observers
        self.states = StateTable(self.engine.states_below(folder.path / files.STATES))
        self.recorder = Recorder(experiment, folder, self.states, first_state(experiment, start), start)

    def live(self, notes: Sequence[str]) -> dict[str, Any]:
        """Play the remaining rounds and return the summary."""
        began, ending, unwritten = time.perf_counter(), "failed", None
        self._begin(notes)
        try:
            with noted_signals() as signals:
                for observer in self.observers:
                    observer.started(self.recipe.tree(), self.folder.path)
                self._rounds()
            self.recorder.evaluate_kept()
            self.recorder.evaluate_personal()
            ending = "finished"
        except KeyboardInterrupt as error:
            if self.engine.failed is not None and not signals.seen:
                raise self._ended_by_user_code(error) from None
            ending = "interrupted"
            done = self.recorder.done.round
            raise Interrupted(f"stopped after round {done}; go on with: {self._resume()}") from None
        except WriteError as error:
            unwritten = error
        except DivergedError as error:
            ending = "diverged"
            last = self.recorder.done.round
            raise DivergedError(f"{error}; the last good state is that of round {last}") from None
        except TooFewClientsError as error:
            raise TooFewClientsError(f"{error}; when they are back, go on with: {self._resume()}") from None
        except ClusterLostError as error:
            where = "--ray-address HOST:PORT if it is at another address"
            again = f"when there is one again, go on with: {self._resume()} ({where})"
            raise ClusterLostError(f"{error}; {again}") from None
        except InputError:
            raise
        except (SystemExit, EOFError, BrokenPipeError) as error:  # callers take these for a normal exit
            raise self._ended_by_user_code(error) from None
        except Exception as error:
            self._add_advice(error)
            raise
        finally:
            summary = self._end(ending, time.perf_counter() - began, unwritten)
            for observer in self.observers:
                observer.finished(summary)
        return summary

    def _begin(self, notes: Sequence[str]) -> None:
        self.folder.lock()
        try:
            self.recorder.begin(notes)
            self.engine.resume_with = self._resume()
            self.engine.open(self.experiment.job, self.experiment.federation, self.states.files)
            try:
                self.recorder.opened()
            except BaseException:
                self.engine.close()
                raise
        except BaseException:
            self.folder.close()
            raise

    def _rounds(self) -> None:
        recorder, watching = self.recorder, [self.recorder, *self.observers]
        while recorder.done.round < self.recipe.rounds and not recorder.best.patience_is_over:
            _, live = play_round(self.experiment, recorder.done, self.states, watching)
            for observer in watching:
                observer.after(live)

    def _end(self, ending: str, seconds: float, unwritten: WriteError | None) -> dict[str, Any]:
        """Save all completed rounds, however the run ended; return the summary."""
        self.engine.close()
        self.states.roll_back()  # undoes an unfinished round
        summary: dict[str, Any] = {}
        try:
            summary = self.recorder.end(ending, seconds)
        except WriteError as error:
            unwritten = unwritten or error  # the first error says more
        self.folder.close()
        if unwritten:
            raise WriteError(f"{unwritten}; {unwritten.remedy} and go on with: {self._resume()}")
        return summary

    def _resume(self) -> str:
        return how_to_resume(self.recipe, self.folder.path, self.engine)

    def _ended_by_user_code(self, error: BaseException) -> ClientError:
        """Return a `ClientError` for an exception of user code that would end the process quietly."""
        where = self.engine.failed or f"the main process, in round {self.recorder.done.round + 1},"
        failure = ClientError(f"{where} was ended by {type(error).__name__}:\n\n{their_traceback(error).rstrip()}")
        self._add_advice(failure)
        return failure

    def _add_advice(self, error: BaseException) -> None:
        add_advice(error, self.recorder.done.round + 1, self.engine, self.folder.path, self.recipe)
