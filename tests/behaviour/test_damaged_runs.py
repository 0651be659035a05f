"""Runs that were damaged on the disk: a resume goes on with the same bits, or says why not and harms nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

RECIPE = {
    "data": "fashion_mini",
    "partition": {"name": "dirichlet", "clients": 8, "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": "scaffold",
    "rounds": 6,
    "clients_per_round": 3,
    "local": {"steps": 2, "batch_size": 16, "lr": 0.05},
    "evaluation": {"every": 2, "test_last": 2},
    "forgetting": {"every": 3},
    "checkpoint": {"every": 2},
    "execution": {"engine": "serial"},
}
SAME = ("metrics.jsonl", "clients.jsonl", "model.safetensors")


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def runs(tmp_path: Path, made_once: Path, monkeypatch: pytest.MonkeyPatch, fedrecall: Any) -> Path:
    """`whole`, a run of eight rounds, and `run`, the same after six: copies, for each test to damage."""
    monkeypatch.chdir(made_once)
    if not Path("whole").exists():
        Path("recipe.yaml").write_text(yaml.safe_dump(RECIPE))
        assert fedrecall("run", "recipe.yaml", "--out", "run", "--quiet").code == 0
        assert fedrecall("run", "recipe.yaml", "rounds=8", "--out", "whole", "--quiet").code == 0
    shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def states_of(round: int) -> list[Path]:
    return sorted(Path("run/clients").rglob(f"*-round-{round:06d}.safetensors"))


def flip_last_bit(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def resumed(fedrecall: Any, *words: str) -> Any:
    return fedrecall("resume", "run", "rounds=8", "--quiet", *words)


def test_a_flipped_bit_in_a_clients_state_means_the_older_checkpoint(runs: Path, fedrecall: Any) -> None:
    flip_last_bit(states_of(6)[0])
    done = resumed(fedrecall)
    assert (done.code, done.err) == (0, "")
    assert "the state of client" in done.out
    events = [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]
    assert [event["round"] for event in events if event["event"] == "resume"] == [4]
    for name in ("model.safetensors",):
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes()


def test_a_finished_run_without_checkpoints_is_not_erased(runs: Path, fedrecall: Any) -> None:
    shutil.rmtree("run/checkpoints")
    recipe = yaml.safe_load(Path("run/recipe.yaml").read_text())
    Path("run/recipe.yaml").write_text(yaml.safe_dump({**recipe, "seed": 7}))
    before = contents("run")
    done = resumed(fedrecall)
    assert done.code == 2
    assert "is finished, but its checkpoints are gone; --force starts the run again from its beginning" in done.err
    assert contents("run") == before


def test_an_unfinished_run_with_another_recipe_does_not_begin_again(runs: Path, fedrecall: Any) -> None:
    shutil.rmtree("run/checkpoints")
    Path("run/summary.json").unlink()
    recipe = yaml.safe_load(Path("run/recipe.yaml").read_text())
    Path("run/recipe.yaml").write_text(yaml.safe_dump({**recipe, "seed": 7}))
    before = contents("run")
    done = resumed(fedrecall)
    assert (done.code, contents("run")) == (2, before)
    assert "is not the one that the run began with" in done.err


@pytest.mark.parametrize("folder", ["clients", "checkpoints", "forgetting"])
def test_nothing_is_deleted_behind_a_link(runs: Path, fedrecall: Any, folder: str) -> None:
    elsewhere = Path("elsewhere")
    shutil.copytree(Path("run", folder), elsewhere)
    (elsewhere / "0000").mkdir(exist_ok=True)
    for name in ("0000/precious", "round-00009.npz", "round-000009.safetensors", "mine.txt"):
        (elsewhere / name).write_text("precious")
    shutil.rmtree(Path("run", folder))
    Path("run", folder).symlink_to(elsewhere.resolve(), target_is_directory=True)
    before = {path for path in elsewhere.rglob("*") if path.is_file()}
    resumed(fedrecall)
    assert before <= {path for path in elsewhere.rglob("*") if path.is_file()}


def remove_card() -> None:
    Path("run/partition.json").unlink()


def damage_card() -> None:
    Path("run/partition.json").write_text("{")


def damage_partition() -> None:
    Path("run/partition.npz").write_bytes(b"PK")


@pytest.mark.parametrize("damage", [remove_card, damage_card, damage_partition])
def test_the_partition_is_described_anew(runs: Path, fedrecall: Any, damage: Callable[[], None]) -> None:
    damage()
    done = resumed(fedrecall)
    assert (done.code, done.err) == (0, "")
    for name in (*SAME[2:], "partition.json", "partition.npz"):
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes()


def test_a_missing_matrix_is_said(runs: Path, fedrecall: Any) -> None:
    Path("run/forgetting/round-00003.npz").unlink()
    done = resumed(fedrecall)
    assert done.code == 0
    assert "forgetting/round-00003.npz is missing or not as it was after round 6" in done.out


def test_data_that_changed_are_refused(runs: Path, fedrecall: Any) -> None:
    origin = json.loads(Path("run/origin.json").read_text())
    origin["data"]["digest"] = "0" * 16
    Path("run/origin.json").write_text(json.dumps(origin))
    done = resumed(fedrecall)
    assert done.code == 2
    assert "the data are not those that the run in 'run' began with" in done.err
    assert resumed(fedrecall, "--force").code == 0


def test_no_checkpoint_goes_before_the_new_one_is_read_back(runs: Path, fedrecall: Any, monkeypatch) -> None:
    before = {path: path.read_bytes() for path in Path("run/checkpoints").glob("*.safetensors")}

    def torn(path: Path, content: bytes) -> int:  # a disk that loses the end of what is written
        return original(path, content[:-1] if path.name.startswith(".round-") else content)

    original = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", torn)
    assert resumed(fedrecall).code == 2
    assert {path: path.read_bytes() for path in before} == before
    assert all(path.with_suffix(".json").exists() for path in before)
    monkeypatch.undo()
    monkeypatch.chdir(runs)
    assert resumed(fedrecall).code == 0
    assert Path("run/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()


def test_a_command_that_we_print_works_with_another_engine(tmp_path: Path, monkeypatch, fedrecall: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "execution": {"engine": "processes", "workers": 2}}))
    assert fedrecall("run", "recipe.yaml", "--out", "run", "--quiet").code == 0
    done = fedrecall("resume", "run", "rounds=7", "--engine", "serial", "--quiet")
    assert (done.code, done.err) == (0, "")
