"""Places where nothing can be written, and names that a terminal would obey: one sentence, or plain text."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sentences import check_one_sentence

SMALL = ["model=mlp", "model.hidden=[]", "rounds=1", "clients_per_round=2", "forgetting.every=1"]
ESCAPE = "\x1b[31m\x9b31m\r"  # what colours a terminal, in two ways, and goes back to the line's beginning


def in_a_folder_that_is_gone() -> None:
    Path("gone").mkdir()
    os.chdir("gone")
    Path("../gone").rmdir()


PLACES: dict[str, Callable[[], object]] = {
    "a folder that is gone": in_a_folder_that_is_gone,
    "a file `runs`": lambda: Path("runs").write_text("mine"),
    "a link `runs` to nowhere": lambda: Path("runs").symlink_to("no/where"),
}
COMMANDS = [("run", "demo"), ("demo",), ("partition", "demo"), ("diagnose", "demo")]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_working_folder_that_cannot_be_written_is_one_sentence(
    fedrecall: Any, place: str, words: tuple[str, ...]
) -> None:
    PLACES[place]()
    named = "'runs' is a file; " if place == "a file `runs`" else "the folder 'runs' cannot be made or read: "
    check_one_sentence(fedrecall(*words), named)


def test_a_model_of_ones_own_in_a_folder_that_is_gone_is_one_sentence(fedrecall: Any) -> None:
    in_a_folder_that_is_gone()
    check_one_sentence(fedrecall("run", "demo", "model=mine:net"), "No such file or directory")


def test_no_temporary_folder_is_one_sentence(fedrecall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").touch()
    monkeypatch.setattr("tempfile.tempdir", "file/below")
    check_one_sentence(fedrecall("run", "demo"), "no temporary folder can be made: Not a directory; name a folder")
    assert not Path("runs").exists()


def test_no_usable_temporary_folder_at_all_is_one_sentence(fedrecall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/no/such/place"])
    check_one_sentence(fedrecall("run", "demo"), "No usable temporary directory found")


TYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.uint16]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_weights_of_a_type_that_no_model_has_are_one_sentence(fedrecall: Any, kind: torch.dtype) -> None:
    assert fedrecall("run", "demo", *SMALL, "--engine", "serial", "--quiet", "--out", "run").code == 0
    weights = load_file("run/model.safetensors")
    save_file({name: tensor.to(kind) for name, tensor in weights.items()}, "odd.safetensors")
    expected = f"in the weights in 'odd.safetensors' has the type {str(kind)[6:]}; float32 was expected"
    check_one_sentence(fedrecall("run", "demo", *SMALL, "init=odd.safetensors"), expected)
    check_one_sentence(fedrecall("diagnose", "demo", *SMALL[:2], "--weights", "odd.safetensors"), expected)


def test_weights_that_are_too_large_for_the_model_are_one_sentence(fedrecall: Any) -> None:
    assert fedrecall("run", "demo", *SMALL, "--engine", "serial", "--quiet", "--out", "run").code == 0
    weights = {name: tensor.double() for name, tensor in load_file("run/model.safetensors").items()}
    next(iter(weights.values()))[0] = 1e300
    save_file(weights, "odd.safetensors")
    check_one_sentence(fedrecall("run", "demo", *SMALL, "init=odd.safetensors"), "that are not finite numbers")


# What a terminal would obey


@pytest.fixture
def odd_classes() -> list[str]:
    """Words for a data set whose classes have names that a terminal obeys."""
    for shade, name in enumerate(["a" + ESCAPE, "b"]):
        for i in range(8):
            path = Path("images", name, f"{i}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), 100 * shade + i, np.uint8)).save(path)
    words = ["data=image_folder", "data.path=images", "data.size=8", "data.colour=false"]
    return [*words, "partition={name: iid, clients: 2, validation: 0.3}", *SMALL, "evaluation.test_last=1"]


def check_plain(finished: Any) -> None:
    assert finished.code == 0, finished.err
    for line in (finished.out + finished.err).split("\n"):
        assert line.isprintable(), line


@pytest.mark.parametrize("shown", [[], pytest.param(["--json"], marks=pytest.mark.slow)], ids=str)
def test_no_command_prints_what_a_terminal_obeys(fedrecall: Any, odd_classes: list[str], shown: list[str]) -> None:
    run = "run" + ESCAPE
    check_plain(fedrecall("partition", "demo", *odd_classes, *shown))
    check_plain(fedrecall("run", "demo", *odd_classes, "--engine", "serial", "--out", run, *shown))
    check_plain(fedrecall("resume", run, "rounds=2", *shown))
    check_plain(fedrecall("report", run, "--figures", *shown))
    check_plain(fedrecall("replay", run, "--round", "1", "--client", "0", *shown))
    check_plain(fedrecall("diagnose", run, "--engine", "serial", "--out", "diagnosis" + ESCAPE, *shown))
    check_plain(fedrecall("recipes", "show", f"{run}/recipe.yaml"))
    Path("data" + ESCAPE).mkdir()
    check_plain(fedrecall("data", "list", "--data", "data" + ESCAPE, *shown))


def test_a_class_is_shown_with_its_name_escaped(fedrecall: Any, odd_classes: list[str]) -> None:
    assert r"0 a\x1b[31m\x9b31m\r  1 b" in fedrecall("partition", "demo", *odd_classes).out


def test_a_diverged_run_in_a_folder_with_an_odd_name_is_told_as_plain_text(fedrecall: Any) -> None:
    words = ["model=mlp", "local.lr=1e38", "local.steps=2", "rounds=5", "--engine", "serial", "--quiet"]
    finished = fedrecall("run", "demo", *words, "--out", "run" + ESCAPE)
    assert finished.code == 3
    assert finished.err[:-1].isprintable()


def test_output_that_cannot_show_a_letter_gets_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedrecall.cli import main as cli

    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.argv", ["fedrecall", "recipes", "copy", "demo", "名.yaml"])
    cli.main()
    out.flush()
    assert out.buffer.getvalue() == rb"\u540d.yaml" + b"\n"  # type: ignore[attr-defined]
