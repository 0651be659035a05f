"""Every command and option that is printed as advice is taken from there and run, and does what it says."""

from __future__ import annotations

import base64
import errno
import html
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from failing_disk import refuse, watched
from safetensors.torch import save_file

from fedrecall.cli.main import fedrecall as commands
from fedrecall.simulation.progress import ProgressLine

RECIPE: dict[str, Any] = {
    "data": {"name": "npz", "path": "my.npz"},
    "partition": {"name": "iid", "clients": 4, "validation": 0.25},
    "model": {"name": "mlp", "hidden": []},
    "rounds": 3,
    "clients_per_round": 4,
    "local": {"steps": 1, "batch_size": 4, "lr": 0.1},
    "forgetting": {"every": 1},
    "checkpoint": {"every": 1},
    "execution": {"engine": "serial"},
}
SMALL = ("model=mlp", "model.hidden=[]", "rounds=1", "local.epochs=1", "--engine", "serial", "--quiet")
RUN = "it's my run"  # a folder's name that a shell must be told of


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    write_data(0)
    Path("recipe.yaml").write_text(yaml.safe_dump(RECIPE))


def write_data(seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(24, 4)).astype(np.float32)
    np.savez("my.npz", x_train=x, y_train=np.arange(24) % 3, x_test=x[:6], y_test=np.arange(6) % 3)


def run(fedrecall: Any, *words: str) -> None:
    done = fedrecall("run", "recipe.yaml", "--out", RUN, "--quiet", "--no-report", *words)
    assert done.code == 0, done.err


def interrupt(fedrecall: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run that is stopped after its first round."""

    def stop(self: ProgressLine, round: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ProgressLine, "after", stop)
        return fedrecall("run", "recipe.yaml", "--out", RUN, "--quiet")


def follow(fedrecall: Any, printed: str, command: str, *more: str) -> Any:
    """Run the last command of this name that was printed, to the end of its line; it must end well."""
    words = re.findall(rf"fedrecall {command}\b[^\n`]*", printed)[-1]
    done = fedrecall(*shlex.split(words)[1:], *more)
    assert done.code == 0, (words, done.err)
    return done


def refusal(done: Any, advice: str) -> str:
    assert (done.code, done.out) == (2, "")
    assert advice in done.err
    return str(done.err)


def status() -> tuple[str, int]:
    summary = json.loads(Path(RUN, "summary.json").read_text())
    return summary["status"], summary["rounds_done"]


# Commands


def test_an_unfinished_run_in_the_folder_goes_on(fedrecall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(fedrecall, monkeypatch)
    printed = refusal(fedrecall("run", "recipe.yaml", "--out", RUN), "has an unfinished run")
    follow(fedrecall, printed, "resume", "--no-report")
    assert status() == ("finished", 3)


def test_an_interrupted_run_goes_on(fedrecall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    done = interrupt(fedrecall, monkeypatch)
    assert (done.code, status()) == (130, ("interrupted", 1))
    follow(fedrecall, done.err, "resume", "--no-report")
    assert status() == ("finished", 3)


@pytest.mark.parametrize(("number", "remedy"), [(errno.ENOSPC, "make room"), (errno.EACCES, "mend that")])
def test_a_run_that_could_not_write_goes_on(fedrecall: Any, number: int, remedy: str) -> None:
    with watched(Path(RUN), 90, refuse(number)):
        done = fedrecall("run", "recipe.yaml", "--out", RUN, "--quiet")
    printed = refusal(done, f"; {remedy} and go on with: fedrecall resume ")
    follow(fedrecall, printed, "resume", "--no-report")
    assert status() == ("finished", 3)


def test_another_objective_than_the_demos_is_run(fedrecall: Any) -> None:
    printed = refusal(fedrecall("demo", "objective=mask"), "objective=NAME")
    follow(fedrecall, printed.replace("NAME", "mask"), "run", *SMALL, "--out", RUN)
    assert yaml.safe_load(Path(RUN, "recipe.yaml").read_text())["objective"]["name"] == "mask"


def test_what_a_page_says_repeats_the_run_and_the_page(fedrecall: Any) -> None:
    run(fedrecall)
    assert fedrecall("report", RUN).code == 0
    page = Path(RUN, "report.html").read_text()
    saved = re.search(r'<a download="([^"]+)" href="data:text/yaml;base64,([^"]+)"', page)
    assert saved
    Path(saved[1]).write_bytes(base64.b64decode(saved[2]))
    (command,) = re.findall(r"^(fedrecall run [^<]*)</pre>", page, re.MULTILINE)
    follow(fedrecall, command, "run", "--quiet", "--out", "again")
    for name in ("metrics.jsonl", "model.safetensors"):
        assert Path("again", name).read_bytes() == Path(RUN, name).read_bytes()
    Path(RUN, "report.html").unlink()
    (command,) = re.findall(r"<code>(fedrecall report [^<]*)</code>", page)
    follow(fedrecall, html.unescape(command), "report")
    assert Path(RUN, "report.html").read_text() == page


# Options


def cut_checkpoints() -> None:
    for path in Path(RUN, "checkpoints").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])


def lose_checkpoints() -> None:
    shutil.rmtree(Path(RUN, "checkpoints"))


def edit(name: str, old: str, new: str) -> Callable[[], None]:
    def write() -> None:
        path = Path(RUN, name)
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))

    return write


def edit_card() -> None:
    path = Path(RUN, "partition.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "digest": "0" * 16}))


other_recipe = edit("recipe.yaml", "lr: 0.1", "lr: 0.2")


def another_recipe_and_no_checkpoint() -> None:
    lose_checkpoints()
    Path(RUN, "summary.json").unlink()
    other_recipe()


AGAIN = "--force starts the run again from its beginning"
RESUME, REPLAY = ("resume", RUN, "rounds=4", "--quiet"), ("replay", RUN, "--round", "2", "--client", "1")
FORCED: dict[str, tuple[Callable[[], None], tuple[str, ...], str]] = {
    "lines": (edit("metrics.jsonl", "0.", "1."), RESUME, "--force goes on all the same"),
    "no whole checkpoint": (cut_checkpoints, RESUME, AGAIN),
    "no checkpoint": (lose_checkpoints, RESUME, AGAIN),
    "another beginning": (another_recipe_and_no_checkpoint, RESUME, AGAIN),
    "another recipe": (other_recipe, RESUME, "local.lr was 0.1 and is 0.2; --force goes on all the same"),
    "other data": (lambda: write_data(1), RESUME, "--force goes on all the same"),
    "other clients": (edit_card, RESUME, "--force goes on all the same"),
    "a replay of another recipe": (other_recipe, REPLAY, "--force replays all the same"),
    "a replay without a checkpoint": (another_recipe_and_no_checkpoint, REPLAY, "--force replays all the same"),
    "a replay with other data": (lambda: write_data(1), REPLAY, "--force goes on all the same"),
}


@pytest.mark.parametrize("what", FORCED)
def test_force_does_what_is_said_of_it(fedrecall: Any, what: str) -> None:
    change, words, advice = FORCED[what]
    run(fedrecall)
    change()
    refusal(fedrecall(*words), advice)
    done = fedrecall(*words, "--force")
    assert done.code == 0, done.err
    assert words is REPLAY or status() == ("finished", 4)


def test_force_goes_on_with_another_version(fedrecall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run(fedrecall)
    monkeypatch.setattr("fedrecall.simulation.resume.__version__", "99.0")
    refusal(fedrecall(*RESUME), "and this is 99.0: its rounds may differ; --force goes on all the same")
    assert fedrecall(*RESUME, "--force").code == 0


@pytest.mark.parametrize("option", [("--engine", "vectorised"), ("--engine", "serial", "--force")])
def test_a_run_of_vectorised_goes_on_with_it_or_by_force(fedrecall: Any, option: tuple[str, ...]) -> None:
    run(fedrecall, "--engine", "vectorised")
    refusal(fedrecall(*RESUME, "--engine", "serial"), "choose with --engine, or --force goes on all the same")
    assert fedrecall(*RESUME, *option).code == 0


def test_rounds_make_a_run_longer(fedrecall: Any) -> None:
    run(fedrecall)
    refusal(fedrecall("resume", RUN), "rounds=N makes it longer")
    assert fedrecall("resume", RUN, "rounds=5", "--quiet").code == 0
    assert status() == ("finished", 5)


@pytest.mark.parametrize("out", ["full", "recipe.yaml/below"])
def test_another_folder_is_chosen_with_out(fedrecall: Any, out: str) -> None:
    Path("full").mkdir()
    Path("full/mine").touch()
    words = ("run", "recipe.yaml", "--quiet", "--no-report", "--out")
    refusal(fedrecall(*words, out), "choose another with --out")
    assert fedrecall(*words, "another").code == 0


def test_the_folder_of_data_is_named_with_data(fedrecall: Any) -> None:
    writer = {"x": [[0.5] * 784] * 4, "y": [0, 1, 2, 3]}
    leaf = {"users": ["v", "w"], "num_samples": [4, 4], "user_data": {"v": writer, "w": writer}}
    for split in ("train", "test"):
        path = Path("mine/femnist/data", split, "all.json")
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(leaf))
    Path("elsewhere").mkdir()
    words = ("partition", "demo", "data=femnist", "partition={name: natural, validation: 0.25}")
    refusal(fedrecall(*words), "say with --data DIR")
    refusal(fedrecall(*words, "--data", "elsewhere"), "say with --data DIR")
    assert fedrecall(*words, "--data", "mine").code == 0
    Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "data": {"name": "npz", "path": "other.npz"}}))
    assert fedrecall("partition", "recipe.yaml").code == 2
    Path("my.npz").rename("mine/other.npz")
    assert fedrecall("partition", "recipe.yaml", "--data", "mine").code == 0


def test_weights_are_given_to_a_diagnosis(fedrecall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(fedrecall, monkeypatch)
    save_file({"1.weight": torch.ones(3, 4), "1.bias": torch.zeros(3)}, "my.safetensors")
    words = ("--engine", "serial", "--quiet", "--out")
    refusal(fedrecall("diagnose", RUN, *words, "one"), "give weights with --weights")
    assert fedrecall("diagnose", RUN, *words, "two", "--weights", "my.safetensors").code == 0
    done = fedrecall("diagnose", "recipe.yaml", *words, "three")
    assert "give trained weights (--weights FILE.safetensors" in done.out
    done = fedrecall("diagnose", "recipe.yaml", *words, "four", "--weights", "my.safetensors")
    assert "It is untrained" not in done.out


def test_weights_with_statistics_are_given_to_a_diagnosis(fedrecall: Any) -> None:
    code = "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))\n"
    Path("normed.py").write_text(code)
    Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "model": "normed:net", "batch_norm": "local"}))
    run(fedrecall, "evaluation.test_last=0")
    words = ("diagnose", RUN, "--engine", "serial", "--quiet", "--out")
    refusal(fedrecall(*words, "one"), "give weights that have them with --weights")
    assert fedrecall("run", "recipe.yaml", "batch_norm=average", "--out", "other", "--quiet").code == 0
    assert fedrecall(*words, "two", "--weights", "other/model.safetensors").code == 0


@pytest.mark.parametrize("key", ["participation=0.5", "clients_per_round=3"])
def test_the_number_of_clients_of_a_diagnosis_is_an_option(fedrecall: Any, key: str) -> None:
    words = ("diagnose", "recipe.yaml", "--engine", "serial", "--quiet", "--out")
    refusal(fedrecall(*words, "one", key), "--clients N")
    assert "3 of 4 clients" in fedrecall(*words, "two", "--clients", "3").out


@pytest.mark.slow
def test_rounds_of_figures_want_figures(fedrecall: Any) -> None:
    run(fedrecall)
    refusal(fedrecall("report", RUN, "--rounds", "2"), "say --figures too")
    refusal(fedrecall("report", RUN, "--figures", "--rounds", "two"), "as in 1200,3600")
    assert fedrecall("report", RUN, "--rounds", "2", "--figures").code == 0


@pytest.mark.parametrize(("name", "advice"), [
    ("clients.jsonl", "or delete it to go on without it"),
    ("partition.json", "or delete it to go on without it"),
    ("forgetting/round-00002.npz", "delete it to report without it"),
])  # fmt: skip
def test_a_damaged_file_is_deleted_to_report_without_it(fedrecall: Any, name: str, advice: str) -> None:
    run(fedrecall)
    path = Path(RUN, name)
    path.write_bytes(path.read_bytes().replace(b"0.", b"1.", 1) if path.suffix != ".npz" else b"")
    refusal(fedrecall("report", RUN), advice)
    path.unlink()
    done = fedrecall("report", RUN)
    assert (done.code, done.err.count("is missing; the rest is shown without it")) == (0, 1)


def test_a_wrong_command_line_leads_to_help(fedrecall: Any) -> None:
    done = fedrecall("replay", RUN)
    refusal(done, "See: fedrecall replay --help")
    assert "Usage: fedrecall replay" in follow(fedrecall, done.err, "replay").out


@pytest.mark.slow
def test_the_options_of_a_study_are_followed(fedrecall: Any) -> None:
    words = ("sweep", "recipe.yaml", "--quiet", "--no-report")
    refusal(fedrecall(*words, "seed=1,2"), "--seeds")
    rates = ("local.lr=0.1,0.5", "--dry-run", "--baseline")
    refusal(fedrecall(*words, *rates, "local.lr=0.1,0.5"), "--baseline has 2 values")
    assert fedrecall(*words, *rates, "local.lr=0.1").code == 0
    refusal(fedrecall(*words, "--time"), "--dry-run")
    assert "about" in fedrecall(*words, "--seeds", "2", "--time", "--dry-run").out
    Path("taken").mkdir()
    Path("taken/file").write_text("mine")
    refusal(fedrecall(*words, "--out", "taken"), "choose another with --out")
    assert fedrecall(*words, "--out", "free").code == 0
    refusal(fedrecall(*words, "local.lr=0.5", "--out", "free"), "choose another with --out")
    assert fedrecall(*words, "local.lr=0.5", "--out", "other").code == 0
    refusal(fedrecall("compare", "free", "other", "--accuracy", "60"), "--accuracy")
    assert fedrecall("compare", "free", "other", "--accuracy", "0.6").code == 0
    Path("study.yaml").write_text("recipe: recipe.yaml\nseeds: 1\n")
    refusal(fedrecall("reproduce", "study.yaml", "--rounds", "0", "--dry-run"), "--rounds")
    assert fedrecall("reproduce", "study.yaml", "--rounds", "1", "--dry-run").code == 0


# Examples of the help


def examples() -> dict[str, str]:
    """By command."""
    found = {"": str(commands.epilog)}
    for name, command in commands.commands.items():
        for inner, one in {name: command, **getattr(command, "commands", {})}.items():
            # What needs a server is in tests/cli/test_data.py, what needs CIFAR-10 in test_reproduce.py, and
            # what needs Flower in tests/flower.
            if one.epilog and not {"data", "reproduce", "flower"} & {name, inner}:
                found[inner] = one.epilog
    return found


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=[pytest.mark.slow] * (c in ("report", "sweep"))) for c in examples()]
)
def test_the_example_of_a_commands_help_works(fedrecall: Any, command: str) -> None:
    text = examples()[command].partition(": ")[2]
    assert text in " ".join(fedrecall(*command.split(), "--help").out.split())
    words = shlex.split(text)[1:]
    if words[0] in ("resume", "replay", "report", "compare", "calibrate"):
        for place, path in enumerate(re.findall(r"runs/\w+", text)):
            objective = ("wsm", "cross_entropy")[place]
            given = ("partition.clients=8", "clients_per_round=8", "--out", path, "--quiet", "--no-report")
            given += (f"objective={objective}",)
            assert fedrecall("run", "recipe.yaml", *given).code == 0
    if words[0] == "diagnose":
        Path("mymodel.py").write_text("from torch import nn\n\ndef net():\n    return nn.Linear(4, 3)\n")
        save_file({"weight": torch.ones(3, 4), "bias": torch.zeros(3)}, "my.safetensors")
        words += ["partition={name: iid, clients: 4, validation: 0.25}", "--engine", "serial", "--quiet"]
    if words[0] in ("run", "demo", "sweep"):
        words += SMALL
    if words[0] == "resume":
        words = [word.replace("rounds=200", "rounds=5") for word in words]
    done = fedrecall(*words)
    assert done.code == 0, done.err
