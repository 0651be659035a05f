"""The nodes of a federation as the server knows them: the client of each, and its number of samples."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import INFO
from typing import Any, TypeAlias

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedrecall.errors import InputError
from fedrecall.flower.messages import METRICS, REFUSED, TASK, metrics_of, task_of
from fedrecall.flower.refusal import RefusedError
from fedrecall.version import __version__

PAUSE = 3.0  # seconds between checks for connected nodes
MOST_SAMPLES = 2**40

Answer: TypeAlias = RecordDict | str  # a client's answer, or why there is none


@dataclass(frozen=True)
class NodeFacts:
    """The facts that a node has reported about its client."""

    train: int
    validation: int
    forgetting: bool
    counts: tuple[int, ...] | None = None  # samples of each class, if the recipe asks and the node allows it


@dataclass
class Nodes:
    """Sends messages to clients by way of their nodes."""

    grid: Grid
    recipe: str  # the digest that both sides must have
    clients: int
    classes: int  # 0: class counts are not requested
    timeout: float | None
    facts: dict[int, NodeFacts] = field(default_factory=dict)  # by client, from its node or from before a resume
    places: dict[int, int] = field(default_factory=dict)  # client to node
    refused: set[int] = field(default_factory=set)  # nodes that take no part
    silent: set[int] = field(default_factory=set)  # nodes that did not answer the query; asked again next round
    notes: list[str] = field(default_factory=list)  # refusals and their reasons, until they are logged

    def wait(self, seconds: float) -> None:
        """Wait for all clients; raise an `InputError` if one without known facts is missing after `seconds`."""
        end = time.monotonic() + seconds
        while True:
            self.silent = set()
            self.look()
            missing = [client for client in range(self.clients) if client not in self.places]
            if not missing:
                return
            if time.monotonic() >= end:
                unknown = [client for client in missing if client not in self.facts]
                if unknown:
                    raise InputError(self._why_missing(unknown, seconds))
                return
            log(INFO, "waiting for clients %s", ", ".join(map(str, missing[:20])))
            time.sleep(min(PAUSE, max(0.0, end - time.monotonic())))

    def _why_missing(self, unknown: list[int], seconds: float) -> str:
        shown = ", ".join(map(str, unknown[:20]))
        refused = f"; {'; '.join(self.notes[:5])}" if self.notes else ""
        return f"of {self.clients} clients, these have not come within {seconds:g} seconds: {shown}{refused}"

    def look(self) -> None:
        """Update the connected nodes; query the new ones."""
        connected = set(self.grid.get_node_ids())
        self.places = {client: node for client, node in self.places.items() if node in connected}
        new = sorted(connected - set(self.places.values()) - self.refused - self.silent)
        if not new:
            return
        asked = ConfigRecord({"recipe": self.recipe, "counts": self.classes > 0})
        contents = {node: RecordDict({TASK: asked}) for node in new}
        for node, answer in self._send(MessageType.QUERY, contents, "0").items():
            if answer == self.late:
                self.silent.add(node)
                self.notes.append(f"node {node} has not said who it is: {answer}")
                continue
            try:
                if isinstance(answer, str):
                    raise RefusedError(answer)
                self._admit(node, answer)
            except RefusedError as error:
                self.refused.add(node)
                self.notes.append(f"node {node} takes no part: {error}")

    def _admit(self, node: int, content: RecordDict) -> None:
        fields = task_of(content)
        if fields.text("fedrecall") != __version__:
            raise RefusedError(f"it has fedrecall {fields.text('fedrecall')}, and the server {__version__}")
        client = fields.whole("client", most=self.clients - 1)
        if client in self.places:
            raise RefusedError(f"it says that it is client {client}, who is there already")
        sizes = fields.whole("train", 1, MOST_SAMPLES), fields.whole("validation", 0, MOST_SAMPLES)
        counts = None
        if self.classes and METRICS in content:
            counts = tuple(metrics_of(content).wholes("classes", self.classes))
            if sum(counts) != sizes[0]:
                raise RefusedError("its class counts are not those of its training samples")
        before = self.facts.get(client, NodeFacts(*sizes, forgetting=False))
        if (before.train, before.validation) != sizes:
            raise RefusedError(f"client {client} has {sizes[0]} and {sizes[1]} samples now, and had others before")
        self.facts[client] = NodeFacts(*sizes, fields.flag("forgetting"), counts or before.counts)
        self.places[client] = node

    def ask(self, kind: str, contents: Mapping[int, RecordDict], round: int) -> dict[int, Answer]:
        """Send a message to each of these clients; return the answers, or why there are none."""
        self.look()
        there = {client: content for client, content in contents.items() if client in self.places}
        by_node = self._send(kind, {self.places[client]: content for client, content in there.items()}, str(round))
        answers: dict[int, Answer] = dict.fromkeys(contents, "its node is not connected")
        return answers | {client: by_node[self.places[client]] for client in there}

    def _send(self, kind: str, contents: Mapping[int, RecordDict], group: str) -> dict[int, Answer]:
        """Send a message to each of these nodes; return the answers by node."""
        messages = [
            Message(content, node, kind, ttl=self.timeout, group_id=group) for node, content in contents.items()
        ]
        answers: dict[int, Answer] = dict.fromkeys(contents, self.late)
        if not messages:
            return answers
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout):
            node = reply.metadata.src_node_id
            if node in answers:
                answers[node] = answer_of(reply)
        return answers

    @property
    def late(self) -> str:
        """The reason to report if no answer arrived."""
        return f"no answer came within {self.timeout:g} seconds" if self.timeout else "no answer came"

    def told(self) -> dict[str, Any]:
        """Return the facts about the clients, for a file."""
        return {str(client): vars(facts) for client, facts in sorted(self.facts.items())}


def answer_of(reply: Message) -> Answer:
    if not reply.has_error():
        return reply.content
    reason = reply.error.reason or f"error {reply.error.code}"
    return reason[:300] if reply.error.code == REFUSED else f"Flower reports: {' '.join(reason.split())[:300]}"
