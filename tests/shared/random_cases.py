"""Random runs, each made from its number alone: data, clients, model, and all settings of a recipe."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from random_models import VOCABULARY, Shape, build
from torch import Tensor, nn

from fedrecall import Federation, Images, Objective
from fedrecall.algorithms import ALGORITHMS
from fedrecall.core.labels import Labels
from fedrecall.core.vector import Tensors
from fedrecall.objectives import OBJECTIVES

BATCH_SIZES = [1, 8, 15, 16, 17, 33]
CLIENTS = [1, 2, 16, 17, 40]  # a round; sixteen are a leaf of the sum, and sixteen lanes a vector
DATA = ["images"] * 4 + ["float images", "float64 images", "vectors", "vectors", "float64 vectors", "tokens"]
LOOKS = ["noise", "noise", "constant", "saturated"]
TOKENS = ["int64", "int32", "uint8"]
MOST_STEPS = 160  # of all clients of a round, about: a case should take a second

# Options that differ from the defaults, as ranges from which logarithms are drawn evenly, or as lists.
# Cases from this number on draw from what has been added since, so that those before stay what they are.
LATER = 100_000
FIRST_ALGORITHMS = (
    "fedavg", "fedprox", "scaffold", "fednova", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "feddyn", "moon",
    "fedexp", "gma", "fedcurv", "centralised", "local_only",
)  # fmt: skip
FIRST_OBJECTIVES = ("cross_entropy", "wsm", "mask", "fedrs", "fedlc", "fedntd", "fedvls")
LATER_ALGORITHMS = [
    name
    for name, kind in ALGORITHMS.items()
    if name not in FIRST_ALGORITHMS and "server_data" not in kind.needs  # which these cases have none of
]
ALGORITHM_OPTIONS: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": (1e-3, 2.0)},
    "scaffold": {"server_lr": (0.3, 1.5), "weighting": ["uniform", "samples"]},
    "fednova": {"mu": [0.0, 0.1]},
    "fedavgm": {"server_lr": (0.3, 1.5), "momentum": [0.0, 0.5, 0.9]},
    "fedadam": {"server_lr": (1e-3, 0.1), "beta1": [0.0, 0.9], "beta2": [0.5, 0.99], "tau": (1e-3, 0.1)},
    "fedyogi": {"server_lr": (1e-3, 0.1), "beta1": [0.0, 0.9], "beta2": [0.5, 0.99], "tau": (1e-3, 0.1)},
    "fedadagrad": {"server_lr": (1e-3, 0.1), "tau": (1e-3, 0.1)},
    "feddyn": {"alpha": (1e-3, 0.5)},
    "moon": {"mu": (0.1, 5.0), "temperature": (0.2, 2.0), "representation": [None, None, "0"]},
    "fedexp": {"eps": (1e-4, 1e-2)},
    "gma": {"tau": [0.0, 0.4, 1.0], "server_lr": (0.3, 1.5)},
    "fedcurv": {"lam": (1e-3, 1.0)},
}
OBJECTIVE_OPTIONS: dict[str, dict[str, Any]] = {
    "wsm": {
        "tau": [0.0, 0.5, 1.0, 2.0], "smoothing": [0.0, 0.003, 0.3, 1.0], "distill": [0.0, 0.0, 0.1],
        "prior": ["uniform", "uniform", "pooled"],
    },
    "fedrs": {"alpha": [0.0, 0.5, 1.0]},
    "fedlc": {"tau": [0.0, 0.5, 1.0]},
    "fedntd": {"beta": (0.1, 2.0), "temperature": [1.0, 3.0]},
    "fedvls": {"lam": [0.0, 0.1], "suppress": [0.0, 0.005]},
}  # fmt: skip


class OwnClasses(Objective):
    """Cross-entropy over a client's own classes, and the mean square of their logits."""

    def prepare(self, labels: Labels) -> Tensors:
        own = labels.counts.nonzero()[:, 0]
        place = torch.full((len(labels.counts),), -1)
        place[own] = torch.arange(len(own))
        return {"own": own, "place": place}

    def __call__(self, logits: Tensor, target: Tensor, client: Tensors, teacher: Tensor | None = None) -> Tensor:
        own = logits[:, client["own"]]
        return nn.functional.cross_entropy(own, client["place"][target]) + 0.1 * own.square().mean()


def margin_loss(logits: Tensor, target: Tensor) -> Tensor:
    """A function of logits and labels, as users have them."""
    return (1 + logits - logits.gather(1, target[:, None])).relu().mean()


OWN_OBJECTIVES = {
    "own classes": OwnClasses(),
    "margin": margin_loss,
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
}


@dataclass
class Case:
    """One random run. Whatever is not drawn here is drawn from `stream`, by purpose."""

    number: int
    plain: bool  # nothing but what there are kernels for
    data: str
    look: str  # of the samples' values
    shape: Shape  # of a sample as the model sees it
    classes: int
    per_round: int  # clients
    sizes: list[int]  # of the clients, held-out ones last
    held_out: int
    validation: float
    augments: bool
    tests: bool
    float64: bool  # the model's precision
    from_instance: bool  # the model is given as an object, not as a function
    algorithm: dict[str, Any]
    objective: Any
    local: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)  # the other keys of the recipe

    @property
    def pooled(self) -> bool:
        return self.algorithm["name"] == "centralised"

    def stream(self, purpose: int) -> Generator:
        return np.random.default_rng([self.number, purpose])

    def module(self) -> nn.Module:
        """The model, with weights that are drawn from torch's default generator."""
        made = build(self.number, self.shape, self.classes, tokens=self.data == "tokens", plain=self.plain)
        return made.double() if self.float64 else made

    @cached_property
    def instance(self) -> nn.Module:
        """The model, with weights that are a function of the case's number; no layer is lazy any more."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.number)
            made = self.module()
            with torch.no_grad():
                made.eval()(self.dry_batch())
            return made.train()

    def dry_batch(self) -> Tensor:
        dtype = torch.float64 if self.float64 else torch.float32
        return torch.zeros(2, *self.shape, dtype=torch.int64 if self.data == "tokens" else dtype)

    @property
    def model(self) -> Any:
        """What `federate` is given."""
        return copy.deepcopy(self.instance) if self.from_instance else partial(module_of, self.number)

    def samples(self, random: Generator, count: int) -> np.ndarray:
        """Samples as they are stored: images channels last if they are bytes."""
        if self.data == "tokens":
            return random.integers(0, VOCABULARY, (count, *self.shape)).astype(TOKENS[self.number % 3])
        if self.look == "constant":
            level = random.random((count, *[1] * len(self.shape)))
            values = np.broadcast_to(level, (count, *self.shape))
        elif self.look == "saturated":
            values = random.integers(0, 2, (count, *self.shape)).astype(float)
        else:
            values = random.random((count, *self.shape))
        if self.data == "images":
            return np.ascontiguousarray(np.rint(255 * values).astype(np.uint8).transpose(0, 2, 3, 1))
        return (2 * values - 1).astype("float64" if "64" in self.data else "float32")

    def labels(self, random: Generator, count: int) -> np.ndarray:
        """Labels of some of the classes."""
        own = random.choice(self.classes, random.integers(1, self.classes + 1), replace=False)
        return random.choice(own, count)

    def federation(self) -> Federation:
        random = self.stream(2)
        clients = [(self.samples(random, n), self.labels(random, n)) for n in self.sizes]
        clients[0][1][:2] = [0, 1][: self.sizes[0]]  # one class alone is refused
        test = (self.samples(random, 12), np.arange(12) % self.classes) if self.tests else None
        transform = None
        if self.data == "images" and self.augments:
            channels = self.shape[0]
            transform = Images((0.5,) * channels, (0.25,) * channels, crop_padding=1, flip=True)
        return Federation.from_clients(
            clients, test=test, num_classes=self.classes, validation=self.validation, held_out=self.held_out,
            seed=self.number, transform=transform, layout="nhwc",
        )  # fmt: skip

    def __str__(self) -> str:
        shown = {key: value for key, value in vars(self).items() if key not in ("number", "instance")}
        return f"case {self.number}: {shown}\n{self.instance}"


def module_of(number: int) -> nn.Module:
    return case_of(number).module()


def chance(random: Generator, share: float) -> bool:
    return bool(random.random() < share)


def case_of(number: int) -> Case:
    """Return the case of a number."""
    random = np.random.default_rng([number, 0])
    plain, data = chance(random, 0.5), str(random.choice(DATA))
    shape, classes = sample_shape(random, data), int(random.integers(2, 6))
    local = local_settings(random, plain=plain)
    per_round = int(random.choice(CLIENTS))
    validation = float(random.choice([0.0, 0.2, 0.2, 0.2]))  # a fifth of all is a quarter of the rest
    population = per_round + int(random.choice([0, 0, 1, 3]))
    held_out = int(random.choice([0, 0, 0, 1, 2]))
    sizes = client_sizes(random, population + held_out, per_round, local, validation)
    case = Case(
        number, plain, data, str(random.choice(LOOKS)), shape, classes, per_round, sizes, held_out, validation,
        tests=chance(random, 0.4), augments=chance(random, 0.4), float64=chance(random, 0.08),
        from_instance=chance(random, 0.5), algorithm=chosen_algorithm(random, number),
        objective=chosen_objective(random, number), local=local,
    )  # fmt: skip
    case.settings = other_settings(random, case, population)
    return case


def sample_shape(random: Generator, data: str) -> Shape:
    if "images" in data:
        channels = int(random.choice([1, 2, 3])) if data != "images" else int(random.choice([1, 3]))
        return (channels, int(random.integers(4, 12)), int(random.integers(4, 12)))
    if data == "tokens":
        return (int(random.integers(2, 10)),)
    return (int(random.integers(16, 40)) if random.random() < 0.8 else int(random.integers(1, 16)),)


def local_settings(random: Generator, *, plain: bool) -> dict[str, Any]:
    local: dict[str, Any] = {
        "batch_size": int(random.choice(BATCH_SIZES, p=[0.1, 0.18, 0.18, 0.18, 0.18, 0.18])),
        "lr": float(random.choice([0.0, 0.003, 0.01, 0.03, 0.05, 0.1], p=[0.06, 0.14, 0.2, 0.2, 0.2, 0.2])),
        "momentum": float(random.choice([0.0, 0.0, 0.5, 0.9])),
        "weight_decay": float(random.choice([0.0, 1e-4, 0.01])),
        "partial_batch": str(random.choice(["drop", "keep"])),
        "step": "lanes" if random.random() < (0.75 if plain else 0.25) else "exact",
    }
    local |= {"epochs": int(random.integers(1, 3))} if random.random() < 0.7 else {"steps": int(random.integers(1, 6))}
    if random.random() < 0.4:
        local["schedule"] = [
            {"name": "step", "factor": 0.5, "every": 1}, {"name": "exponential", "factor": 0.9},
            {"name": "exponential", "factor": 1e-30}, {"name": "constant", "warmup": 2}, {"name": "cosine"},
        ][random.integers(5)]  # fmt: skip
    if random.random() < 0.2:
        local["beta_from"] = "train+validation"
    if random.random() < 0.03:
        local["precision"] = "bfloat16"
    if random.random() < 0.03:
        local["threads"] = 2
    return local


def client_sizes(
    random: Generator, clients: int, per_round: int, local: dict[str, Any], validation: float
) -> list[int]:
    """Equal sizes, or some that are a batch, less than one, or several and a rest; in all not too many steps."""
    batch = local["batch_size"]
    most = max(2, batch * MOST_STEPS // (per_round * local.get("epochs", 1)))
    training = [n for n in (batch, batch + 1, 2 * batch, 2 * batch + 3, batch - 1, 3, 2) if 2 <= n <= most] or [2]
    kinds = random.choice(training, 1 if random.random() < 0.4 else 2)
    return [n + (max(1, round(n / 4)) if validation else 0) for n in random.choice(kinds, clients).tolist()]


def drawn(random: Generator, options: dict[str, Any]) -> dict[str, Any]:
    """Values for some of the options."""
    found: dict[str, Any] = {}
    for key, values in options.items():
        if random.random() < 0.3:
            continue
        if isinstance(values, tuple):
            found[key] = float(np.exp(random.uniform(*np.log(values))))
        else:
            found[key] = values[random.integers(len(values))]
    return found


def chosen_algorithm(random: Generator, number: int) -> dict[str, Any]:
    name = str(random.choice(list(FIRST_ALGORITHMS) if number < LATER else LATER_ALGORITHMS))
    return {"name": name, **drawn(random, ALGORITHM_OPTIONS.get(name, {}))}


def chosen_objective(random: Generator, number: int) -> Any:
    """As a recipe names it, or an object of the user's own."""
    if random.random() < 0.08:
        return OWN_OBJECTIVES[str(random.choice(list(OWN_OBJECTIVES)))]
    first = list(FIRST_OBJECTIVES) if number < LATER else list(OBJECTIVES)
    names = [*first, "cross_entropy", "wsm", "wsm"]
    name = str(random.choice(names))
    return {"name": name, **drawn(random, OBJECTIVE_OPTIONS.get(name, {}))}


def other_settings(random: Generator, case: Case, population: int) -> dict[str, Any]:
    rounds = int(random.integers(2, 4 if case.per_round > 2 else 6))
    settings: dict[str, Any] = {
        "rounds": rounds,
        "seed": int(random.integers(0, 1000)),
        "evaluation": {"every": int(random.integers(1, 4)), "test_last": int(random.integers(0, 2))},
        "checkpoint": {"every": 1},
    }
    settings |= {"clients_per_round": case.per_round} if case.per_round < population else {"participation": 1.0}
    one_model = not ALGORITHMS[case.algorithm["name"]].personal
    refusable = chance(random, 0.1)  # what follows may also be what is refused
    if case.validation and random.random() < 0.5 and (refusable or (one_model and not case.pooled)):
        kinds = [{"every": 1}, {"every": 2}, {"rounds": [1, rounds]}, {"every": 1, "sample": 1}]
        settings["forgetting"] = kinds[random.integers(4)]
    if random.random() < 0.15 and (refusable or one_model):
        settings["evaluation"]["prior"] = str(random.choice(["uniform", "pooled"]))
    if case.validation and random.random() < 0.15 and (refusable or one_model):
        settings["keep"] = "best"
    if random.random() < 0.15 and (
        refusable or not (case.held_out or case.pooled or case.algorithm["name"] == "ditto")
    ):
        settings["batch_norm"] = "local"
        if not refusable:
            settings["evaluation"]["test_last"] = 0
    return settings
