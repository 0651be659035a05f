"""`fedrecall diagnose` and `fedrecall.diagnose`, from what a user types to what is said."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from markupsafe import escape
from safetensors.torch import load_file, save_file
from sentences import check_one_sentence
from torch import nn

from fedrecall import WSM, Federation, InputError, Local, diagnose, federate
from fedrecall.api.execute import load_federation
from fedrecall.recipe.layers import load_recipe as load_recipe
from fedrecall.runs.folder import RunFolder
from fedrecall.simulation.experiment import build
from fedrecall.simulation.loop import run_experiment

Words = tuple[str, ...]

LINEAR = ("model=mlp", "model.hidden=[]")
MINE = [
    "data=npz", "data.path=my.npz", "partition.clients=6", "local.steps=3", "local.batch_size=16", *LINEAR,
]  # fmt: skip
NETS = """
from torch import nn


def normed(num_classes):
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, num_classes))
"""


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    data(seed=0)


def data(seed: int) -> None:
    random = np.random.default_rng(seed)
    y = random.integers(0, 4, 400)
    x = (random.normal(size=(400, 4)) + 2 * np.eye(4)[y]).astype("float32")
    names = np.array(["ant", "bee", "cow", "doe"])
    np.savez("my.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:], class_names=names)


def run(path: str, *words: str, model: Words = LINEAR) -> Path:
    """A run's folder, without the page about it."""
    settings = [*MINE[: -len(LINEAR)], *model, "rounds=2", "evaluation.test_last=1", "forgetting.every=0", *words]
    recipe = load_recipe("demo", settings, {"execution": {"engine": "serial"}})
    run_experiment(build(recipe, load_federation(recipe)), RunFolder.create(Path(path)))
    return Path(path)


# What it does.


def test_a_finished_run_is_diagnosed_from_its_model(fedrecall) -> None:
    path = run("a", "algorithm=scaffold", "local.schedule=cosine", "partition.alpha=0.3")
    before = (path / "model.safetensors").read_bytes()
    finished = fedrecall("diagnose", "a", "--clients", 3, "--out", "d", "--engine", "serial")
    assert finished.code == 0, finished.err
    first, *rest = [line for line in finished.out.splitlines() if line]
    assert first.startswith("One round with 3 of 6 clients, from the model of 'a' (accuracy on the clients'")
    assert rest[0].startswith("Cross-entropy: after local training a client's model is ")
    assert rest[1].startswith("WSM: after local training a client's model is ")
    assert rest[-1] == "d/report.html"
    assert "note: Too few validation samples for a 1 % claim" in finished.out
    assert "cross-entropy  round 1/1" in finished.err
    assert (path / "model.safetensors").read_bytes() == before

    plain, wsm = (yaml.safe_load(Path(f"d/{name}/recipe.yaml").read_text()) for name in ("cross_entropy", "wsm"))
    for recipe in (plain, wsm):
        assert (recipe["algorithm"], recipe["rounds"], recipe["clients_per_round"]) == ({"name": "fedavg"}, 1, 3)
        # Its recipe alone would begin from other weights, so it must not be run as if it repeated this.
        assert recipe["model"].items() >= {"name": "python", "hidden": [], "class": "mlp from the model of 'a'"}.items()
    lines = [json.loads(Path(f"d/{name}/metrics.jsonl").read_text()) for name in ("cross_entropy", "wsm")]
    assert lines[0]["clients"] == lines[1]["clients"]
    assert lines[0]["lr"] == 0.1  # as in the recipe, not at the end of its schedule
    probes = [np.load(f"d/{name}/forgetting/round-00001.npz") for name in ("cross_entropy", "wsm")]
    assert np.array_equal(probes[0]["before"], probes[1]["before"])
    assert not np.array_equal(probes[0]["after"], probes[1]["after"])


def test_the_page_has_both_matrices_and_json_the_numbers_of_the_files(fedrecall) -> None:
    finished = fedrecall("diagnose", "demo", *MINE, "--json", "--out", "d", "--engine", "serial")
    assert finished.err == ""
    result = json.loads(finished.out)
    assert result == json.loads(Path("d/diagnosis.json").read_text())
    page = Path(result["report"]).read_text()
    drawn = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert [heatmap["method"] for heatmap in drawn["heatmaps"]] == [0, 1]
    assert all(escape(sentence) in page for sentence in result["sentences"])
    assert "Over the rounds" not in page  # of one round: single dots
    assert drawn["methods"] == ["FedAvg", "FedAvg + WSM"]
    for name, numbers in result["runs"].items():
        line = json.loads(Path(numbers["path"], "metrics.jsonl").read_text())
        assert numbers["path"] == f"d/{name}"
        assert numbers["averaged"] == pytest.approx(line["val_accuracy"])
        assert numbers["forgetting"] == line["forgetting"]
        assert {client for client, _ in numbers["causes"]} == set(line["clients"]) == set(range(6))  # few: all
        assert {label for label, _ in numbers["classes"]} == {"ant", "bee", "cow", "doe"}
    # No weights were given: that is said, and the recipe repeats it.
    assert "a model that knows nothing forgets nothing: give trained weights" in result["sentences"][0]
    model = yaml.safe_load(Path("d/wsm/recipe.yaml").read_text())["model"]
    assert (model["name"], model["hidden"]) == ("mlp", [])


def test_the_numbers_are_those_of_plain_torch() -> None:
    """Three clients, one full-batch step each, worked out with torch.optim."""
    random = np.random.default_rng(1)
    clients = []
    for classes in ([0, 1], [1, 2], [0, 2]):
        y = random.choice(classes, 60, p=[0.75, 0.25])
        clients.append(((random.normal(size=(60, 5)) + 1.5 * np.eye(3, 5)[y]).astype("float32"), y))
    federation = Federation.from_clients(clients, num_classes=3, validation=0.5)
    weights = {"weight": torch.eye(3, 5), "bias": torch.zeros(3)}
    local = Local(steps=1, batch_size=30, lr=2.0, weight_decay=0)
    found = diagnose(nn.Linear(5, 3), federation, weights=weights, local=local, engine="serial", out="d")

    x, y = torch.tensor(np.array(federation.train.x)), torch.tensor(np.array(federation.train.y))
    held = [federation.validation_indices(k) for k in range(3)]

    def accuracies(model: nn.Module) -> list[float]:
        return [float((model(x[part]).argmax(1) == y[part]).double().mean()) for part in held]

    def after(client: int, *, weighted: bool) -> list[float]:
        part = federation.train_indices(client)
        model = nn.Linear(5, 3)
        model.load_state_dict(weights)
        shares = torch.bincount(y[part], minlength=3) / len(part)
        logits = model(x[part]) + (shares.log() if weighted else 0)  # balanced softmax has WSM's gradient
        optimiser = torch.optim.SGD(model.parameters(), lr=2.0)
        nn.functional.cross_entropy(logits, y[part]).backward()
        optimiser.step()
        return accuracies(model)

    start = nn.Linear(5, 3)
    start.load_state_dict(weights)
    before = np.array(accuracies(start))
    for name, weighted in (("cross_entropy", False), ("wsm", True)):
        F = before - np.array([after(client, weighted=weighted) for client in range(3)])
        assert found.findings[name].forgetting == pytest.approx(F[~np.eye(3, dtype=bool)].mean())
        assert found.findings[name].learned == pytest.approx(-np.diag(F).mean())
        assert dict(found.findings[name].causes)[1] == pytest.approx((F[1, 0] + F[1, 2]) / 2)
        assert dict(found.findings[name].suffers)[2] == pytest.approx((F[0, 2] + F[1, 2]) / 2)
    assert found.findings["cross_entropy"].forgetting > found.findings["wsm"].forgetting
    assert str(found).startswith("One round with all 3 clients, from the given weights")
    assert found.report == Path("d/report.html")
    assert found.wsm.metrics[0]["clients"] == found.cross_entropy.metrics[0]["clients"]


def test_options_of_wsm_are_kept(fedrecall) -> None:
    fedrecall("diagnose", "demo", *MINE, "objective.smoothing=0.01", "--out", "d", "--quiet", "--engine", "serial")
    objectives = {
        name: yaml.safe_load(Path(f"d/{name}/recipe.yaml").read_text())["objective"]
        for name in ("cross_entropy", "wsm")
    }
    assert objectives["cross_entropy"] == {"name": "cross_entropy"}
    assert objectives["wsm"]["smoothing"] == 0.01


def test_changed_data_are_noticed(fedrecall) -> None:
    run("a")
    data(seed=1)
    finished = fedrecall("diagnose", "a", "--quiet", "--engine", "serial")
    assert "note: The clients do not have the samples that they had in the run" in finished.out
    assert finished.out.splitlines()[-1] == "runs/diagnose/report.html"


def tied() -> nn.Module:
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4))
    model[1].bias = model[0].bias
    return model


def test_lazy_and_tied_models_take_weights() -> None:
    """Of tied weights, safetensors' own `save_model` writes one name only."""
    random = np.random.default_rng(0)
    pairs = [(random.normal(size=(20, 3)).astype("float32"), np.arange(20) % 4) for _ in range(2)]
    federation = Federation.from_clients(pairs, validation=0.5)
    weights = {
        "0.weight": torch.ones(4, 3),
        "0.bias": torch.arange(4.0),
        "1.weight": torch.eye(4),
    }
    found = diagnose(tied, federation, weights=weights, local={"lr": 0.0}, engine="serial", out="d")
    saved = load_file("d/wsm/model.safetensors")
    for name, tensor in weights.items():
        assert torch.equal(saved[name], tensor), name
    assert torch.equal(saved["1.bias"], torch.arange(4.0))
    assert (found.findings["wsm"].forgetting, found.findings["wsm"].learned) == (0, 0)


# What is wrong is one sentence.


def weights(**changes: torch.Tensor | None) -> Callable[[], None]:
    named = {"weight": torch.zeros(4, 4), "bias": torch.zeros(4), **changes}
    state = {f"1.{name}": tensor for name, tensor in named.items() if tensor is not None}
    return lambda: save_file(state, "w.safetensors")


def damaged(name: str, text: str) -> Callable[[], None]:
    return lambda: (run("a") / name).write_text(text)  # type: ignore[func-returns-value]


def from_python() -> None:
    federation = Federation.from_clients([(np.zeros((9, 4), np.float32), np.arange(9) % 3)] * 2, validation=0.5)
    federate(nn.Linear(4, 3), federation, rounds=1, engine="serial", out="a")


def statistics_at_the_clients() -> None:
    Path("nets_of_a_diagnosis.py").write_text(NETS)
    run("a", "batch_norm=local", "evaluation.test_last=0", model=("model=nets_of_a_diagnosis:normed",))


def without_model() -> None:
    (run("a") / "model.safetensors").unlink()


def runs_in_a_folder() -> None:
    run("a/x")
    shutil.copytree("a/x", "a/y")


def nothing() -> None:
    pass


MINES = ("demo", *MINE)
WITH = (*MINES, "--weights", "w.safetensors")
GIVEN = "the weights in 'w.safetensors'"
NO_MODEL = "the run 'a' has no model.safetensors: "
CASES: list[tuple[Callable[[], object], Words, str]] = [
    (weights(bias=torch.zeros(5)), WITH, f"'1.bias' has the shape [5] in {GIVEN} and [4] in the model\n"),
    (weights(bias=None), WITH, f"the model has '1.bias', which is not in {GIVEN}\n"),
    (weights(bias=None, b=torch.zeros(4)), WITH, "; there is '1.b', which the model has not\n"),
    (weights(more=torch.zeros(1)), WITH, f"the model has no '1.more', which is in {GIVEN}\n"),
    (weights(bias=torch.full((4,), torch.nan)), WITH, f"'1.bias' in {GIVEN} has values that are not finite"),
    (lambda: torch.save({}, "w.safetensors"), WITH, "'w.safetensors' are damaged or no safetensors file"),
    (nothing, WITH, "there is no file 'w.safetensors' with weights\n"),
    (nothing, (*MINES, "partition.validation=0"), "and there are none: partition.validation is 0\n"),
    (nothing, (*MINES, "partition.held_out=5"), "only 1 of 1 clients has any\n"),
    (nothing, (*MINES, "--clients", "7"), "clients is 7; a number from 1 to 6, who may train, was expected\n"),
    (
        nothing,
        (*MINES, "rounds=3"),
        "rounds is given, but in a diagnosis there is one round with each objective\n",
    ),
    (
        nothing,
        (*MINES, "--algorithm.name", "moon"),
        "algorithm is given, but in a diagnosis the rounds are FedAvg's",
    ),
    (
        nothing,
        (*MINES, "objective=fedntd"),
        "objective is 'fedntd', but a diagnosis compares cross_entropy with wsm",
    ),
    (nothing, ("demmo",), "there is no recipe 'demmo', by name or as a file; did you mean 'demo'?\n"),
    (lambda: Path("a").mkdir(), ("a",), "'a' is not a run: recipe.yaml is missing\n"),
    (lambda: run("a", "algorithm=local_only"), ("a",), f"{NO_MODEL}with algorithm 'local_only' every client has"),
    (
        without_model,
        ("a",),
        f"{NO_MODEL}it is not finished, or the file was deleted; give weights with --weights\n",
    ),
    (damaged("model.safetensors", "x"), ("a",), "'a/model.safetensors' are damaged or no safetensors file"),
    (damaged("recipe.yaml", "{"), ("a",), "the file 'a/recipe.yaml' is damaged: it is not YAML"),
    (damaged("recipe.yaml", ""), ("a",), "the file 'a/recipe.yaml' is damaged"),
    (lambda: run("a"), ("a", "model.hidden=[9]"), "the model has '3.weight', which is not in the model of 'a'\n"),
    (from_python, ("a",), "cannot build its data again (name: python); from Python, fedrecall.diagnose(model,"),
    (statistics_at_the_clients, ("a",), "the run left its batch-norm statistics with the clients"),
    (runs_in_a_folder, ("a",), "the folder 'a' holds several runs; choose one: x, y\n"),
]


@pytest.mark.parametrize(("make", "words", "said"), CASES, ids=[said[:50] for *_, said in CASES])
def test_bad_input_is_one_sentence(fedrecall, make: Callable[[], object], words: Words, said: str) -> None:
    make()
    finished = fedrecall("diagnose", *words, "--engine", "serial", "--out", "d")
    check_one_sentence(finished, said)
    assert not Path("d").exists()


def test_python_refuses_what_one_round_has_no_room_for() -> None:
    federation = Federation.from_clients([(np.zeros((9, 4), np.float32), np.arange(9) % 3)] * 2, validation=0.5)
    with pytest.raises(InputError, match=r"^clients_per_round is given, but in a diagnosis --clients N was expected"):
        diagnose(nn.Linear(4, 3), federation, objective=WSM(), clients_per_round=2)
    with pytest.raises(InputError, match=r"^'weight' in the given weights is a list; a tensor was expected"):
        diagnose(nn.Linear(4, 3), federation, weights={"weight": [0.0], "bias": torch.zeros(3)})  # type: ignore[dict-item]


def test_help_has_an_example(fedrecall) -> None:
    assert "Example: fedrecall diagnose demo data=npz" in " ".join(fedrecall("diagnose", "--help").out.split())


def test_a_preset_is_a_keyword_as_in_a_recipe() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(120, 4)).astype("float32"), random.integers(0, 3, 120)
    federation = Federation.from_clients([(x[k::4], y[k::4]) for k in range(4)], num_classes=3, validation=0.2)
    diagnosis = diagnose(nn.Linear(4, 3), federation, preset="authors", engine="serial", out="d")
    assert yaml.safe_load((diagnosis.wsm.path / "recipe.yaml").read_text())["local"]["partial_batch"] == "keep"
