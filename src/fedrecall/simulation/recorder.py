"""The recorder writes the files of a run: lines, events, checkpoints and the summary."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fedrecall.client.lanes.decision import advice_on_steps
from fedrecall.core.vector import Tensors
from fedrecall.data.card import federation_card
from fedrecall.measure.live_round import LiveRound, Observer
from fedrecall.measure.metrics import pooled_metrics
from fedrecall.recipe.code_keys import names_code
from fedrecall.runs import checkpoint, files, ledger
from fedrecall.runs.checkpoint import Checkpoint
from fedrecall.runs.client_states import StateTable
from fedrecall.runs.environment import environment
from fedrecall.runs.folder import RunFolder
from fedrecall.runs.jsonl import read_lines
from fedrecall.runs.reader import RunRecord, has_partition
from fedrecall.runs.records import changed_since
from fedrecall.simulation.compatibility import warnings_of
from fedrecall.simulation.early_stopping import Best
from fedrecall.simulation.experiment import Experiment
from fedrecall.simulation.journal import Journal
from fedrecall.simulation.origin import describe_origin
from fedrecall.simulation.personalised import personalise, wanted
from fedrecall.simulation.privacy import privacy_spent
from fedrecall.simulation.round import RoundState
from fedrecall.simulation.summary import summarise


class Recorder(Observer):
    """Keeps a run's folder consistent with its completed rounds."""

    def __init__(
        self, experiment: Experiment, folder: RunFolder, states: StateTable, done: RoundState, start: Checkpoint | None
    ) -> None:
        self.experiment, self.recipe, self.folder, self.states = experiment, experiment.recipe, folder, states
        self.journal, self.resumed = Journal(folder), start is not None
        self.done = done  # the state after the last completed round
        self.best = Best(self.recipe.stop)
        self._saved, self._saved_at = done.round, 0.0
        self._best_model = start.best if start else {}  # of an earlier round, with `keep: best`
        self._kept: dict[str, Any] = {}

    # The beginning

    def begin(self, notes: Sequence[str]) -> None:
        """Describe a new run in its folder, or restore a resumed run's folder to its checkpoint."""
        self._recall() if self.resumed else self._describe()
        for note in notes:
            self.journal.warn(self.done.round, note)

    def opened(self) -> None:
        """Record the nodes of the engine, which is open now, and start the digests of the recorded files."""
        if self.experiment.engine.nodes and not self.resumed:
            self._write_environment()
        self.folder.records.recall()
        self._saved_at = time.perf_counter()

    def _describe(self) -> None:
        experiment, folder = self.experiment, self.folder
        self._write_recipe()
        self._write_environment()
        partition = self._describe_partition()
        origin = describe_origin(
            self.recipe, experiment.job, experiment.federation, experiment.flat.module, experiment.weights
        )
        folder.write_json(files.ORIGIN, origin)
        for warning in self._warnings(partition):
            self.journal.warn(0, warning)

    def _warnings(self, partition: Mapping[str, Any]) -> list[str]:
        """Return the warnings about the experiment, given the partition's card."""
        return list(warnings_of(self.experiment, partition))

    def _write_environment(self) -> None:
        """Write the environment of this machine and of other nodes that clients train on."""
        engine = self.experiment.engine
        nodes = {"nodes": list(engine.nodes)} if engine.nodes else {}
        self.folder.write_json(files.ENVIRONMENT, {**environment(self.experiment.device), **nodes})

    def _write_recipe(self) -> None:
        """Write the recipe and add the run to the ledger, as this user has chosen to run its code."""
        self.folder.write_text(files.RECIPE, self.recipe.yaml())
        ledger.record(self.folder.path, names_code(self.recipe.tree()))

    def _describe_partition(self) -> dict[str, Any]:
        """Write the partition and its card; return the card."""
        federation = self.experiment.federation
        described = federation_card(federation)
        federation.assignment.save(self.folder.path, federation.training_counts() if federation.knows_labels else None)
        self.folder.write_json(files.CARD, described)
        return described

    def _recall(self) -> None:
        """Restore the folder to its checkpoint, and the history measured until then."""
        round, folder, evaluator = self.done.round, self.folder, self.experiment.evaluator
        lines = folder.lines_until(round)  # raises for damaged files before anything is deleted
        planned = evaluator.planned(lines)
        evaluator.recall(planned.get(files.CLIENTS, []))
        folder.delete(files.SUMMARY)
        self._write_recipe()  # before lines are cut to what this recipe measures
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
        for line in metrics:
            self.best.see(line)

    # A round

    def before(self, live: LiveRound) -> None:
        if self.recipe.keep == "best" and 0 < self.best.round == self.done.round:
            self._best_model = self._model()  # the next round replaces it
        self.journal.begin(live)

    def after(self, live: LiveRound) -> None:
        """Record a completed round; write a checkpoint if one is due."""
        self.journal.record(live)
        self.states.settle()
        self.done = RoundState(live.number, live.server, live.buffers)
        self.best.see(live.line)
        since = time.perf_counter() - self._saved_at
        if live.number == self.recipe.rounds or self.recipe.checkpoint.due(live.number, since):
            self.save()
            self._saved_at = time.perf_counter()

    def save(self) -> None:
        """Write a checkpoint of the last completed round, unless there is one."""
        if self.done.round <= self._saved:
            return
        self.folder.flush()
        self.states.flush(since=self._saved)
        point = Checkpoint(
            self.done.round,
            self.done.server,
            self.done.buffers,
            self.states.versions,
            self.experiment.digest,
            self.recipe.tree(),
            best=self._best_model,
            records=self.folder.records.note(),
            device=self.experiment.device.rounding or "cpu",
        )
        checkpoint.save(self.folder.path / files.CHECKPOINTS, point)
        self._saved = self.done.round  # even if deleting superseded states fails
        self.states.keep(checkpoint.KEPT)

    # The end

    def evaluate_kept(self) -> None:
        """Evaluate the kept model if the run stopped early or keeps the best; the engine must be open."""
        experiment, recipe, t = self.experiment, self.recipe, self.done.round
        stopped, best = t < recipe.rounds, self.best
        if not stopped and recipe.keep != "best":
            return
        kept: dict[str, Any] = {"stopped_early": stopped, "best_round": best.round, "best_value": best.value}
        kept["kept_round"] = self._kept_round
        federation = experiment.federation
        if recipe.tested_rounds and federation.test is not None and not experiment.algorithm.personal:
            model = self._kept_model()
            experiment.engine.publish(t, {"w": model["w"]}, model)
            predictions = experiment.evaluator.predictions(t, experiment.engine, self.states, "test")
            tested = pooled_metrics(predictions, federation.pool("test")[0].y, federation.num_classes)
            kept |= {"final_accuracy": tested["accuracy"], "final_accuracy_macro": tested["accuracy_macro"]}
            kept |= {"final_accuracy_sd": None, "final_accuracy_rounds": 1}
        self._kept = kept

    def evaluate_personal(self) -> None:
        """Measure the clients' personal models, if the recipe asks for them; the engine must be open."""
        settings = wanted(self.experiment)
        if settings is not None:
            round, server = self.done.round, self.done.server
            self._kept |= personalise(self.experiment, settings, round, server, self._kept_model(), self.states)

    def end(self, ending: str, seconds: float) -> dict[str, Any]:
        """Save all completed rounds, however the run ended; return the summary."""
        self.journal.end()
        if ending != "finished":  # workers may have been killed while writing
            self.states.files.remove_leftovers()
        self.save()
        if ending == "finished" and not self.experiment.algorithm.personal:  # else there is no single model
            model = self._kept_model()
            self.experiment.flat.load(model["w"], model)
            self.folder.save_model(self.experiment.flat.state_dict())
        summary = self._summary(ending, seconds)
        self.folder.write_summary(summary)
        return summary

    def _summary(self, ending: str, seconds: float) -> dict[str, Any]:
        experiment, journal = self.experiment, self.journal
        summary = {
            # Lines are read again, not kept: a long run has many.
            **summarise(read_lines(self.folder.path / files.METRICS), self.recipe, seconds),
            "meant_for": experiment.meant_for,
            "status": ending,
            "rounds_done": self.done.round,
            **self._kept,
            "engine": experiment.engine.name,
            "workers": experiment.engine.workers,
            "device": ", ".join(device.name for device in experiment.engine.devices),
            "recipe_sha256": experiment.digest,
            "dropped_updates": journal.dropped_updates,
            "missing_clients": journal.missing_clients,
            "warnings": journal.all_warnings(),
        }
        spent = privacy_spent(experiment, self.done.round)
        summary |= {"privacy": spent} if spent else {}
        if ending == "finished" and experiment.device.is_cpu:
            advice = advice_on_steps(experiment.job, experiment.federation, experiment.flat)
            summary |= {"advice": advice} if advice else {}
        return summary

    def _model(self) -> Tensors:
        """Return the global model after the last completed round, and its buffers."""
        return {"w": self.experiment.algorithm.evaluated(self.done.server).clone(), **self.done.buffers}

    @property
    def _kept_round(self) -> int:
        """The round of the kept model: the last or, with `keep: best`, the best if its model is known."""
        known = self._best_model or self.best.round == self.done.round
        return self.best.round if self.recipe.keep == "best" and known else self.done.round

    def _kept_model(self) -> Tensors:
        return self._model() if self._kept_round == self.done.round else self._best_model
