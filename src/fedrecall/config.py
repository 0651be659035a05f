"""The recipe: everything that decides a result, as one documented model, and how its layers are merged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field, model_validator

from fedrecall import registry
from fedrecall.algorithms import ALGORITHMS
from fedrecall.data.partition import PARTITIONS
from fedrecall.data.sources import DATASETS
from fedrecall.errors import InputError, nearest
from fedrecall.models import MODELS
from fedrecall.objectives import OBJECTIVES
from fedrecall.own_code import note_key
from fedrecall.reading import MOST_YAML, yaml_value
from fedrecall.settings import (
    BadUpdates,
    BatchNorm,
    Checkpoint,
    Evaluation,
    Execution,
    Forgetting,
    Keep,
    Local,
    Positive,
    Settings,
    Stop,
    Whole,
    exclusive,
    name_or_group,
    shown,
)

Tree = dict[str, Any]

# The sections whose `name` chooses something, which then has options of its own.
NAMED: dict[str, Mapping[str, Callable[..., Any]]] = {
    "data": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "objective": OBJECTIVES,
    "algorithm": ALGORITHMS,
}

# Giving one of a pair drops the other from the layers below.
EITHER_OR = [
    ("participation", "clients_per_round"),
    ("local.epochs", "local.steps"),
    ("forgetting.every", "forgetting.rounds"),
    ("checkpoint.seconds", "checkpoint.every"),
]

# Stands for a section that was given as a Python object, which a recipe cannot build again.
FROM_PYTHON: Tree = {"name": "python"}

Named = Annotated[Tree, BeforeValidator(name_or_group)]


class Recipe(Settings):
    """Everything that decides the result of a run, and where it runs."""

    data: Named = Field(default={"name": "cifar10"}, description="the data set")
    partition: Named = Field(default={"name": "dirichlet"}, description="who has which of its samples")
    model: Named = Field(default={"name": "lenet"}, description="the model")
    objective: Named = Field(default={"name": "wsm"}, description="the clients' loss")
    algorithm: Named = Field(default={"name": "fedavg"}, description="how the clients' models become one")
    rounds: Positive = Field(default=4000, description="communication rounds")
    participation: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="the fraction of clients in a round (0.1 unless `clients_per_round` is given)"
    )
    clients_per_round: Positive | None = Field(default=None, description="or: how many clients are in a round")
    local: Local = Field(default_factory=Local, description="how a client trains")
    batch_norm: BatchNorm = Field(
        default="average",
        description="its statistics: average (weighted by samples) | local (they stay with the client)",
    )
    bad_updates: BadUpdates = Field(
        default="drop",
        description="a client whose update is not finite: drop (the round goes on without it) | stop",
    )
    evaluation: Evaluation = Field(default_factory=Evaluation, description="when the global model is evaluated")
    forgetting: Forgetting = Field(default_factory=Forgetting, description="when forgetting is measured")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="when the state of the run is saved")
    stop: Stop = Field(default_factory=Stop, description="when the run has learned enough")
    keep: Keep = Field(
        default="last",
        description="the model of model.safetensors: of the last round | of the best, by stop.metric",
    )
    init: str | None = Field(
        default=None, description="a .safetensors file with the weights to start from; default: drawn by the seed"
    )
    seed: Whole = Field(default=0, description="of initial weights, client sampling, batches and augmentation")
    execution: Execution = Field(default_factory=Execution, description="where and how it runs")

    @model_validator(mode="after")
    def _resolve(self) -> Recipe:
        exclusive(self, "participation", "clients_per_round")
        if self.participation is None and self.clients_per_round is None:
            object.__setattr__(self, "participation", 0.1)
        for section, listing in NAMED.items():
            object.__setattr__(self, section, with_defaults(section, getattr(self, section), listing))
        return self

    @classmethod
    def nearest_key(cls, key: str) -> str:
        """Also the keys of the groups: `lr` is probably `local.lr`."""
        for section, field in cls.model_fields.items():
            group = field.annotation
            inner = group.model_fields if isinstance(group, type) and issubclass(group, Settings) else {}
            if key in inner or key in option_names(section):
                return f"did you mean {f'{section}.{key}'!r}?"
        return nearest(key, cls.model_fields)

    def build(self, section: str, **supplied: Any) -> Any:
        """The partition, model, objective, algorithm or data set that the recipe names."""
        chosen = getattr(self, section)
        if chosen["name"] == FROM_PYTHON["name"]:
            raise InputError(f"{section} was given as a Python object; start this run again from Python")
        target = registry.find(section, chosen["name"], NAMED[section])
        given = {key: value for key, value in chosen.items() if key != "name"}
        try:
            return registry.build(section, target, given, supplied)
        except InputError:
            raise
        except Exception as error:
            if ":" in chosen["name"]:
                note_key(error, section, chosen["name"])
            raise

    def tree(self) -> Tree:
        """As plain values, every key spelled out, those of a pair that were not chosen left out."""
        return json.loads(self.model_dump_json(exclude_none=True))  # type: ignore[no-any-return]

    def yaml(self) -> str:
        return yaml.safe_dump(self.tree(), sort_keys=False, allow_unicode=True, width=100)

    def digest(self, engine: str = "") -> str:
        """The identity of the result: the hash of all that decides it.

        Of the engines, `vectorised` alone rounds in its own way.
        """
        tree = {key: value for key, value in self.tree().items() if key not in ("execution", "checkpoint")}
        if engine == "vectorised":
            tree["engine"] = engine
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def option_names(section: str) -> set[str]:
    """Every option of everything that can be named in this section."""
    return {key for target in NAMED.get(section, {}).values() for key in registry.options(target)}


def with_defaults(section: str, chosen: Any, listing: Mapping[str, Callable[..., Any]]) -> Tree:
    name = chosen.get("name")
    if not isinstance(name, str):
        raise InputError(f"{section}.name is {shown(name)}; a name was expected; {nearest('', listing)}")
    if name == FROM_PYTHON["name"]:
        return dict(chosen)
    given = {key: value for key, value in chosen.items() if key != "name"}
    target = registry.find(section, name, listing)
    return {"name": name, **registry.complete(section, target, given)}


def load(source: str | None, overrides: Iterable[str] = (), extra: Tree | None = None) -> Recipe:
    """A shipped recipe's name or a YAML file, and `key=value` over it; `extra` goes over both."""
    merged: Tree = {section: Recipe.model_fields[section].default for section in NAMED}
    for layer in (read(source) if source else {}, from_words(overrides), extra or {}):
        merged = merge(without_the_others(merged, layer), layer)
    return Recipe(**merged)


def shipped() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    folder = Path(str(resources.files("fedrecall") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read(source: str) -> Tree:
    """The tree of a shipped recipe or of a file."""
    known = shipped()
    path = known.get(source, Path(source))
    if path.is_dir():
        raise InputError(f"the recipe {source!r} is a folder; a file was expected, as {source}/recipe.yaml")
    if not path.is_file():
        if path.suffix in (".yaml", ".yml") or "/" in source:
            raise InputError(f"there is no recipe file {source!r}")
        raise InputError(f"there is no recipe {source!r}, by name or as a file; {nearest(source, known)}")
    try:
        tree = yaml_value(text_of(path))
    except InputError as error:
        raise InputError(f"the recipe {source!r}: {error}") from None
    except UnicodeDecodeError:
        raise InputError(f"the recipe {source!r}: it is not YAML: it is not text in UTF-8") from None
    except OSError as error:
        raise InputError(f"the recipe {source!r} cannot be read: {error.strerror}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise InputError(f"the recipe {source!r} is not a list of keys and values")
    return tree


def text_of(path: Path) -> str:
    """No more of a file than a recipe may have, were it a disk image."""
    with path.open(encoding="utf-8") as file:
        return file.read(MOST_YAML + 1)


def from_words(words: Iterable[str]) -> Tree:
    """`local.lr=0.05` and the like as a tree. Values are YAML."""
    tree: Tree = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise InputError(f"{word!r} is not a setting; key=value was expected, as in local.lr=0.05")
        try:
            value = yaml_value(text)
        except InputError:
            raise InputError(f"{key} is {text!r}, which is not a value; quote it") from None
        place(tree, key.split("."), value, key)
    return tree


def place(tree: Tree, path: list[str], value: Any, key: str) -> None:
    for part in path[:-1]:
        inner = tree.setdefault(part, {})
        if isinstance(inner, str):  # objective=wsm objective.tau=0.5
            inner = tree[part] = {"name": inner}
        if not isinstance(inner, dict):
            raise InputError(f"{key} is given, but {part} is given as a value too")
        tree = inner
    last = path[-1]
    if isinstance(tree.get(last), dict) and isinstance(value, str):  # objective.tau=0.5 objective=wsm
        value = {**tree[last], "name": value}
    tree[last] = value


def merge(below: Tree, above: Tree) -> Tree:
    """`above` over `below`. Another name drops the options of the one before."""
    result = dict(below)
    for key, value in above.items():
        result[key] = over(result.get(key), value)
    return result


def over(below: Any, above: Any) -> Any:
    if isinstance(below, dict):
        above = name_or_group(above)
    if isinstance(above, dict):
        below = name_or_group(below)
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    renamed = "name" in above and above["name"] != below.get("name")
    return above if renamed else merge(below, above)


def without_the_others(below: Tree, above: Tree) -> Tree:
    """`below` without the keys that exclude one which `above` gives."""
    for pair in EITHER_OR:
        for given, other in (pair, pair[::-1]):
            if look_up(above, given) is not None and look_up(above, other) is None:
                below = without(below, other.split("."))
    return below


def without(tree: Tree, path: list[str]) -> Tree:
    inner = tree.get(path[0])
    if len(path) > 1 and isinstance(inner, dict):
        return {**tree, path[0]: without(inner, path[1:])}
    return {key: value for key, value in tree.items() if len(path) > 1 or key != path[0]}


def look_up(tree: Tree, key: str) -> Any:
    inner: Any = tree
    for part in key.split("."):
        inner = inner.get(part) if isinstance(inner, dict) else None
    return inner
