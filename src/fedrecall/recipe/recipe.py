"""The recipe: everything that decides a result, as one documented model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import yaml
from pydantic import BeforeValidator, Field, model_validator

from fedrecall.algorithms import ALGORITHM
from fedrecall.config.components import PYTHON, Section
from fedrecall.config.options import Positive, Whole
from fedrecall.data.own_partition import PARTITION
from fedrecall.data.sources import DATA
from fedrecall.errors import nearest
from fedrecall.models import MODEL
from fedrecall.objectives import OBJECTIVE
from fedrecall.participation import PARTICIPATION, Participation, UniformSampling
from fedrecall.recipe.clock import ClockSettings
from fedrecall.recipe.files import Tree
from fedrecall.recipe.settings import (
    BadUpdates,
    BatchNorm,
    CheckpointTimes,
    Evaluation,
    Execution,
    Forgetting,
    Keep,
    Local,
    Settings,
    Stop,
    name_or_group,
)
from fedrecall.runs.identity import MOST_TESTED, digest_of, hash_of, round_identity
from fedrecall.trackers import TRACKER
from fedrecall.updates import STAGE, Stage

# The sections that name a component, which has options of its own.
SECTIONS: dict[str, Section[Any]] = {section.key: section for section in (DATA, PARTITION, MODEL, OBJECTIVE, ALGORITHM)}
SERVER_DATA = replace(DATA, key="server_data")
FROM_PYTHON: Tree = {"name": PYTHON}  # a section given as a Python object

Named = Annotated[Tree, BeforeValidator(name_or_group)]


def component_list(section: Section[Any]) -> Callable[[object], object]:
    """Return a validator of lists of components; a single one stands for a list of one."""

    def completed(given: object) -> object:
        items = [given] if isinstance(given, str | Mapping) else given
        return list(map(section.complete, items)) if isinstance(items, list | tuple) else given

    return completed


class Recipe(Settings):
    """All settings of a run: those that decide its result, and where it runs."""

    exclusive: ClassVar[tuple[str, ...]] = ("participation", "clients_per_round")
    if_neither: ClassVar[Any] = 0.1

    data: Named = Field(default={"name": "cifar10"}, description="the data set")
    partition: Named = Field(default={"name": "dirichlet"}, description="who has which of its samples")
    model: Named = Field(default={"name": "lenet"}, description="the model")
    objective: Named = Field(
        default={"name": "wsm"},
        description="the clients' loss; see docs/when-wsm-hurts.md",
    )
    algorithm: Named = Field(default={"name": "fedavg"}, description="how the clients' models become one")
    rounds: Positive = Field(default=4000, description="communication rounds")
    participation: Annotated[float, Field(gt=0, le=1)] | Tree | None = Field(
        default=None,
        description="the fraction of clients in a round (0.1 unless `clients_per_round` is given), or how its "
        "clients are chosen and fail: {name: uniform | by_size | cyclic | poisson | module:name, fraction: 0.1, "
        "dropout: 0, stragglers: 0, late: fewer_steps | left_out} (docs/participation.md)",
    )
    clients_per_round: Positive | None = Field(default=None, description="or: how many clients are in a round")
    clock: ClockSettings | None = Field(
        default=None,
        description="simulated time: {speed: 1e9, bandwidth: 1e6, spread: 0.5, deadline: ..} "
        "(docs/participation.md); default: none",
    )
    local: Local = Field(default_factory=Local, description="how a client trains")
    updates: Annotated[list[Tree], BeforeValidator(component_list(STAGE))] = Field(
        default=[], description="stages between a client's training and the round's sums, one after the other"
    )
    server_data: Named | None = Field(
        default=None,
        description="data that the server has, for algorithms that need some: a data source, whose labels are not read",
    )
    batch_norm: BatchNorm = Field(
        default="average",
        description="its statistics: average (weighted by samples) | local (they stay with the client: SiloBN; its "
        "scales and shifts as well: algorithm fedbn)",
    )
    bad_updates: BadUpdates = Field(
        default="drop", description="a client whose update is not finite: drop (the round goes on without it) | stop"
    )
    evaluation: Evaluation = Field(default_factory=Evaluation, description="when the global model is evaluated")
    forgetting: Forgetting = Field(default_factory=Forgetting, description="when forgetting is measured")
    checkpoint: CheckpointTimes = Field(
        default_factory=CheckpointTimes, description="when the state of the run is saved"
    )
    stop: Stop = Field(default_factory=Stop, description="when the run has learned enough")
    keep: Keep = Field(
        default="last", description="the model of model.safetensors: of the last round | of the best, by stop.metric"
    )
    init: str | None = Field(
        default=None, description="a .safetensors file with the weights to start from; default: drawn by the seed"
    )
    seed: Whole = Field(default=0, description="of initial weights, client sampling, batches and augmentation")
    trackers: Annotated[list[Tree], BeforeValidator(component_list(TRACKER))] = Field(
        default=[],
        description="where the run is shown: tensorboard | mlflow | wandb, with options as {name: mlflow, uri: ..}, or "
        "watchers of the rounds, by module:name; no part of the run's identity",
    )
    execution: Execution = Field(default_factory=Execution, description="where and how it runs")

    @model_validator(mode="after")
    def _resolve(self) -> Recipe:
        if isinstance(self.participation, Mapping):
            self._resolve_participation(self.participation)
        self.local.check_rates(self.rounds)
        if self.evaluation.test_last is None and self.tested_rounds == MOST_TESTED:
            object.__setattr__(self, "evaluation", self.evaluation.model_copy(update={"test_last": MOST_TESTED}))
        if self.server_data is not None:
            object.__setattr__(self, "server_data", SERVER_DATA.complete(self.server_data))
        for key, section in SECTIONS.items():
            object.__setattr__(self, key, section.complete(getattr(self, key)))
        return self

    def _resolve_participation(self, given: Tree) -> None:
        """Store uniform sampling without failures in its short form: a fraction, or the number of clients."""
        tree = PARTICIPATION.complete({"name": "uniform", **given})
        fraction, clients = tree.get("fraction"), tree.get("clients")
        plain = {"name": "uniform", "fraction": fraction, "clients": clients}
        if tree["name"] != "uniform" or tree != PARTICIPATION.complete(plain):
            object.__setattr__(self, "participation", tree)
        elif clients is None:
            object.__setattr__(self, "participation", fraction)
        else:
            object.__setattr__(self, "participation", None)
            object.__setattr__(self, "clients_per_round", clients)

    @classmethod
    def nearest_key(cls, key: str) -> str:
        """Return a hint for an unknown key; for `lr` it is `local.lr`."""
        groups = {name: field.annotation for name, field in cls.model_fields.items()}
        plain = {n: g.model_fields for n, g in groups.items() if isinstance(g, type) and issubclass(g, Settings)}
        for section, keys in [*plain.items(), *((name, each.option_names()) for name, each in SECTIONS.items())]:
            if key in keys:
                return f"did you mean {f'{section}.{key}'!r}?"
        return nearest(key, cls.model_fields)

    def create(self, section: str, **supplied: Any) -> Any:
        """Return the partition, model, objective, algorithm or data set that the recipe names."""
        sections = {**SECTIONS, "server_data": SERVER_DATA}
        return sections[section].create(getattr(self, section), **supplied)

    def create_participation(self) -> Participation:
        if isinstance(self.participation, Mapping):
            return PARTICIPATION.create(self.participation)
        if self.clients_per_round is not None:
            return UniformSampling(clients=self.clients_per_round)
        assert self.participation is not None
        return UniformSampling(self.participation)

    def create_stages(self) -> tuple[Stage, ...]:
        return tuple(map(STAGE.create, self.updates))

    def evaluates(self, round: int) -> bool:
        return round % self.evaluation.every == 0 or round == self.rounds

    @property
    def tested_rounds(self) -> int:
        """The number of last rounds that are tested: `evaluation.test_last`; if that is unset or more than
        `rounds`, a tenth of them, at most 100."""
        wanted = self.evaluation.test_last
        return min(MOST_TESTED, -(-self.rounds // 10)) if wanted is None or wanted > self.rounds else wanted

    def tree(self) -> Tree:
        """Return the recipe as plain values, with every key that is not None."""
        return json.loads(self.model_dump_json(exclude_none=True))  # type: ignore[no-any-return]

    def yaml(self) -> str:
        return yaml.safe_dump(self.tree(), sort_keys=False, allow_unicode=True, width=100)

    def method_digest(self) -> str:
        """Return the hash of all that decides each round: the digest without the number of rounds."""
        return hash_of(round_identity(self.tree()))

    def digest(self, rounding: str = "", weights: str | None = None, device: str = "") -> str:
        """Return the hash of all that decides the result; `digest_of` explains the arguments."""
        return digest_of(self.tree(), rounding, weights, device)
