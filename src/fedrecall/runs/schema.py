"""Schemas of a run's files: the keys and values that the report and a resume rely on."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from fedrecall.config.options import LARGEST_REAL, Whole
from fedrecall.errors import InputError, expectation, short_repr


class Recorded(BaseModel):
    """Keys of a file and the types of their values; a newer run may add keys."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def keys(base: type[Recorded] = Recorded, /, **kinds: Any) -> type[Recorded]:
    """Return a model of optional keys, which an older run may lack; null counts as missing."""
    fields: dict[str, Any] = {key: (kind | None, None) for key, kind in kinds.items()}
    return create_model("Keys", __base__=base, **fields)


def number_or_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_REAL:
        raise ValueError("expected a number or a group of keys")
    return value


class NamedSection(Recorded):
    name: str


class Sections(Recorded):
    data: NamedSection
    partition: NamedSection
    model: NamedSection
    objective: NamedSection
    algorithm: NamedSection


RECIPE_KEYS = keys(
    Sections,
    rounds=Whole,
    clients_per_round=Whole,
    participation=Annotated[Any, AfterValidator(number_or_keys)],
    seed=Whole,
    batch_norm=str,
    local=keys(
        **dict.fromkeys(("lr", "momentum", "weight_decay"), float),
        **dict.fromkeys(("epochs", "steps", "batch_size"), Whole),
        schedule=keys(name=str, warmup=Whole),
    ),
    evaluation=dict,
)
OWN_KEYS = {  # options of built-in partitions and models; user-defined ones may use these names otherwise
    "partition": keys(alpha=float, validation=float, clients=Whole, held_out=Whole, seed=Whole),
    "model": keys(norm=str),
}
SUMMARY_KEYS = keys(
    **dict.fromkeys(("final_accuracy", "final_accuracy_macro", "forgetting", "learned", "seconds"), float),
    final_accuracy_rounds=Whole,
    status=str,
    meant_for=str,
)
ORIGIN_KEYS = keys(
    data=keys(digest=str, sample_shape=list, classes=Whole),
    partition=dict,
    model=keys(structure=str, weights=str, code=dict),
    objective=keys(code=dict),
    algorithm=keys(code=dict),
    recipe=str,
)
CARD_KEYS = keys(
    clients=Whole,
    classes=Whole,
    one_class_clients=keys(count=Whole),
    samples=keys(validation=float),
    validation_size=keys(median=float),
    class_names=list,
    client_names=list,
    class_sharing=keys(classes=Whole, parts=Whole, clients_per_pair=float, unshared_pairs=float),
    digest=str,
)
DIAGNOSIS_KEYS = keys(runs=dict, sentences=list[str], notes=list[str])


class RoundLine(Recorded):
    round: Whole


class MetricsLine(RoundLine, extra="allow"):
    """A line of `metrics.jsonl`: the client ids and numbers, null for those that are not finite."""

    __pydantic_extra__: dict[str, float | None]
    clients: list[Any] | None = None


class EventLine(RoundLine):
    event: str | None = None
    message: str | None = None


class ClientsLine(Recorded):
    """A line of `clients.jsonl`."""

    client: list[Whole]
    val_accuracy: list[Any]


class FileNote(Recorded):
    """The size and SHA-256 of a recorded file; `or` has those after a rewrite."""

    bytes: Whole
    sha256: str
    rewritten: FileNote | None = Field(default=None, alias="or")


class CheckpointNote(Recorded, extra="forbid"):
    """The note of a checkpoint; older notes lack the keys with a default."""

    round: Whole
    sha256: str  # of the file with the tensors
    fedrecall: str
    recipe_sha256: str
    recipe: dict[str, Any]
    records: dict[str, FileNote] = {}
    device: str = "cpu"
    note_sha256: str | None = None


def check(file: str, tree: object, kind: type[Recorded] = Recorded, section: str = "") -> None:
    """Raise an `InputError` that begins with `file` unless the tree is valid for this model."""
    if not isinstance(tree, dict):
        raise InputError(f"{file} is damaged: it does not hold keys and values")
    try:
        kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, (section, *first["loc"]) if section else first["loc"]))
        other = {"missing": f"the key {key!r} is missing", "extra_forbidden": f"there is no key {key!r}"}
        wrong = other.get(first["type"]) or f"{key} is {short_repr(first['input'])}; {expectation(first)}"
        raise InputError(f"{file} is damaged: {wrong}") from None


def check_recipe(file: str, recipe: dict[str, Any]) -> None:
    check(file, recipe, RECIPE_KEYS)
    for section, kind in OWN_KEYS.items():
        if ":" not in recipe[section]["name"]:
            check(file, recipe[section], kind, section)


def check_probe(probe: dict[str, np.ndarray]) -> None:
    """Raise an `InputError` unless the ids of a probe are integers and its accuracies have matching shapes."""
    models, data = probe["models"], probe["data"]
    ids = models.ndim == data.ndim == 1 and models.dtype.kind in "iu" and data.dtype.kind in "iu"
    if not ids or not len(models) or not len(data) or len(set(data.tolist())) < len(data):
        raise InputError("its models and data are not the ids of clients")
    shapes = {"before": (len(data),), "after": (len(models), len(data))}
    if {"class_before", "class_after", "present"} <= set(probe):
        classes = (len(models), *probe["class_before"].shape)
        shapes |= {"class_before": classes[1:2], "class_after": classes, "present": classes}
    for key, shape in shapes.items():
        if probe[key].shape != shape or probe[key].dtype.kind not in "fb" or not are_shares(probe[key]):
            raise InputError(f"{key} does not hold accuracies of shape {shape}")


def are_shares(values: np.ndarray) -> bool:
    """Whether all values are NaN or from 0 to 1."""
    return not ((values < 0) | (values > 1)).any()


def check_counts(counts: np.ndarray) -> None:
    if counts.ndim != 2 or counts.dtype.kind not in "iu" or not counts.size or counts.min() < 0:
        raise InputError("class_counts are not samples by client and class")
