"""Components: from names, classes, functions and objects; all else is refused in one sentence."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import cloudpickle
import numpy as np
import pytest
import torch
import yaml
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from fedrecall import (
    WSM,
    CrossEntropy,
    FedAvg,
    Federation,
    FedProx,
    Iid,
    InputError,
    Objective,
    Run,
    Scaffold,
    diagnose,
    federate,
)
from fedrecall.algorithms import ALGORITHM
from fedrecall.config.components import Section
from fedrecall.objectives import OBJECTIVE
from fedrecall.optimisers import SGD

random = np.random.default_rng(0)
x = random.normal(size=(120, 4)).astype(np.float32)
y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)


def named(value: object) -> str:
    """A test's name, the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:60]


# --- a section, which need not be a key at the top ---


@dataclasses.dataclass(frozen=True)
class Sgd:
    lr: Annotated[float, Field(gt=0)]
    betas: tuple[float, ...] = (0.9, 0.99)
    mode: Literal["plain", "fast"] | None = None
    rows: np.ndarray | None = None
    momentum: float = 0.0


OPTIMISER = Section("local.optimiser", {"sgd": Sgd}, Sgd, supplied=frozenset({"momentum"}))


def test_a_tree_is_completed_and_created_with_what_the_program_supplies() -> None:
    whole = {"name": "sgd", "lr": 2.0, "betas": (0.9, 0.99), "mode": None, "rows": None}
    assert OPTIMISER.complete({"lr": "2", "name": "sgd"}) == whole
    assert list(OPTIMISER.complete({"lr": "2", "name": "sgd"})) == list(whole)
    assert OPTIMISER.complete(whole) == whole
    assert OPTIMISER.create(whole, momentum=0.5, unasked=1) == Sgd(2.0, momentum=0.5)
    assert OPTIMISER.describe(Sgd(2.0, momentum=0.5)) == whole


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ("sdg", "local.optimiser is 'sdg', which is not known; did you mean 'sgd'?"),
        ({"lr": 2}, "local.optimiser.name is None; a name was expected; there are: sgd"),
        (3, "local.optimiser.name is 3; a name was expected; there are: sgd"),
        ("sgd", "the key 'local.optimiser.lr' is missing"),
        ({"name": "sgd", "lrr": 1}, "there is no key 'local.optimiser.lrr'; did you mean 'lr'?"),
        ({"name": "sgd", "lr": 1, "momentum": 1}, "there is no key 'local.optimiser.momentum'; did you mean 'mode'?"),
        ({"name": "sgd", "lr": "much"}, "local.optimiser.lr is 'much'; expected a number"),
        ({"name": "sgd", "lr": 0}, "local.optimiser.lr is 0; expected more than 0.0"),
        ({"name": "sgd", "lr": 1, "betas": 3}, "local.optimiser.betas is 3; expected a list"),
        (
            {"name": "sgd", "lr": 1, "betas": [1, "x"]},
            "local.optimiser.betas is [1, 'x']; expected a number instead of 'x'",
        ),
        ({"name": "sgd", "lr": 1, "mode": 3}, "local.optimiser.mode is 3; expected 'plain' or 'fast'"),
        ({"name": "sgd", "lr": 1, "rows": 3}, "its type, numpy.ndarray | None, is none that a recipe has"),
        ({"name": "fedrecall:WSM"}, "'fedrecall:WSM', which is an objective; a Sgd or its name was expected"),
    ],
    ids=named,
)
def test_what_is_wrong_with_a_tree_is_one_sentence(tree, said) -> None:
    for asked in (OPTIMISER.complete, OPTIMISER.create):
        with pytest.raises(InputError, match=re.escape(said) + "$"):
            asked(tree)


# --- given in Python ---


@pytest.fixture
def go(tmp_path: Path):
    """Runs of one linear model on one federation, each in a new folder."""
    federation = Federation.from_arrays(x, y, partition=Iid(clients=4, validation=0.2))
    count = iter(range(100))

    def go(**given: object) -> Run:
        torch.manual_seed(0)
        settings = {"rounds": 2, "clients_per_round": 2, "local": {"lr": 0.1, "batch_size": 8}, **given}
        model = settings.pop("model", None) or nn.Linear(4, 3)
        return federate(model, federation, out=tmp_path / str(next(count)), **settings)  # type: ignore[arg-type]

    return go


def weights(run: Run) -> bytes:
    return (run.path / "model.safetensors").read_bytes()


def recipe(run: Run) -> dict:
    return yaml.safe_load((run.path / "recipe.yaml").read_text())


def cross_entropy(logits, target, smoothing: float = 0.0):
    return F.cross_entropy(logits, target, label_smoothing=smoothing)


class Loss:
    def __call__(self, logits, target):
        return F.cross_entropy(logits, target)


@pytest.mark.parametrize(
    ("section", "given", "same"),
    [
        (OBJECTIVE, "wsm", WSM()),
        (OBJECTIVE, {"name": "wsm", "smoothing": 0.1}, WSM(smoothing=0.1)),
        (OBJECTIVE, WSM, WSM()),
        (OBJECTIVE, WSM(tau=0.5), WSM(tau=0.5)),
        (OBJECTIVE, "fedrecall:CrossEntropy", CrossEntropy()),
        (ALGORITHM, "scaffold", Scaffold()),
        (ALGORITHM, {"name": "scaffold", "server_lr": 0.5}, Scaffold(server_lr=0.5)),
        (ALGORITHM, FedProx, FedProx()),
        (ALGORITHM, "fedrecall:FedProx", FedProx()),
    ],
    ids=named,
)
def test_a_component_may_be_an_instance_a_name_or_a_class(section, given, same) -> None:
    assert section.from_python(given) == same


LOSSES = [
    nn.CrossEntropyLoss(),
    nn.CrossEntropyLoss,
    lambda logits, target: F.cross_entropy(logits, target),
    lambda *both: F.cross_entropy(*both),
    cross_entropy,
    partial(cross_entropy, smoothing=0.0),
    Loss(),
    "torch.nn:CrossEntropyLoss",
    "torch.nn.functional:cross_entropy",
]


@pytest.mark.parametrize("given", LOSSES, ids=named)
def test_an_objective_may_be_any_loss(go, given) -> None:
    assert weights(go(objective=given)) == weights(go(objective=CrossEntropy()))


def test_a_name_is_in_the_recipe_as_it_would_be_from_a_file(go) -> None:
    run = go(algorithm={"name": "scaffold", "server_lr": 0.5}, objective="fedrecall:WSM", model="mlp")
    found = recipe(run)
    assert found["algorithm"] == {"name": "scaffold", "server_lr": 0.5, "weighting": "uniform"}
    assert found["objective"]["name"] == "fedrecall:WSM"
    assert found["model"]["name"] == "mlp"
    assert isinstance(run.model(), nn.Module)


def test_what_a_plain_loss_was_is_in_the_recipe_without_addresses(go) -> None:
    run = go(objective=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1))
    assert recipe(run)["objective"] == {
        "name": "python",
        "class": "torch.nn.modules.loss:CrossEntropyLoss",
        "repr": "CrossEntropyLoss()",
        "options": {
            "reduction": "mean",
            "ignore_index": -100,
            "label_smoothing": 0.1,
            "weight": "tensor([1., 2., 3.])",
        },
    }
    lambda_run = go(objective=lambda logits, target: F.cross_entropy(logits, target))
    assert "0x" not in (lambda_run.path / "recipe.yaml").read_text()
    assert "<lambda>" in recipe(lambda_run)["objective"]["class"]


@pytest.mark.parametrize("engine", ["processes", "vectorised"])
@pytest.mark.usefixtures("warm_workers")
def test_a_plain_loss_works_on_every_engine(go, engine) -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    here, there = go(objective=loss, engine="serial"), go(objective=loss, engine=engine, workers=1)
    ours, theirs = (torch.cat([p.flatten() for p in run.model().parameters()]) for run in (here, there))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert engine == "vectorised" or weights(here) == weights(there)


def test_a_wrapped_lambda_travels() -> None:
    sent = cloudpickle.dumps(OBJECTIVE.from_python(lambda logits, target: 3 * F.cross_entropy(logits, target)))
    logits, target = torch.tensor([[1.0, 2.0], [0.5, 0.0]]), torch.tensor([0, 1])
    arrived = cloudpickle.loads(sent)
    assert arrived(logits, target, {}) == 3 * F.cross_entropy(logits, target)


class Needy(Objective):
    def __init__(self, gamma: float) -> None:
        self.gamma = gamma


def no_gradient(logits, target):
    return (logits.argmax(1) == target).float().mean()


REFUSED = [
    ({"objective": 3}, "objective is 3; an Objective, its name or a function of (logits, target) was expected"),
    ({"objective": int}, "objective is the class int; an Objective"),
    ({"objective": lambda logits: logits}, "a function of (logits, target) was expected"),
    ({"objective": FedAvg}, "objective is the class FedAvg, which is an algorithm; an Objective"),
    ({"objective": FedAvg()}, "objective is FedAvg(), which is an algorithm; an Objective"),
    ({"objective": SGD}, "objective is the class SGD, which is an optimiser; an Objective"),
    ({"objective": Needy}, "objective is the class Needy, which needs gamma; an instance of it was expected"),
    ({"objective": nn.CrossEntropyLoss(reduction="none")}, "which returned a tensor of shape (2,);"),
    ({"objective": nn.BCEWithLogitsLoss()}, "BCEWithLogitsLoss, which fails on logits of shape (2, 3)"),
    ({"objective": nn.Bilinear(2, 2, 1)}, "which has parameters of its own, and nothing trains these"),
    ({"objective": no_gradient}, "no_gradient, which returned a number without a gradient;"),
    ({"objective": "torch:dist"}, "the parameters of 'dist' are not known; a function in Python was expected"),
    ({"algorithm": WSM}, "algorithm is the class WSM, which is an objective; an Algorithm"),
    ({"algorithm": WSM()}, "which is an objective; an Algorithm or its name was expected"),
    ({"algorithm": nn.CrossEntropyLoss()}, "algorithm is CrossEntropyLoss(); an Algorithm or its name"),
    ({"algorithm": "torch.nn:Linear"}, "algorithm is 'torch.nn:Linear'; an Algorithm or its name was expected"),
    ({"model": 3}, "the model is 3; a torch.nn.Module, a function that returns one, or a name was expected"),
    ({"model": "lenett"}, "model is 'lenett', which is not known; did you mean 'lenet'?"),
    ({"model": lambda: 3}, "the model is 3; a torch.nn.Module was expected"),
    ({"model": nn.Linear}, "which needs in_features, out_features; an instance, or a function"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED, ids=named)
def test_all_else_is_one_sentence(go, tmp_path: Path, given, said) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        go(**given)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "0").exists()


def test_a_federation_of_the_wrong_kind_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"the federation is \(1, 2\); a Federation was expected"):
        federate(nn.Linear(4, 3), (1, 2))  # type: ignore[arg-type]


def test_a_diagnosis_takes_a_name_and_refuses_what_is_no_wsm(tmp_path: Path) -> None:
    federation = Federation.from_arrays(x, y, partition={"name": "iid", "clients": 4, "validation": 0.2})
    found = diagnose(nn.Linear(4, 3), federation, objective={"name": "wsm", "tau": 0.5}, out=tmp_path / "a")
    assert recipe(found.wsm)["objective"]["tau"] == 0.5
    with pytest.raises(InputError, match="objective is 'cross_entropy'; a diagnosis compares"):
        diagnose(nn.Linear(4, 3), federation, objective="cross_entropy", out=tmp_path / "b")
