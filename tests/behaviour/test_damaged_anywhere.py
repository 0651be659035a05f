"""Each file of a run, damaged in every way: a command ends as if it were whole, or says which one is not."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fuzzing import ARRAYS, RECIPE
from promises import check_count

pytestmark = pytest.mark.slow

ROUNDS_ALIKE = {"clients_per_round": 2, "evaluation": {"every": 1, "test_last": 0}}  # in runs of any length
QUIET = ("--quiet", "--no-report")
COMMANDS = {  # of which run, and the words
    "resume an interrupted run": ("interrupted", ("resume", "it", *QUIET)),
    "make a finished run longer": ("finished", ("resume", "it", "rounds=4", *QUIET)),
    "report a finished run": ("finished", ("report", "it")),
    "report an interrupted run": ("interrupted", ("report", "it")),
    "replay": ("finished", ("replay", "it", "--round", "3", "--client", "2", "--quiet")),
}


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def nothing(content: bytes) -> bytes:
    return b""


def noise(content: bytes) -> bytes:
    return random.Random(0).randbytes(len(content))


def a_bit_at(share: float) -> Callable[[bytes], bytes]:
    def flip(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[int(share * (len(content) - 1))] ^= 1
        return bytes(changed)

    return flip


DAMAGES: dict[str, Callable[[bytes], bytes] | None] = {
    "half of it": half,
    "nothing in it": nothing,
    "noise in it": noise,
    "another first bit": a_bit_at(0),
    "another bit in the middle": a_bit_at(2 / 3),
    "another last bit": a_bit_at(1),
    "gone": None,
}


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, fedrecall: Any) -> None:
    """`finished` and `interrupted`, two runs of one recipe."""
    monkeypatch.setattr("os.fsync", lambda file: None)
    monkeypatch.setattr("plotly.offline.get_plotlyjs", str)
    np.savez("my.npz", **ARRAYS)
    Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, **ROUNDS_ALIKE}))
    assert fedrecall("run", "recipe.yaml", "--out", "finished", *QUIET).code == 0
    with monkeypatch.context() as patch:
        patch.setattr("fedrecall.simulation.progress.ProgressLine.after", stop_after_two)
        assert fedrecall("run", "recipe.yaml", "--out", "interrupted", *QUIET).code == 130


def stop_after_two(self: Any, round: Any) -> None:
    if round.number == 2:
        raise KeyboardInterrupt


def raw(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def result(done: Any, command: str) -> dict[str, Any]:
    """What a command came to: the numbers and states of a run, a page, or what was printed."""
    if command == "replay":
        return {"out": done.out}
    if command.startswith("report"):
        return {"page": Path("it/report.html").read_bytes()}
    numbers = ["metrics.jsonl", "clients.jsonl", "model.safetensors", "partition.npz", "partition.json", "recipe.yaml"]
    paths = [Path("it", name) for name in numbers]
    paths += [*Path("it/clients").rglob("*.safetensors"), *Path("it/checkpoints").glob("*.safetensors")]
    return {str(path): path.read_bytes() for path in paths}


def what_is_wrong(done: Any, command: str, before: dict[str, bytes], whole: dict[str, Any], file: str) -> str | None:
    lines = done.err.splitlines()
    if done.code == 2:
        if len(lines) != 1 or not lines[0].startswith("fedrecall: error: "):
            return f"no sentence: {done.err}"
        return None if raw("it") == before else "something else was changed"
    if done.code:
        return f"{done.code}: {done.err}"
    if result(done, command) == whole:
        return None
    # A page may lack what was deleted, if that is said; a run without its summary is shown as unfinished.
    said = f"note: 'it/{file}' is missing" in done.err
    shown = file == "summary.json" and "unfinished" in Path("it/report.html").read_text()
    gone = command.startswith("report") and not Path("it", file).exists()
    return None if gone and (said or shown) else "another result, without a word"


@pytest.mark.parametrize("command", COMMANDS)
def test_whichever_file_is_damaged_a_command_ends_as_if_it_were_whole_or_says_so(
    fedrecall: Any, request: pytest.FixtureRequest, command: str
) -> None:
    run, words = COMMANDS[command]
    shutil.copytree(run, "it")
    done = fedrecall(*words)
    assert done.code == 0
    whole, cases = result(done, command), {}
    files = sorted(str(path.relative_to(run)) for path in Path(run).rglob("*") if path.is_file())
    for file in files:
        for name, damage in DAMAGES.items():
            shutil.rmtree("it")
            shutil.copytree(run, "it")
            path = Path("it", file)
            content = path.read_bytes()
            if damage and content:  # the lock has none
                path.write_bytes(damage(content))
            elif not damage:
                path.unlink()
            before = raw("it")
            cases[f"{file}, {name}"] = what_is_wrong(fedrecall(*words), command, before, whole, file)
    assert {case: wrong for case, wrong in cases.items() if wrong} == {}
    check_count(request.node.originalname, len(cases) * len(COMMANDS))


def test_a_damaged_description_is_said_when_a_run_goes_on(fedrecall: Any) -> None:
    shutil.copytree("finished", "it")
    Path("it/environment.json").write_text("{}")
    Path("it/origin.json").unlink()
    assert fedrecall("resume", "it", "rounds=4", *QUIET).code == 0
    warnings = json.loads(Path("it/summary.json").read_text())["warnings"]
    for name in ("environment.json", "origin.json"):
        assert f"{name} is missing or not as it was after round 3" in warnings
