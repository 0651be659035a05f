"""A run that is killed, or refused by the disk, at any change that it makes to its folder goes on with its bits.

Each case is a process that is really killed: a fork of this one, in which everything is imported already.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from failing_disk import REFUSALS, kill, let_be, refuse, watched
from promises import check_count

pytestmark = pytest.mark.slow

RECIPE = {
    "data": {"name": "npz", "path": "my.npz"},
    "partition": {"name": "iid", "clients": 4, "validation": 0.25},
    "model": {"name": "mlp", "hidden": []},
    "algorithm": "scaffold",  # which has a state for each client
    "rounds": 3,
    "clients_per_round": 2,
    "local": {"steps": 1, "batch_size": 4, "lr": 0.1},
    "evaluation": {"every": 1, "test_last": 1},
    "forgetting": {"every": 3},
    "keep": "best",
    "checkpoint": {"every": 1},
    "execution": {"engine": "serial"},
}
QUIET = ("--quiet", "--no-report")
RUN = ("run", "recipe.yaml", "--out", "it", *QUIET)
RESUME = ("resume", "it", *QUIET)
LONGER = (*RESUME, "rounds=4")


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
    np.savez("my.npz", x_train=x, y_train=np.arange(24) % 3, x_test=x[:6], y_test=np.arange(6) % 3)
    Path("recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    monkeypatch.setattr("os.fsync", lambda file: None)  # no power cut comes here, and many cases wait for the disk


def contents(folder: str) -> dict[str, Any]:
    """All files but those of times and of how the run went; notes and the summary without what tells of these."""
    found: dict[str, Any] = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and path.name not in ("timings.jsonl", "events.jsonl", "lock"):
            content = path.read_bytes()
            told = json.loads(content) if path.suffix == ".json" else {}
            for key in ("seconds", "records", "note_sha256", "sha256"):  # of a note: of the file beside it
                told.pop(key, None)
            found[str(path.relative_to(folder))] = told or content
    return found


def nothing() -> None:
    shutil.rmtree("it", ignore_errors=True)


def a_copy_of(folder: str) -> Callable[[], None]:
    def copy() -> None:
        nothing()
        shutil.copytree(folder, "it")

    return copy


def changes_of(fedrecall: Any, begin: Callable[[], None], words: tuple[str, ...]) -> list[str]:
    """The kinds of changes that a command makes from there, in their order."""
    begin()
    with watched(Path("it"), None, let_be) as disk:
        assert fedrecall(*words).code == 0
    return disk.changes


def kill_at(number: int, fedrecall: Any, words: tuple[str, ...]) -> None:
    """The command in a process that is killed at its change of that number."""
    child = os.fork()
    if not child:
        try:
            signal.alarm(60)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with watched(Path("it"), number, kill):
                fedrecall(*words)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXFSZ)


def command_after(words: tuple[str, ...]) -> tuple[str, ...]:
    """What a user types then: a run that had written no recipe is begun, any other goes on."""
    return RESUME if words == RUN and Path("it/recipe.yaml").exists() else words


def wrong_after_kills(
    fedrecall: Any, begin: Callable[[], None], words: tuple[str, ...], whole: dict[str, Any]
) -> Iterator[tuple[str, object]]:
    """Each change, and what is wrong after a kill at it: None if nothing is."""
    for number, kind in enumerate(changes_of(fedrecall, begin, words), start=1):
        begin()
        kill_at(number, fedrecall, words)
        done = fedrecall(*command_after(words))
        yield f"{number} ({kind})", done.err if done.code else differences(contents("it"), whole)


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str] | None:
    return sorted(name for name in found | expected if found.get(name) != expected.get(name)) or None


def check(test: str, cases: dict[str, object]) -> None:
    assert {case: wrong for case, wrong in cases.items() if wrong} == {}
    check_count(test, len(cases))


def test_a_run_that_is_killed_at_any_change_of_its_folder_goes_on_with_its_bits(
    fedrecall: Any, request: pytest.FixtureRequest
) -> None:
    kinds = set(changes_of(fedrecall, nothing, RUN))
    assert {"open", "write", "half a write", "fsync", "rename", "remove", "mkdir"} <= kinds
    whole = contents("it")
    assert len([name for name in whole if name.startswith("clients/")]) > 4
    check(request.node.name, dict(wrong_after_kills(fedrecall, nothing, RUN, whole)))


def test_a_resume_that_is_killed_at_any_change_goes_on_with_its_bits(
    fedrecall: Any, request: pytest.FixtureRequest
) -> None:
    changes = changes_of(fedrecall, nothing, RUN)
    whole = contents("it")
    nothing()
    kill_at(len(changes) * 3 // 4, fedrecall, RUN)
    Path("it").rename("half")
    check(request.node.name, dict(wrong_after_kills(fedrecall, a_copy_of("half"), RESUME, whole)))


def test_a_run_that_is_killed_at_any_change_while_it_is_made_longer_goes_on_with_its_bits(
    fedrecall: Any, request: pytest.FixtureRequest
) -> None:
    assert fedrecall(*RUN).code == 0
    Path("it").rename("short")
    changes_of(fedrecall, a_copy_of("short"), LONGER)
    whole = contents("it")
    check(request.node.name, dict(wrong_after_kills(fedrecall, a_copy_of("short"), LONGER, whole)))


def what_is_wrong_with(done: Any) -> str | None:
    """A command that ended otherwise than well must say so in a sentence."""
    lines = done.err.splitlines()
    sentence = len(lines) == 1 and lines[0].startswith("fedrecall: error: ") and "cannot be " in lines[0]
    return None if done.code == 0 or (done.code == 2 and sentence) else f"{done.code}: {done.err}"


def wrong_after_refusals(
    fedrecall: Any, begin: Callable[[], None], words: tuple[str, ...]
) -> Iterator[tuple[str, object]]:
    """Each change, and what is wrong when it is refused or after: None if nothing is."""
    changes = changes_of(fedrecall, begin, words)
    whole = contents("it")
    for number, kind in enumerate(changes, start=1):
        refusal = REFUSALS[number % len(REFUSALS)]
        begin()
        with watched(Path("it"), number, refuse(refusal)):
            done = fedrecall(*words)
        wrong: object = what_is_wrong_with(done)
        if not wrong:
            done = fedrecall(*command_after(words)) if done.code else done
            wrong = done.err if done.code else differences(contents("it"), whole)
        yield f"{words[0]} {number} ({kind}, {os.strerror(refusal)})", wrong


def test_a_disk_that_refuses_any_change_is_one_sentence_and_the_run_goes_on_with_its_bits(
    fedrecall: Any, request: pytest.FixtureRequest
) -> None:
    assert fedrecall(*RUN).code == 0
    Path("it").rename("short")
    cases = dict(wrong_after_refusals(fedrecall, nothing, RUN))
    cases |= dict(wrong_after_refusals(fedrecall, a_copy_of("short"), LONGER))
    check(request.node.name, cases)
