"""What docs/sweeps.md shows runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ray_cluster import start

from fedrecall.studies.cells import cells_of, plan
from fedrecall.studies.design import load_design

PAGE = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [shlex.split(line)[1:] for block in BLOCKS for line in block.splitlines()]
HERE = [words for words in COMMANDS if "--ray-address" not in words]
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FILES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.slow
def test_the_commands_run_and_leave_the_files_of_the_table(fedrecall) -> None:
    assert [words[0] for words in HERE] == ["sweep", "sweep", "sweep", "sweep", "compare"]
    for words in HERE:
        done = fedrecall(*words, *(["--quiet"] if words[0] == "sweep" else []))
        assert (done.code, done.err) == (0, "")
    assert len(list(Path("grows").glob("runs/*/seed-*/summary.json"))) == 9
    (study,) = Path("runs").iterdir()
    for name in ("study.yaml", "table.csv", "table.md", "table.tex", "times.csv", "report.html"):
        assert (study / name).exists()
        assert f"`{name}`" in PAGE
    assert len(list(study.glob("runs/*/seed-*/summary.json"))) == 8
    again = fedrecall("sweep", study / "study.yaml", "--out", study, "--quiet")  # is the same question
    assert (again.code, again.err) == (0, "")


@pytest.mark.heavy
def test_the_command_on_a_cluster_runs(fedrecall) -> None:
    (words,) = [words for words in COMMANDS if words not in HERE]
    cluster = start(nodes=0)
    try:
        done = fedrecall(*[cluster.address if word == "HOST:6379" else word for word in words], "--quiet")
    finally:
        cluster.shutdown()
    assert (done.code, done.err) == (0, "")
    assert len(list(Path("spread").glob("runs/*/seed-*/summary.json"))) == 4


def test_the_file_is_a_study() -> None:
    Path("my-study.yaml").write_text(FILES[0])
    design = load_design("my-study.yaml")
    runs = plan(design, cells_of(design))
    assert len(runs) == 16
    assert {run.recipe.partition["name"] for run in runs} == {"dirichlet", "shards"}


@pytest.mark.slow
def test_the_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(PROGRAMS[0], "docs/sweeps.md", "exec"), {})
    assert "4 of 4 runs finished" in capsys.readouterr().out


@pytest.mark.slow
def test_the_sweep_over_objects_runs_and_grows(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict = {}
    exec(compile(PROGRAMS[1], "docs/sweeps.md", "exec"), names)
    assert "8 of 8 runs finished" in repr(names["study"])
    figure = names["study"].plot(band="interval")
    assert len(figure.axes[0].lines) == 4


@pytest.mark.heavy
def test_optuna_drives_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    names: dict = {}
    exec(compile(PROGRAMS[2], "docs/sweeps.md", "exec"), names)
    study = names["study"]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 3
    for trial in study.trials:
        recipe = yaml.safe_load(Path(f"trials/{trial.number}/recipe.yaml").read_text())
        assert recipe["local"]["lr"] == trial.params["local.lr"]
    assert study.best_value == max(trial.value for trial in study.trials)


@pytest.mark.slow
def test_the_command_of_the_wandb_sweep_runs_as_its_agent_calls_it() -> None:
    sweep = yaml.safe_load(FILES[1])
    args = ["--local.lr=0.25", "--objective=wsm"]  # how `${args}` is replaced
    assert [word.partition("=")[0][2:] for word in args] == list(sweep["parameters"])
    command = [part for word in sweep["command"] for part in (args if word == "${args}" else [word])]
    done = subprocess.run([*command, "--quiet", "--out", "here"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    recipe = yaml.safe_load(Path("here/recipe.yaml").read_text())
    assert (recipe["local"]["lr"], recipe["objective"]["name"]) == (0.25, "wsm")
