"""The client's side of a federation: the usual worker, on the node's own data.

Only what these functions put into their replies leaves the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from logging import ERROR
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.common.logger import log

from fedrecall.backend.torch_state import fixed_torch_state, torch_threads
from fedrecall.client.batches import LocalPlan
from fedrecall.client.job import Job
from fedrecall.client.lanes.decision import lowering_of
from fedrecall.client.lanes.model_reader import UnsupportedError
from fedrecall.client.predictions import EvaluateResult
from fedrecall.client.tasks import EvaluateTask, TrainTask
from fedrecall.client.update import Update
from fedrecall.client.worker import Worker
from fedrecall.core.vector import Tensors
from fedrecall.data.federation import Federation
from fedrecall.engines.malloc import keep_freed_memory
from fedrecall.flower.app import App
from fedrecall.flower.messages import (
    ARRAYS,
    METRICS,
    MODEL,
    PUBLISHED,
    REFUSED,
    TASK,
    Fields,
    Layouts,
    split_buffers,
    task_of,
    the_record,
    with_prefix,
)
from fedrecall.flower.node import Node
from fedrecall.flower.refusal import RefusedError
from fedrecall.flower.states import OwnStates
from fedrecall.flower.tensors import pack_record, unpack_record
from fedrecall.runs.client_states import StateFiles
from fedrecall.simulation.experiment import job_of
from fedrecall.version import __version__

Handler = Callable[["NodeContext", Message], RecordDict]


def client_app(folder: Path, mods: Sequence[Mod] = ()) -> ClientApp:
    """Return the app of a node. `mods` are Flower's (for privacy, for example) and wrap only the training."""
    app = ClientApp()
    app.query()(message_handler(folder, report_facts))
    app.train(mods=list(mods))(message_handler(folder, train_client))
    app.evaluate()(message_handler(folder, evaluate_models))
    return app


class NodeContext:
    """The node that received a message, with all that it needs for a reply."""

    def __init__(self, folder: Path, context: Context) -> None:
        self.app = App.of(folder, context.run_config)
        self.node = Node.of(context.node_config, context.run_config)
        nodes = self.app.get("nodes", str, "")
        self.federation: Federation = self.node.federation(self.app.recipe, self.app.kind, nodes or None)
        job = job_of(self.app.recipe, self.federation)
        self.job: Job = job.for_model(job.build_model(self.federation))

    def agree(self, task: Fields) -> None:
        """Raise a `RefusedError` if the message is for another recipe, version or client."""
        if task.text("recipe") != self.app.recipe.method_digest():
            raise RefusedError("the recipe of the message is not the node's: the app is another one")
        if task.text("fedrecall") != __version__:
            raise RefusedError(f"the message is of fedrecall {task.text('fedrecall')}, the node has {__version__}")
        if task.whole("client") != self.node.client:
            raise RefusedError(f"the message is for client {task.whole('client')}, the node is {self.node.client}")

    def states(self, run: str, starts_from: int) -> StateFiles:
        """Return this client's states of a run; no folder is needed if the job keeps no state."""
        folder = self.node.state_dir
        keeps = self.job.keeps_state
        if folder is None:
            if keeps:
                raise RefusedError("the algorithm keeps state at its clients, and the node has no state-dir")
            folder = Path()
        if not run.isalnum():
            raise RefusedError("its 'run' is not a run's name")
        return OwnStates(folder / run, starts_from)

    @contextmanager
    def worker(self, states: StateFiles, *, lanes: bool) -> Iterator[Worker]:
        """Yield a worker that takes its steps as the server has decided: exactly or in lanes."""
        keep_freed_memory()
        with fixed_torch_state(), torch_threads(self.job.local.threads):
            job = self._with_kernels() if lanes else self.job
            yield Worker(job, self.federation, states)

    def _with_kernels(self) -> Job:
        try:
            lowering = lowering_of(self.job, self.federation, self.job.build_model(self.federation))
        except UnsupportedError as error:
            raise RefusedError(
                f"the server's steps are in lanes, and the node's model has no kernels: {error}"
            ) from None
        return replace(self.job, lowering=lowering)


def message_handler(folder: Path, handler: Handler) -> Callable[[Message, Context], Message]:
    """Return the handler as a Flower function, which reports errors to the server without revealing data."""

    def answer(message: Message, context: Context) -> Message:
        try:
            return Message(handler(NodeContext(folder, context), message), reply_to=message)
        except RefusedError as error:
            reason = str(error)
        except Exception as error:
            log(ERROR, "fedrecall: %s: %s", type(error).__name__, error, exc_info=error)
            reason = "its node could not do the work; the node's log says why"
        return Message(Error(REFUSED, reason), reply_to=message)

    return answer


def report_facts(here: NodeContext, message: Message) -> RecordDict:
    """Return the number of samples and what the node's owner allows."""
    task, federation, client = task_of(message.content), here.federation, here.node.client
    if task.text("recipe") != here.app.recipe.method_digest():
        raise RefusedError("the recipe of the message is not the node's: the app is another one")
    samples = {"train": federation.train_indices(client), "validation": federation.validation_indices(client)}
    sizes = {split: len(positions) for split, positions in samples.items()}
    known = {"client": client, "forgetting": here.node.forgetting, **sizes}
    answers = RecordDict({TASK: ConfigRecord({"fedrecall": __version__, **known})})
    if task.flag("counts") and here.node.class_counts:
        answers[METRICS] = MetricRecord({"classes": federation.labels(client).counts.tolist()})
    return answers


def train_client(here: NodeContext, message: Message) -> RecordDict:
    """Run the client update and return what the algorithm sends back."""
    task = task_of(message.content)
    here.agree(task)
    version = task.whole("state")
    if task.flag("model") and not here.node.forgetting:
        raise RefusedError("its model is asked for, which the node does not allow: forgetting is not true")
    if "pooled" in task.record:
        shares = task.reals("pooled", here.federation.num_classes)
        here.federation.pooled_shares = torch.tensor(shares, dtype=torch.float64)
    with here.worker(here.states(task.text("run"), version), lanes=task.flag("lanes")) as worker:
        layouts = Layouts.of(here.job, worker.flat)
        arrays: ArrayRecord = the_record(message.content, ARRAYS, ArrayRecord)
        worker.publish(*with_buffers(unpack_record(arrays, layouts.down), worker))
        round, cohort = task.whole("round", 1), task.whole("cohort", 1)
        most = LocalPlan.of(here.job.local, len(here.federation.train_indices(here.node.client)), worker.least).steps
        steps = task.whole("steps", most=most)  # 0: all of them
        work = TrainTask(round, 0, here.node.client, task.real("lr"), steps, version, cohort=cohort)
        result = worker.run(work)
        assert isinstance(result, Update)
        content = RecordDict({ARRAYS: pack_record({**result.sent, **with_prefix(result.buffers)})})
        counts = {"samples": result.samples, "steps": result.steps, "state": result.state}
        content[METRICS] = MetricRecord({**counts, "loss": result.loss})
        if task.flag("model"):
            content[MODEL] = pack_record(model_of(worker))
    return content


def evaluate_models(here: NodeContext, message: Message) -> RecordDict:
    """Return the correct samples and total negative log-likelihood of each model sent, on the validation data."""
    task = task_of(message.content)
    here.agree(task)
    if task.flag("others") and not here.node.forgetting:
        raise RefusedError("models of others are not evaluated here: forgetting is not true in the node's config")
    samples = len(here.federation.validation_indices(here.node.client))
    version = task.whole("state")
    correct, nll = [], []
    with here.worker(here.states(task.text("run"), version), lanes=task.flag("lanes")) as worker:
        layout = Layouts.of(here.job, worker.flat).model
        for name in sorted(message.content.array_records):
            record = message.content.array_records[name]
            worker.publish(*with_buffers(unpack_record(record, layout), worker))
            own = here.node.client if version and name == PUBLISHED else None
            asked = EvaluateTask(task.whole("round", 1), 0, "validation", own, version if own is not None else 0)
            result = worker.run(asked._replace(stop=samples))
            assert isinstance(result, EvaluateResult)
            correct.append(int(result.predictions.correct.sum()))
            nll.append(float(result.predictions.nll.sum(dtype="float64")))
    return RecordDict({METRICS: MetricRecord({"samples": samples, "correct": correct, "nll": nll})})


def with_buffers(tensors: Tensors, worker: Worker) -> tuple[Tensors, Tensors]:
    """Return the server's tensors and the model's buffers, which are empty if it has none."""
    rest, buffers = split_buffers(tensors)
    return rest, buffers or worker.flat.buffers()


def model_of(worker: Worker) -> Tensors:
    """Return the client's model after its local steps."""
    buffers = with_prefix(worker.flat.buffers()) if worker.flat.has_buffers else {}
    return {"w": worker.flat.w, **buffers}
