"""The settings of a run that are plain values. Each field's description is its documentation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedrecall.config.options import LARGEST_REAL, JudgedPrior, Positive, Rate, Whole
from fedrecall.errors import InputError, expectation, nearest, short_repr
from fedrecall.storage.safe_parsing import is_text

if TYPE_CHECKING:
    from fedrecall.optimisers import Optimiser

MOST_THREADS = 1024  # more than any machine has; the process ends if the system cannot start them

BatchNorm = Literal["average", "local"]
BadUpdates = Literal["drop", "stop"]
Keep = Literal["last", "best"]


class Settings(BaseModel):
    """A group of keys; an unknown key is an error, and each error is one sentence."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    section: ClassVar[str] = ""
    exclusive: ClassVar[tuple[str, ...]] = ()  # two keys that exclude each other
    if_neither: ClassVar[Any] = None  # the value of the first of them if neither is given

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            inner = error.errors()[0].get("ctx", {}).get("error")
            if isinstance(inner, Exception) and getattr(inner, "__notes__", None):
                # From a user's module, which was imported to check its options.
                raise inner from None
            raise InputError(sentence(error, type(self))) from None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        given = [key for key in self.exclusive if getattr(self, key) is not None]
        if len(given) == 2:
            first, second = (f"{self.section}.{key}".removeprefix(".") for key in given)
            raise InputError(f"{first} and {second} are both given; they exclude each other")
        if self.exclusive and not given:
            object.__setattr__(self, self.exclusive[0], self.if_neither)
        return self

    @classmethod
    def nearest_key(cls, key: str) -> str:
        """Return the end of the message about an unknown key."""
        return nearest(key, cls.model_fields)


def sentence(error: ValidationError, group: type[Settings]) -> str:
    """Return pydantic's first error as a sentence with the key, the value and what was expected."""
    first = error.errors()[0]
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, InputError):  # from a nested group, or a check of ours: a sentence already
        return str(inner)
    # Only field names and list positions belong to the key; pydantic adds the branches of a union.
    place = [str(part) for part in first["loc"][:1]]
    key = ".".join([part for part in (group.section, *place) if part])
    if first["type"] == "extra_forbidden":
        return f"there is no key {key!r}; {group.nearest_key(place[0])}"
    if first["type"] == "missing":
        return f"the key {key!r} is missing"
    same_key = [other for other in error.errors() if other["loc"][:1] == first["loc"][:1]]
    return f"{key} is {short_repr(first['input'])}; {expectation(*same_key)}"


def name_or_group(value: object) -> object:
    """Return `{name: cosine}` for `cosine`, other values unchanged."""
    return {"name": value} if isinstance(value, str) else value


def written_as_text(value: str) -> str:
    """Raise a `ValueError` for text that is not UTF-8, as a file's name may be."""
    if not is_text(value):
        raise ValueError("it should be text in UTF-8")
    return value


Text = Annotated[str, AfterValidator(written_as_text)]


def one_or_more(value: object) -> object:
    """Return a list of one for a single name, other values unchanged."""
    return [value] if isinstance(value, str) else value


def refuse_fast_step(value: object) -> object:
    """Raise a `ValueError` for the step 'fast' of earlier versions."""
    if value == "fast":
        raise ValueError("'fast' was taken out, because it hardly was; 'lanes' is what makes small networks fast")
    return value


class Schedule(Settings):
    """The local learning rate as a function of the round."""

    section: ClassVar[str] = "local.schedule"
    name: Literal["constant", "step", "exponential", "cosine"] = Field(
        default="constant",
        description="constant | step (times `factor` every `every` rounds) | exponential (times `factor` every "
        "round) | cosine (down to zero over all rounds)",
    )
    factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="step and exponential: what the rate is multiplied with"
    )
    every: Positive | None = Field(default=None, description="step: after how many rounds")
    warmup: Whole = Field(default=0, description="rounds over which the rate rises to `lr`, before the schedule begins")

    @model_validator(mode="after")
    def _complete(self) -> Schedule:
        wanted = {"step": {"factor", "every"}, "exponential": {"factor"}}.get(self.name, set())
        for key in ("factor", "every"):
            given = getattr(self, key) is not None
            if given != (key in wanted):
                verb = "has no" if given else "needs a"
                raise InputError(f"local.schedule.{key}: the schedule {self.name!r} {verb} {key!r}")
        return self


def complete_optimiser(given: Any) -> dict[str, Any]:
    """Return an optimiser's name with all its options."""
    from fedrecall.optimisers import OPTIMISER  # imports torch, which help and completion avoid

    return OPTIMISER.complete({"name": "sgd", **given} if isinstance(given, Mapping) else given)


class Local(Settings):
    """How a client trains."""

    section: ClassVar[str] = "local"
    exclusive: ClassVar[tuple[str, ...]] = ("epochs", "steps")
    if_neither: ClassVar[Any] = 3
    epochs: Positive | None = Field(
        default=None, description="passes over the client's training data in a round (3 unless `steps` is given)"
    )
    steps: Positive | None = Field(default=None, description="or: the exact number of optimiser steps in a round")
    batch_size: Positive = Field(default=64, description="samples in a step")
    lr: Rate = Field(default=0.01, description="the local learning rate")
    optimiser: Annotated[dict[str, Any], BeforeValidator(complete_optimiser)] = Field(
        default={"name": "sgd", "state": "reset"},
        description="the local optimiser: sgd | adam | adamw | module:name of your own, with its options (beta1, "
        "beta2, eps) and `state: reset | keep | average`, its moments between rounds (docs/local-training.md)",
    )
    clip_norm: Annotated[float, Field(gt=0, le=LARGEST_REAL)] | None = Field(
        default=None,
        description="the largest norm of a step's gradient, which is scaled down to it; default: no limit",
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="of local SGD; it starts at zero every round unless `optimiser.state` says otherwise"
    )
    weight_decay: Rate = Field(default=1e-4, description="added to the gradient, times the weights")
    schedule: Annotated[Schedule, BeforeValidator(name_or_group)] = Field(
        default_factory=Schedule, description="the rate over the rounds"
    )
    partial_batch: Literal["drop", "keep"] = Field(
        default="drop", description="an epoch's last partial batch; if it is the only one, it is kept"
    )
    beta_from: Literal["train", "train+validation"] = Field(
        default="train",
        description="the labels that a loss knows of a client: of its training samples | and of its validation samples",
    )
    step: Annotated[Literal["exact", "lanes"], BeforeValidator(refuse_fast_step)] = Field(
        default="exact",
        description="exact: the bits of a plain eager loop | lanes: other roundings, by kernels of our own, "
        "several times as fast for small networks",
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32",
        description="bfloat16 | float16: mixed, by autocast, float16 with a scaled loss; slow where the processor "
        "has no support for it",
    )
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] = Field(
        default=1, description="torch threads per client; part of the bits"
    )

    def create_optimiser(self) -> Optimiser:
        """Return the optimiser with the momentum and the weight decay of this section."""
        from fedrecall.optimisers import OPTIMISER  # imports torch

        given = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        made = OPTIMISER.create(self.optimiser, **given)
        for key, value in given.items():
            if value and getattr(made, key, 0.0) != value:
                raise InputError(f"local.{key} is {value}, but the optimiser {self.optimiser['name']!r} has none")
        return made

    def rate(self, round: int, rounds: int) -> float:
        """Return the learning rate of a round, counted from 1."""
        schedule = self.schedule
        if round <= schedule.warmup:
            return self.lr * round / schedule.warmup
        passed, rounds = round - schedule.warmup - 1, rounds - schedule.warmup
        if schedule.name == "cosine":
            return self.lr * (0.5 * (1 + math.cos(math.pi * passed / rounds)))
        times = {"constant": 0, "step": passed // (schedule.every or 1), "exponential": passed}[schedule.name]
        try:
            return self.lr * (schedule.factor or 1.0) ** times
        except OverflowError:
            return math.inf

    def check_rates(self, rounds: int) -> None:
        """Raise an `InputError` if the schedule rises beyond float32; such a rate is largest in the last round."""
        if self.rate(rounds, rounds) > LARGEST_REAL:
            raise InputError(
                f"local.schedule.factor is {self.schedule.factor}: the rate of round {rounds} would be larger "
                f"than {LARGEST_REAL}"
            )


class Personalised(Settings):
    """How the personal models of `evaluation.personalised` come about."""

    section: ClassVar[str] = "evaluation.personalised"
    steps: Whole = Field(default=20, description="local steps of each client from the final model; 0: not measured")
    lr: Rate | None = Field(default=None, description="their learning rate; default: local.lr, whatever the schedule")


class Evaluation(Settings):
    """When and how the global model is evaluated."""

    section: ClassVar[str] = "evaluation"
    every: Positive = Field(
        default=10, description="rounds between evaluations on the pooled validation data; the last round always is"
    )
    test_last: Whole | None = Field(
        default=None,
        description="the test set is used in this many last rounds; the final accuracy is their mean; 0: never "
        "(default: the last tenth, at most 100)",
    )
    target: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="a validation accuracy: the summary says in how many rounds, bytes and FLOPs it was reached",
    )
    prior: JudgedPrior = Field(
        default="as_trained",
        description="the class shares that the model is judged for: as_trained | uniform | pooled (those of all "
        "clients together) | a list; log(prior / that of training) is added to its logits",
    )
    personalised: Personalised | None = Field(
        default=None,
        description="personal models at the end, as {steps: 20, lr: 0.01}: each client's after so many steps from the "
        "final model, on its validation data and on the others' (default: none; with a personal algorithm 20 steps)",
    )
    metrics: Annotated[tuple[str, ...], BeforeValidator(one_or_more)] | None = Field(
        default=None,
        description="of your own: `module:function` of logits [n, C] and labels [n] of the pooled validation data",
    )


class Forgetting(Settings):
    """When forgetting is measured, and on whose data."""

    section: ClassVar[str] = "forgetting"
    exclusive: ClassVar[tuple[str, ...]] = ("every", "rounds")
    if_neither: ClassVar[Any] = 0
    every: Whole | None = Field(default=None, description="rounds N, 2N, ...; 0: never (unless `rounds` is given)")
    rounds: tuple[Positive, ...] | None = Field(default=None, description="or: these rounds, counted from 1")
    sample: Positive | None = Field(
        default=None,
        description="on the data of so many clients, drawn by the seed, with a standard error; default: of all",
    )

    def due(self, round: int) -> bool:
        if self.rounds is not None:
            return round in self.rounds
        return bool(self.every) and round % (self.every or 1) == 0


class Stop(Settings):
    """Early stopping, by a metric of the validation data."""

    section: ClassVar[str] = "stop"
    metric: str = Field(default="val_accuracy", description="of the pooled validation data; `keep: best` goes by it")
    better: Literal["higher", "lower"] | None = Field(
        default=None, description="higher | lower; by default lower for val_nll, val_ece and val_accuracy_sd"
    )
    patience: Positive | None = Field(
        default=None, description="evaluations in a row without a better value, after which the run ends"
    )


class CheckpointTimes(Settings):
    """When the state of the run is saved."""

    section: ClassVar[str] = "checkpoint"
    exclusive: ClassVar[tuple[str, ...]] = ("seconds", "every")
    if_neither: ClassVar[Any] = 60.0
    seconds: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="seconds between checkpoints (60 unless `every` is given); the last round always is"
    )
    every: Positive | None = Field(default=None, description="or: rounds between checkpoints")

    def due(self, round: int, seconds_since: float) -> bool:
        return round % self.every == 0 if self.every else seconds_since >= (self.seconds or 0)


class Execution(Settings):
    """Where and how a run executes; results do not depend on it, except by the rounding of device or engine."""

    section: ClassVar[str] = "execution"
    engine: str = Field(
        default="auto",
        description="serial: in this process | processes: in workers | vectorised: many small models as one, the "
        "same up to rounding | ray: in workers of a Ray cluster | auto: what fits, here",
    )
    workers: Positive | Literal["auto"] = Field(
        default="auto", description="worker processes; auto: as many as there are CPUs to use, or as fit on the cluster"
    )
    ray_address: Text | None = Field(
        default=None, description="ray: the cluster, as HOST:PORT or auto; default: Ray on this machine alone"
    )
    resources: dict[Text, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = Field(
        default=None,
        description="ray: what a worker takes of its node, by Ray's names, as {CPU: 1, GPU: 0.25}; default: a CPU "
        "for each of local.threads and, on a GPU, its share by workers_per_device",
    )
    device: str = Field(
        default="auto",
        description="where clients train: cpu | cuda | cuda:N | mps | xpu | auto (an accelerator, if there is one "
        "and a step is large enough to pay for it); part of a run's identity",
    )
    workers_per_device: Positive = Field(
        default=1, description="processes: workers that share a device, if `workers` is auto"
    )
    deterministic: bool = Field(
        default=True, description="on a device: deterministic algorithms alone; an operation that has none is named"
    )
    tf32: bool = Field(
        default=False, description="cuda: products and convolutions with inputs rounded to TF32, which is faster"
    )
    data: Text | None = Field(
        default=None, description="the folder with downloaded data sets; default: the variable FEDRECALL_DATA"
    )
    client_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None,
        description="processes: seconds after which a worker that has not finished a client is replaced; a Flower "
        "federation: after which a client that has not answered is left out; default: never",
    )
    min_clients: Positive = Field(
        default=1, description="a Flower federation: with fewer clients that answered, a round stops the run"
    )
