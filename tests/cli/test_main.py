"""The commands, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import fedrecall as package

SMALL = ["rounds=2", "model=mlp", "model.hidden=[8]", "local.steps=2", "evaluation.test_last=1"]


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_version_is_the_packages(fedrecall) -> None:
    assert fedrecall("--version").out == f"fedrecall {package.__version__}\n"


@pytest.mark.parametrize("command", ["demo", "run", "partition"])
def test_help_has_an_example(fedrecall, command) -> None:
    assert f"Example: fedrecall {command}" in fedrecall(command, "--help").out


def test_run_ends_with_the_path_of_its_report(fedrecall) -> None:
    finished = fedrecall("run", "demo", *SMALL)
    report = Path(finished.out.splitlines()[-1])
    assert finished.code == 0
    assert report == Path("runs/demo/report.html")
    assert "wsm" in report.read_text()


def test_progress_is_plain_lines_when_nobody_looks(fedrecall) -> None:
    finished = fedrecall("run", "demo", *SMALL)
    assert "round 2/2" in finished.err
    assert "\x1b" not in finished.err + finished.out


def test_quiet_shows_no_progress(fedrecall) -> None:
    assert fedrecall("run", "demo", *SMALL, "--quiet").err == ""


def test_json_is_all_that_is_printed(fedrecall) -> None:
    finished = fedrecall("run", "demo", *SMALL, "--json", "--out", "here")
    result = json.loads(finished.out)
    (summary,) = result["runs"].values()
    lines = [json.loads(line) for line in Path("here/metrics.jsonl").read_text().splitlines()]
    assert finished.err == ""
    assert summary["path"] == "here"
    assert summary["final_accuracy"] == lines[-1]["test_accuracy"]
    assert summary["final_accuracy_rounds"] == 1


def test_settings_may_be_options(fedrecall) -> None:
    fedrecall("run", "demo", *SMALL, "--seed", 5, "--local.lr=0.5", "--quiet", "--out", "here")
    recipe = yaml.safe_load(Path("here/recipe.yaml").read_text())
    assert (recipe["seed"], recipe["local"]["lr"]) == (5, 0.5)


def test_a_recipe_of_a_run_runs_again_to_the_same_bytes(fedrecall) -> None:
    fedrecall("run", "demo", *SMALL, "--out", "first")
    fedrecall("run", "first/recipe.yaml", "--out", "second")
    for name in ("recipe.yaml", "metrics.jsonl", "partition.npz", "model.safetensors"):
        assert Path("first", name).read_bytes() == Path("second", name).read_bytes(), name


def test_runs_without_a_folder_get_new_ones(fedrecall) -> None:
    for _ in range(2):
        fedrecall("run", "demo", *SMALL, "--quiet")
    assert sorted(path.name for path in Path("runs").iterdir()) == ["demo", "demo-2"]


def test_the_demo_compares_both_objectives_on_the_same_terms(fedrecall) -> None:
    finished = fedrecall("demo", *SMALL, "--out", "d")
    assert finished.out.splitlines()[-1] == "d/report.html"
    plain, wsm = Path("d/cross_entropy"), Path("d/wsm")
    assert (plain / "partition.npz").read_bytes() == (wsm / "partition.npz").read_bytes()
    clients = [[json.loads(x)["clients"] for x in (p / "metrics.jsonl").open()] for p in (plain, wsm)]
    assert clients[0] == clients[1]
    assert yaml.safe_load((plain / "recipe.yaml").read_text())["objective"] == {"name": "cross_entropy"}
    assert "FedAvg + WSM" in finished.out


def test_partition_writes_what_it_shows(fedrecall) -> None:
    finished = fedrecall("partition", "demo", "partition.clients=7", "--out", "p")
    card = json.loads(Path("p/partition.json").read_text())
    arrays = np.load("p/partition.npz")
    assert card["clients"] == 7
    assert np.bincount(arrays["client"] + 1).tolist() == [4] + [1428] * 7  # 10,000 = 7 x 1,428 + 4
    assert arrays["validation"].sum() == 7 * 143
    assert Path("p/partition.png").read_bytes().startswith(b"\x89PNG")
    assert finished.out.splitlines()[-1] == "p/partition.png"
    assert "client   6" in finished.out


def test_a_partition_is_exported_client_by_client(fedrecall) -> None:
    finished = fedrecall("partition", "demo", "partition.clients=11", "partition.held_out=1", "--export", "nodes")
    assert finished.code == 0, finished.err
    files = sorted(Path("nodes").glob("client-*.npz"))
    assert [path.name for path in files] == [f"client-{k:02d}.npz" for k in range(11)]
    clients = [dict(np.load(path)) for path in files]
    assert [len(c["y_train"]) for c in clients] == [818] * 10 + [909]  # 10,000 // 11 = 909, a tenth for validation
    assert [len(c["y_validation"]) for c in clients] == [91] * 10 + [0]
    assert clients[0]["x_train"].shape == (818, 28, 28, 1)
    assert clients[3]["class_names"][9] == "Ankle boot"
    assert len(np.load("nodes/test.npz")["y_test"]) == 2000


def test_recipes_are_listed_shown_and_copied(fedrecall) -> None:
    assert fedrecall("recipes").out == fedrecall("recipes", "list").out
    assert "lenet-cifar10" in fedrecall("recipes").out
    shown = yaml.safe_load(fedrecall("recipes", "show", "demo", "seed=4").out)
    assert (shown["seed"], shown["rounds"]) == (4, 80)
    fedrecall("recipes", "copy", "demo", "mine.yaml")
    assert fedrecall("recipes", "show", "mine.yaml", "seed=4").out == fedrecall("recipes", "show", "demo", "seed=4").out


def test_a_model_of_the_users_own_runs_from_a_recipe(fedrecall) -> None:
    Path("my_net.py").write_text(
        "from torch import nn\n"
        "def net(sample_shape, num_classes, width: int = 4):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.Linear(width, num_classes))\n"
    )
    finished = fedrecall("run", "demo", "model=my_net:net", "model.width=3", "rounds=1", "local.steps=1", "--json")
    assert finished.code == 0, finished.err


COMMANDS = [
    [str(Path(sys.executable).with_name("fedrecall"))],
    pytest.param([sys.executable, "-m", "fedrecall.cli.main"], marks=pytest.mark.slow),
]


@pytest.mark.parametrize("command", COMMANDS, ids=["script", "module"])
def test_the_installed_command_is_the_same(command: list[str]) -> None:
    finished = subprocess.run([*command, "run", "demo", "rouns=1"], capture_output=True, text=True)
    assert finished.returncode == 2
    assert finished.stderr == "fedrecall: error: there is no key 'rouns'; did you mean 'rounds'?\n"
