"""The life of a run: from an empty folder or a checkpoint to its end, whatever that is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedrecall.client.lanes.decision import advice_on_steps
from fedrecall.data.card import card
from fedrecall.errors import ClientError, DivergedError, InputError, Interrupted, TooFewClientsError, WriteError
from fedrecall.measure.metrics import pooled_metrics
from fedrecall.measure.watcher import Watcher
from fedrecall.recipe.own_code import own_code
from fedrecall.runs import checkpoint, files, ledger
from fedrecall.runs.checkpoint import Checkpoint
from fedrecall.runs.client_states import StateTable
from fedrecall.runs.environment import environment
from fedrecall.runs.folder import RunFolder
from fedrecall.runs.lines import read_lines
from fedrecall.runs.reader import RunRecord, has_partition
from fedrecall.runs.records import changed_since
from fedrecall.simulation.early_stopping import Best
from fedrecall.simulation.failure_advice import add_advice, how_to_resume
from fedrecall.simulation.journal import Journal
from fedrecall.simulation.origin import describe_origin
from fedrecall.simulation.round import Experiment
from fedrecall.simulation.signals import noted_signals
from fedrecall.simulation.summary import summarise
from fedrecall.torch_state import fixed_torch_state
from fedrecall.user_code import their_traceback
from fedrecall.vector import Tensors


@fixed_torch_state()
def carry_out(
    experiment: Experiment,
    folder: RunFolder,
    callbacks: Sequence[Watcher] = (),
    start: Checkpoint | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Run all rounds in an empty folder, or those after a checkpoint; `callbacks` watch, and are told of a round
    when it is done and saved.

    Returns the summary. Whatever stops it, the rounds that are done stay resumable.
    """
    return Loop(experiment, folder, callbacks, start).through(notes)


class Loop:
    """One experiment in one folder."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        callbacks: Sequence[Watcher],
        start: Checkpoint | None,
    ) -> None:
        self.experiment, self.recipe, self.engine = experiment, experiment.recipe, experiment.engine
        self.folder, self.journal, self.callbacks = folder, Journal(folder), callbacks
        self.states = StateTable(self.engine.states_below(folder.path / files.STATES))
        self.resumed = start is not None
        self.done = experiment.first_state(start)  # the state after the last round that is done
        self.saved = self.done.round
        self.best = Best(self.recipe.stop)
        self.best_model = start.best if start else {}  # of an earlier round, with `keep: best`
        self.kept: dict[str, Any] = {}
        self.unwritten: WriteError | None = None

    def through(self, notes: Sequence[str]) -> dict[str, Any]:
        """All rounds that are left, and the end."""
        began, ending = time.perf_counter(), "failed"
        self._begin(notes)
        try:
            with noted_signals() as signals:
                self._rounds()
            self.kept = self._about_kept()
            ending = "finished"
        except KeyboardInterrupt as error:
            if self.engine.failed is not None and not signals.seen:
                raise self._ended_by_user_code(error) from None
            ending = "interrupted"
            raise Interrupted(f"stopped after round {self.done.round}; go on with: {self._resume()}") from None
        except WriteError as error:
            self.unwritten = error
        except DivergedError as error:
            ending = "diverged"
            raise DivergedError(f"{error}; the last good state is that of round {self.done.round}") from None
        except TooFewClientsError as error:
            raise TooFewClientsError(f"{error}; when they are back, go on with: {self._resume()}") from None
        except InputError:
            raise
        except (SystemExit, EOFError, BrokenPipeError) as error:  # which others take for a way to end
            raise self._ended_by_user_code(error) from None
        except Exception as error:
            add_advice(error, self.done.round + 1, self.engine, self.folder.path, self.recipe)
            raise
        finally:
            summary = self._end(ending, began)
        return summary

    def _ended_by_user_code(self, error: BaseException) -> ClientError:
        """An exception that ends processes quietly, as the failure that it is."""
        where = self.engine.failed or f"the main process, in round {self.done.round + 1},"
        failure = ClientError(f"{where} was ended by {type(error).__name__}:\n\n{their_traceback(error).rstrip()}")
        add_advice(failure, self.done.round + 1, self.engine, self.folder.path, self.recipe)
        return failure

    def _begin(self, notes: Sequence[str]) -> None:
        self.folder.lock()
        try:
            if self.resumed:
                self._recall()
            else:
                self._describe()
            for note in notes:
                self.journal.warn(self.done.round, note)
            self.engine.open(self.experiment.job, self.experiment.federation, self.states.files)
            try:
                if self.engine.nodes and not self.resumed:
                    self._write_environment()
                self.folder.records.recall()
            except BaseException:
                self.engine.close()
                raise
        except BaseException:
            self.folder.close()
            raise

    def _rounds(self) -> None:
        saved_at = time.perf_counter()
        for t in range(self.done.round + 1, self.recipe.rounds + 1):
            if self.best.patience_is_over:
                return
            if self.recipe.keep == "best" and 0 < self.best.round == self.done.round:
                self.best_model = self._model()  # the state after the next round has it no longer
            self.done, round = self.experiment.round(self.done, self.states, self.journal, self.callbacks)
            self.best.see(round.line)
            if t == self.recipe.rounds or self.recipe.checkpoint.due(t, time.perf_counter() - saved_at):
                self._save()
                saved_at = time.perf_counter()
            for callback in self.callbacks:
                callback.after(round)

    def _end(self, ending: str, began: float) -> dict[str, Any]:
        """Leave all that is done on disk, however it ended."""
        self.engine.close()
        self.states.roll_back()  # of a round that was not done
        summary: dict[str, Any] = {}
        try:
            if ending != "finished":  # then workers may have been killed while they wrote
                self.states.files.remove_leftovers()
            if self.done.round > self.saved:
                self._save()
            summary = self._summary(ending, time.perf_counter() - began)
        except WriteError as error:
            self.unwritten = self.unwritten or error  # what went wrong first says more
        self.folder.close()
        if self.unwritten:
            raise WriteError(f"{self.unwritten}; {self.unwritten.remedy} and go on with: {self._resume()}")
        return summary

    def _resume(self) -> str:
        return how_to_resume(self.recipe, self.folder.path, self.engine)

    def _describe(self) -> None:
        """Write what will be run."""
        experiment, folder = self.experiment, self.folder
        federation = experiment.federation
        self._write_recipe()
        self._write_environment()
        partition = self._describe_partition()
        origin = describe_origin(
            self.recipe, experiment.job, federation, experiment.flat.module, experiment.weights
        )
        folder.write_json(files.ORIGIN, origin)
        for warning in self._warnings(partition):
            self.journal.warn(0, warning)

    def _warnings(self, partition: Mapping[str, Any]) -> Iterator[str]:
        """Yield what the user should know of the recipe, given the partition's card."""
        return self.experiment.warnings(partition.get("one_class_clients", {}).get("count", 0))

    def _write_environment(self) -> None:
        """Of this machine, and of others that clients train on."""
        nodes = {"nodes": list(self.engine.nodes)} if self.engine.nodes else {}
        self.folder.write_json(files.ENVIRONMENT, {**environment(self.experiment.device), **nodes})

    def _write_recipe(self) -> None:
        """Write it, and record the run as this user's: the code that it names was imported at the user's word."""
        self.folder.write_text(files.RECIPE, self.recipe.yaml())
        ledger.record(self.folder.path, own_code(self.recipe.tree()))

    def _describe_partition(self) -> dict[str, Any]:
        """Write who has what; the card."""
        federation = self.experiment.federation
        known = federation.knows_labels
        labels, counts = (federation.train.y, federation.training_counts()) if known else (None, None)
        described = card(federation.assignment, labels, federation.num_classes, federation.class_names)
        federation.assignment.save(self.folder.path, counts)
        self.folder.write_json(files.CARD, described)
        return described

    def _recall(self) -> None:
        """Put the folder back to the state of the checkpoint, and recall what was measured until then."""
        round, folder, evaluator = self.done.round, self.folder, self.experiment.evaluator
        lines = folder.lines_until(round)  # refuses damaged files, before anything is deleted
        planned = evaluator.planned(lines)
        folder.delete(files.SUMMARY)
        self._write_recipe()  # before lines lose what only a shorter run has
        kept = checkpoint.drop_after(folder.path / files.CHECKPOINTS, round)
        checkpoint.expect_rewritten(folder.path / files.CHECKPOINTS, kept, lines, planned)
        folder.cut_back(round, planned)
        self.states.restore([point.versions for point in kept])
        changed = changed_since(folder.path, kept[-1].records)
        if {files.CARD, files.PARTITION} & set(changed) or not has_partition(folder.path):
            self._describe_partition()
        folder.event("resume", round, f"resumed after round {round}")
        metrics = planned.get(files.METRICS, [])
        warnings = [*self._warnings(RunRecord(folder.path).card), *evaluator.notes_on_untested(metrics)]
        self.journal.recall(read_lines(folder.path / files.EVENTS), warnings)
        evaluator.recall(planned.get(files.CLIENTS, []))
        for line in metrics:
            self.best.see(line)

    def _save(self) -> None:
        self.folder.flush()
        self.states.flush(since=self.saved)
        point = Checkpoint(
            self.done.round,
            self.done.server,
            self.done.buffers,
            self.states.versions,
            self.experiment.digest,
            self.recipe.tree(),
            best=self.best_model,
            records=self.folder.records.note(),
            device=self.experiment.device.rounding or "cpu",
        )
        checkpoint.save(self.folder.path / files.CHECKPOINTS, point)
        self.saved = self.done.round  # whether or not what is superseded can be deleted
        self.states.keep(checkpoint.KEPT)

    def _model(self) -> Tensors:
        """The global model after the last round that is done, and its buffers."""
        return {"w": self.experiment.algorithm.evaluated(self.done.server).clone(), **self.done.buffers}

    @property
    def _kept_round(self) -> int:
        """The round whose model is kept: with `keep: best` the best one, if there is one whose model is known."""
        known = self.best_model or self.best.round == self.done.round
        return self.best.round if self.recipe.keep == "best" and known else self.done.round

    def _kept_model(self) -> Tensors:
        return self._model() if self._kept_round == self.done.round else self.best_model

    def _about_kept(self) -> dict[str, Any]:
        """Entries of the summary about the model that is kept, if that is not simply the one of the last round."""
        experiment, recipe, t = self.experiment, self.recipe, self.done.round
        stopped, keeps_best = t < recipe.rounds, recipe.keep == "best"
        if not stopped and not keeps_best:
            return {}
        found: dict[str, Any] = {"stopped_early": stopped, "best_round": self.best.round}
        found |= {"best_value": self.best.value, "kept_round": self._kept_round}
        federation = experiment.federation
        if recipe.tested_rounds and federation.test is not None and not experiment.algorithm.personal:
            model = self._kept_model()
            self.engine.publish(t, {"w": model["w"]}, model)
            predictions = experiment.evaluator.predictions(t, self.engine, self.states, "test")
            tested = pooled_metrics(predictions, federation.pool("test")[0].y, federation.num_classes)
            found |= {"final_accuracy": tested["accuracy"], "final_accuracy_macro": tested["accuracy_macro"]}
            found |= {"final_accuracy_sd": None, "final_accuracy_rounds": 1}
        return found

    def _summary(self, ending: str, seconds: float) -> dict[str, Any]:
        """How the run ended, and its model if it is done."""
        experiment, flat = self.experiment, self.experiment.flat
        dropped, missing = self.journal.dropped_updates, self.journal.missing_clients
        if ending == "finished" and not self.experiment.algorithm.personal:  # else there is no one model
            model = self._kept_model()
            flat.load(model["w"], model)
            self.folder.save_model(flat.state_dict())
        warnings = list(self.journal.warnings)
        if dropped:  # not an event of its own: each of them is one
            warnings.append(f"{dropped} updates were not finite and left out: see {files.EVENTS}")
        if missing:
            warnings.append(
                f"clients were left out {missing} times because nothing came from them: see {files.EVENTS}"
            )
        lines = read_lines(self.folder.path / files.METRICS)  # read again, not kept: a long run has many
        summary = {
            **summarise(lines, self.recipe, seconds),
            "meant_for": self.experiment.meant_for,
            "status": ending,
            "rounds_done": self.done.round,
            **self.kept,
            "engine": self.engine.name,
            "workers": self.engine.workers,
            "device": ", ".join(device.name for device in self.engine.devices),
            "recipe_sha256": self.experiment.digest,
            "dropped_updates": dropped,
            "missing_clients": missing,
            "warnings": warnings,
        }
        on_cpu = experiment.device.is_cpu
        if (
            ending == "finished"
            and on_cpu
            and (advice := advice_on_steps(experiment.job, experiment.federation, flat))
        ):
            summary["advice"] = advice
        self.folder.write_summary(summary)
        return summary
