"""What is given for an objective, an algorithm or a model: names, classes and functions are understood, and all
else is refused in one sentence."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
import yaml
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
from fedrecall.objectives import OBJECTIVE

random = np.random.default_rng(0)
x = random.normal(size=(120, 4)).astype(np.float32)
y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)


def named(value: object) -> str:
    """A test's name, the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:60]


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
    ("given", "same"),
    [
        ("wsm", WSM()),
        ({"name": "wsm", "smoothing": 0.1}, WSM(smoothing=0.1)),
        (WSM, WSM()),
        ("fedrecall:CrossEntropy", CrossEntropy()),
        (nn.CrossEntropyLoss(), CrossEntropy()),
        (nn.CrossEntropyLoss, CrossEntropy()),
        (lambda logits, target: F.cross_entropy(logits, target), CrossEntropy()),
        (cross_entropy, CrossEntropy()),
        (partial(cross_entropy, smoothing=0.0), CrossEntropy()),
        (Loss(), CrossEntropy()),
        ("torch.nn:CrossEntropyLoss", CrossEntropy()),
        ("torch.nn.functional:cross_entropy", CrossEntropy()),
    ],
    ids=named,
)
def test_an_objective_may_be_a_name_a_class_or_any_loss(go, given, same) -> None:
    assert weights(go(objective=given)) == weights(go(objective=same))


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ("scaffold", Scaffold()),
        ({"name": "scaffold", "server_lr": 0.5}, Scaffold(server_lr=0.5)),
        (FedProx, FedProx()),
        ("fedrecall:FedProx", FedProx()),
    ],
    ids=named,
)
def test_an_algorithm_may_be_a_name_or_a_class(go, given, same) -> None:
    assert weights(go(algorithm=given)) == weights(go(algorithm=same))


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
def test_a_plain_loss_works_on_every_engine(go, engine) -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    here, there = go(objective=loss, engine="serial"), go(objective=loss, engine=engine, workers=1)
    ours, theirs = (torch.cat([p.flatten() for p in run.model().parameters()]) for run in (here, there))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert engine == "vectorised" or weights(here) == weights(there)


def test_a_wrapped_lambda_travels() -> None:
    sent = cloudpickle.dumps(OBJECTIVE.of(lambda logits, target: 3 * F.cross_entropy(logits, target)))
    logits, target = torch.tensor([[1.0, 2.0], [0.5, 0.0]]), torch.tensor([0, 1])
    arrived = cloudpickle.loads(sent)
    assert arrived(logits, target, {}) == 3 * F.cross_entropy(logits, target)


class Needy(Objective):
    def __init__(self, gamma: float) -> None:
        self.gamma = gamma


def no_gradient(logits, target):
    return (logits.argmax(1) == target).float().mean()


REFUSED = [
    ({"objective": "wms"}, "objective is 'wms', which is not known; did you mean 'wsm'?"),
    ({"objective": {"tau": 2}}, "objective.name is None; a name was expected"),
    ({"objective": {"name": "wsm", "ta": 2}}, "there is no key 'objective.ta'; did you mean 'tau'?"),
    ({"objective": 3}, "objective is 3; an Objective, its name or a function of (logits, target) was expected"),
    ({"objective": int}, "objective is the class int; an Objective"),
    ({"objective": lambda logits: logits}, "a function of (logits, target) was expected"),
    ({"objective": FedAvg}, "objective is the class FedAvg, which is an algorithm; an Objective"),
    ({"objective": FedAvg()}, "objective is FedAvg(), which is an algorithm; an Objective"),
    ({"objective": Needy}, "objective is the class Needy, which needs gamma; an instance of it was expected"),
    (
        {"objective": nn.CrossEntropyLoss(reduction="none")},
        "which returned a tensor of shape (2,);",
    ),
    (
        {"objective": nn.BCEWithLogitsLoss()},
        "BCEWithLogitsLoss, which fails on logits of shape (2, 3)",
    ),
    ({"objective": nn.Bilinear(2, 2, 1)}, "which has parameters of its own, and nothing trains these"),
    ({"objective": no_gradient}, "no_gradient, which returned a number without a gradient;"),
    ({"objective": "torch:dist"}, "nobody knows the parameters of 'dist'"),
    (
        {"algorithm": WSM},
        "algorithm is the class WSM, which is an objective; an Algorithm",
    ),
    ({"algorithm": WSM()}, "which is an objective; an Algorithm or its name was expected"),
    ({"algorithm": "fedrecall:WSM"}, "algorithm is 'fedrecall:WSM', which is an objective; an Algorithm"),
    (
        {"algorithm": nn.CrossEntropyLoss()},
        "algorithm is CrossEntropyLoss(); an Algorithm or its name",
    ),
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


# --- in a recipe ---

MINE = """
from torch import nn
from torch.nn import functional as F
from fedrecall import Objective

def smooth(logits, target, smoothing: float = 0.0):
    return F.cross_entropy(logits, target, label_smoothing=smoothing)

class Focal(Objective):
    def __call__(self, logits, target, client, teacher=None):
        return F.cross_entropy(logits, target)

def makes_focal(gamma: float = 1.0):
    return Focal()

class Loss:
    def __call__(self, logits, target, factor: float = 1.0):
        return factor * F.cross_entropy(logits, target)

instance, of_torch, focal = Loss(), nn.CrossEntropyLoss(), Focal()

def many(logits, target):
    return F.cross_entropy(logits, target, reduction="none")
"""

SMALL = [
    "rounds=1", "model=mlp", "model.hidden=[8]", "local.steps=2", "evaluation.test_last=1", "forgetting.every=0",
    "partition.clients=10", "clients_per_round=3", "--no-report", "--engine", "serial", "--json",
]  # fmt: skip


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"kinds_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_a_function_of_the_users_own_is_an_objective_in_a_recipe(fedrecall, mine) -> None:
    losses = {}
    for out, words in {
        "usual": ["objective=cross_entropy"],
        "mine": [f"objective={mine}:smooth"],
        "smooth": [f"objective={mine}:smooth", "objective.smoothing=0.5"],
        "made": [f"objective={mine}:makes_focal", "objective.gamma=2"],
        "instance": [f"objective={mine}:instance", "objective.factor=1"],
        "of_torch": [f"objective={mine}:of_torch"],
        "focal": [f"objective={mine}:focal"],
    }.items():
        done = fedrecall("run", "demo", *SMALL, "local.step=exact", *words, "--out", out)
        assert done.code == 0, done.err
        losses[out] = json.loads(Path(out, "metrics.jsonl").read_text())["train_loss"]
    assert losses.pop("smooth") > losses["usual"]
    assert len(set(losses.values())) == 1
    assert yaml.safe_load(Path("smooth/recipe.yaml").read_text())["objective"] == {
        "name": f"{mine}:smooth",
        "smoothing": 0.5,
    }
    done = fedrecall("run", "smooth/recipe.yaml", "--json", "--out", "again")
    assert done.code == 0, done.err
    assert Path("again/metrics.jsonl").read_bytes() == Path("smooth/metrics.jsonl").read_bytes()


def test_a_loss_of_torch_runs_again_from_its_own_recipe(fedrecall, mine) -> None:
    assert fedrecall("run", "demo", *SMALL, "objective=torch.nn:CrossEntropyLoss", "--out", "a").code == 0
    done = fedrecall("run", "a/recipe.yaml", "--json", "--out", "b")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm={mine}:Focal"], "algorithm is '{mine}:Focal', which is an objective; an Algorithm"),
        (["algorithm={mine}:makes_focal"], "which is an objective; an Algorithm or its name was expected"),
        (["objective=fedrecall:FedAvg"], "objective is 'fedrecall:FedAvg', which is an algorithm; an Objective"),
        (["objective={mine}:smooth", "objective.smoothin=1"], "'objective.smoothin'; did you mean 'smoothing'?"),
        (["objective={mine}:smooth", "objective.smoothing=x"], "objective.smoothing is 'x';"),
        (["objective={mine}:many"], "objective is many, which returned a tensor of shape (2,);"),
        (["partition=fedrecall:WSM"], "partition is 'fedrecall:WSM', which is an objective; a Partition"),
    ],
)
def test_a_thing_of_the_wrong_kind_in_a_recipe_is_one_sentence(fedrecall, mine, words, said) -> None:
    kept = [word for word in SMALL if not (word.startswith("partition") and "partition" in words[0])]
    done = fedrecall("run", "demo", *kept, *(word.format(mine=mine) for word in words), "--out", "run")
    assert done.code == 2
    assert said.format(mine=mine) in done.err
    assert len(done.err.splitlines()) == 1
    assert not Path("run").exists()
