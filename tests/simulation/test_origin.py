"""What a run was made of: runs of different data, models or partitions are not seeds of one method."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import Dirichlet, Federation, Iid, Run, federate
from fedrecall.recipe.display_titles import titles
from fedrecall.report.comparison import Method, group_methods
from fedrecall.report.warnings import warnings
from fedrecall.runs.reader import load_run


def federation(alpha: float = 0.5, seed: int = 0, shift: float = 0.0) -> Federation:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(120, 4)).astype(np.float32) + np.float32(shift), np.arange(120) % 3
    partition = Dirichlet(alpha=alpha, clients=6, validation=0.2, seed=seed)
    return Federation.from_arrays(x, y, test=(x, y), partition=partition)


def linear() -> nn.Module:
    return nn.Linear(4, 3)


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def run(out: Path, model: object = linear, data: Federation | None = None, **settings: object) -> Run:
    return federate(model, data or federation(), rounds=2, clients_per_round=2, out=out, **settings)  # type: ignore[arg-type]


def grouped(*runs: Run) -> list[Method]:
    return group_methods([load_run(made.path) for made in runs], titles())


def test_seeds_of_one_experiment_are_one_method(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a"), run(tmp_path / "b", data=federation(seed=1), seed=1)
    (method,) = grouped(first, second)
    assert len(method.runs) == 2


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"data": federation(alpha=100.0)}, "partition"),
        ({"data": federation(shift=1.0)}, "data"),
        ({"model": deep}, "model"),
    ],
)
def test_other_experiments_are_other_methods_and_the_page_says_why(tmp_path: Path, changed: dict, what: str) -> None:
    methods = grouped(run(tmp_path / "a"), run(tmp_path / "b", seed=1, **changed))
    assert len(methods) == 2
    assert methods[0].label != methods[1].label
    (told,) = [w.text for w in warnings(methods) if "have the same recipe" in w.text]
    assert told.endswith(f"but not the same {what}: two methods.")


def test_a_file_that_changes_under_its_path_is_other_data(tmp_path: Path, monkeypatch, fedrecall) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name, seed in (("a", 0), ("b", 1)):
        x, y = random.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
        np.savez("my.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        words = ["data=npz", "data.path=my.npz", "model=mlp", "partition=iid", "partition.clients=4"]
        words += ["rounds=2", f"seed={seed}", "--out", name, "--quiet"]
        assert fedrecall("run", "demo", *words).code == 0
    assert len(group_methods([load_run(Path("a")), load_run(Path("b"))], titles())) == 2


def test_user_code_that_changed_is_another_method(tmp_path: Path, monkeypatch, fedrecall) -> None:
    monkeypatch.chdir(tmp_path)
    for name, slope in (("first", 0.1), ("second", 0.2)):
        Path(f"{name}_net.py").write_text(
            "from torch import nn\n"
            "class Net(nn.Linear):\n"
            f"    def forward(self, x): return super().forward(x.flatten(1)) * {slope}\n"
            "def net(): return Net(784, 10)\n"
        )
        words = [f"model={name}_net:net", "rounds=1", "--out", name, "--quiet"]
        assert fedrecall("run", "demo", *words).code == 0
    codes = [json.loads(Path(name, "origin.json").read_text())["model"]["code"] for name in ("first", "second")]
    assert list(codes[0].values()) != list(codes[1].values())


def test_weights_that_were_given_are_part_of_the_identity(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one, other = linear(), linear()
    runs = [run(tmp_path / str(n), model) for n, model in enumerate((one, one, other, linear, linear))]
    digests = [json.loads((made.path / "summary.json").read_text())["recipe_sha256"] for made in runs]
    assert digests[0] == digests[1] != digests[2]
    assert digests[3] == digests[4]  # a function: its weights are a function of the seed
    assert runs[3].metrics == runs[4].metrics


def test_a_resumed_run_keeps_the_weights_it_began_with(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = run(tmp_path / "run", linear())
    before = (first.path / "summary.json").read_text()
    again = run(tmp_path / "run", linear(), resume=True)  # other weights, as a script that is run again brings
    assert (again.path / "summary.json").read_text() == before


def test_runs_of_before_are_grouped_with_those_of_now(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a"), run(tmp_path / "b", seed=1)
    (second.path / "origin.json").unlink()
    shutil.rmtree(second.path / "checkpoints")  # whose notes did not speak of it
    assert len(grouped(first, second)) == 1


def test_the_model_of_a_shipped_recipe_is_built_again(tmp_path: Path, monkeypatch, fedrecall) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedrecall("run", "demo", "model=mlp", "rounds=1", "--out", "run", "--quiet").code == 0
    model = Run("run").model()
    assert model(torch.zeros(1, 1, 28, 28)).shape == (1, 10)


def test_iid_data_have_a_digest_of_their_content_alone() -> None:
    x, y = np.zeros((20, 2), np.float32), np.arange(20) % 2
    one = Federation.from_arrays(x, y, partition=Iid(clients=2))
    other = Federation.from_arrays(x, y, partition=Iid(clients=4))
    assert one.digest() == other.digest() != Federation.from_arrays(x + 1, y, partition=Iid(clients=2)).digest()
