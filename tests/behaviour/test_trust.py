"""A run's folder that names code: without a word where this user made it, and nothing is imported anywhere else.

Its model is in a module that leaves a file when it is imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import yaml
from fuzzing import listing, make_finished_run

from fedrecall import Federation, Iid, Run, federate
from fedrecall.errors import InputError
from fedrecall.front.execute import load_federation, recipe_experiment
from fedrecall.front.run_recipe import load_run_recipe
from fedrecall.recipe.recipe import NAMED, Recipe, option_names
from fedrecall.recipe.settings import Settings
from fedrecall.runs.ledger import ledger_path, record, unknown_reason

X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
ARRAYS = {"x_train": X, "y_train": np.arange(24) % 3, "x_test": X[:6], "y_test": np.arange(6) % 3}
RECIPE: dict[str, Any] = {
    "data": {"name": "npz", "path": "my.npz"},
    "partition": {"name": "iid", "clients": 4, "validation": 0.25},
    "model": {"name": "own_net:net", "hidden": 3},
    "rounds": 1,
    "clients_per_round": 4,
    "local": {"steps": 1, "batch_size": 4},
    "evaluation": {"test_last": 0},
    "execution": {"engine": "serial"},
}
PLAIN = {**RECIPE, "model": {"name": "mlp", "hidden": [3]}}
MODULE = """
from pathlib import Path
import torch

Path(__file__).with_suffix(".imported").touch()

def net(sample_shape, num_classes, hidden: int = 3):
    layers = torch.nn.Linear(sample_shape[0], hidden), torch.nn.Linear(hidden, num_classes)
    return torch.nn.Sequential(*layers)

def score(logits, labels):
    return 1.0
"""
MODULES = ("own_net", "canary")
COMMANDS = {
    "resume": ("resume", "{}", "rounds=2", "--quiet", "--no-report"),
    "replay": ("replay", "{}", "--round", "1", "--client", "1", "--quiet"),
    "diagnose": ("diagnose", "{}", "--engine", "serial", "--quiet", "--out", "diagnosis"),
}
ASKS = "fedrecall: error: the run '{}' would import {}, and is not known as made by you in this place: {}; look at"
NOT_LISTED = "your ledger does not list this folder with this code"
NOT_OURS = "is not trusted: expected a regular file that, as its folder, only you can write"
LEDGER = Path("state/runs.jsonl")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`work`, with the modules, the finished run `kept` and its user's ledger; a copy of all that in `kept`."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRECALL_STATE", str(folder / "work/state"))
        (folder / "work").mkdir()
        for module in MODULES:
            (folder / f"work/{module}.py").write_text(MODULE)
        make_finished_run(folder / "work", RECIPE, ARRAYS)
        shutil.copytree(folder / "work", folder / "kept")
        yield folder


@pytest.fixture(autouse=True)
def in_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything as it was made and where it was made, the module not imported yet."""
    monkeypatch.setattr("plotly.offline.get_plotlyjs", str)
    shutil.rmtree(home / "work")
    shutil.copytree(home / "kept", home / "work")
    monkeypatch.chdir(home / "work")
    forget()
    yield
    forget()


def forget() -> None:
    """As in a new process."""
    for module in MODULES:
        sys.modules.pop(module, None)
        Path(f"{module}.imported").unlink(missing_ok=True)


def words(command: str, run: str) -> tuple[str, ...]:
    return tuple(word.format(run) for word in COMMANDS[command])


def check_asks(fedrecall: Any, command: str, run: str, reason: str, names: str = "'own_net:net'") -> None:
    """The sentence, and neither is anything imported nor anything of the run or of the ledger's folder changed."""
    before = listing(Path(run)), listing(Path("state"))
    done = fedrecall(*words(command, run))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    asks = done.err.startswith(ASKS.format(run, names, reason).removesuffix("; look at")) and done.err.endswith(
        "; look at that code, and say --trust if you trust it\n"
    )
    # Before that, a diagnosis compares the recipe with the checkpoint's.
    assert asks or (command == "diagnose" and "is not the recipe of the run" in done.err)
    assert not Path("own_net.imported").exists()
    assert not Path("canary.imported").exists()
    assert (listing(Path(run)), listing(Path("state"))) == before


def check_own(fedrecall: Any, command: str, run: str) -> None:
    done = fedrecall(*words(command, run))
    assert (done.code, done.err) == (0, "")
    assert Path("own_net.imported").exists()


def edit(run: str, **sections: Any) -> None:
    path = Path(run, "recipe.yaml")
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **sections}))


# Where a run is, whose it is, and what of it was changed. Each returns the folder that is taken up.


def linked(_: Any) -> str:
    Path("link").symlink_to("kept")
    return "link"


def copied(_: Any) -> str:
    shutil.copytree("kept", "copy")
    return "copy"


def moved(_: Any) -> str:
    return str(Path("kept").rename("moved"))


def moved_back(_: Any) -> str:
    return str(Path("kept").rename("moved").rename("kept"))


def somebody_elses(patch: pytest.MonkeyPatch) -> str:
    patch.setenv("FEDRECALL_STATE", str(Path("theirs").resolve()))
    return "kept"


def with_an_old_mark(_: Any) -> str:
    """Earlier versions left a mark in the folder."""
    Path("kept/made_by.json").write_text('{"mark": "00"}')
    LEDGER.unlink()
    return "kept"


def edited(**sections: Any) -> Callable[[Any], str]:
    def change(_: Any) -> str:
        edit("kept", **sections)
        return "kept"

    return change


def edited_to_a_huge_number(_: Any) -> str:
    edit("kept", model={"name": "canary:net", "hidden": "HUGE"})
    path = Path("kept/recipe.yaml")
    path.write_text(path.read_text().replace("HUGE", "0x1" + "0" * 4000))  # more digits than Python writes down
    return "kept"


MANY = {"metrics": [f"canary:f{n}" for n in range(50)]}
TWO = {"metrics": ["canary:a", "canary:b"]}
RUNS: dict[str, tuple[Callable[[Any], str], str | None, str]] = {  # why it asks, and for which names
    "made here": (lambda _: "kept", None, ""),
    "by another name": (lambda _: "./kept/../kept", None, ""),
    "by its full name": (lambda _: str(Path("kept").resolve()), None, ""),
    "by a link": (linked, None, ""),
    "moved and moved back": (moved_back, None, ""),
    "copied": (copied, NOT_LISTED, "'own_net:net'"),
    "moved": (moved, NOT_LISTED, "'own_net:net'"),
    "somebody else's": (somebody_elses, NOT_LISTED, "'own_net:net'"),
    "of an earlier version": (with_an_old_mark, NOT_LISTED, "'own_net:net'"),
    "edited: the name": (edited(model={"name": "canary:net"}), NOT_LISTED, "'canary:net'"),
    "edited: a name of Python's": (edited(model={"name": "os:system"}), NOT_LISTED, "'os:system'"),
    "edited: a section": (edited(algorithm={"name": "canary:Mine"}), NOT_LISTED, "'own_net:net', 'canary:Mine'"),
    "edited: the options": (edited(model={**RECIPE["model"], "hidden": 4}), NOT_LISTED, "'own_net:net'"),
    "edited: a metric": (edited(evaluation={"metrics": "canary:a"}), NOT_LISTED, "'own_net:net', 'canary:a'"),
    "edited: metrics": (edited(evaluation=TWO), NOT_LISTED, "'own_net:net', 'canary:a', 'canary:b'"),
    "edited: many metrics": (
        edited(evaluation=MANY),
        NOT_LISTED,
        "'own_net:net', " + ", ".join(f"'canary:f{n}'" for n in range(7)) + " and 43 more",
    ),
    "edited: a number": (edited_to_a_huge_number, "Exceeds the limit", "'canary:net'"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("what", RUNS)
def test_what_is_taken_up_without_a_word_and_what_asks(
    fedrecall: Any, monkeypatch: pytest.MonkeyPatch, what: str, command: str
) -> None:
    prepare, reason, names = RUNS[what]
    run = prepare(monkeypatch)
    if reason is None:
        check_own(fedrecall, command, run)
    else:
        check_asks(fedrecall, command, run, reason, names)
        assert not Path("theirs").exists()  # to ask makes nothing


def test_a_run_may_be_resumed_again_and_again(fedrecall: Any) -> None:
    for rounds in (2, 3, 4):
        assert fedrecall("resume", "kept", f"rounds={rounds}", "--quiet", "--no-report").code == 0
    assert len(Path("kept/metrics.jsonl").read_text().splitlines()) == 4
    assert len(LEDGER.read_text().split()) == 2  # the folder and the digest, once


@pytest.mark.parametrize("command", COMMANDS)
def test_trust_takes_a_copy_up_and_only_resume_makes_it_ones_own(fedrecall: Any, command: str) -> None:
    shutil.copytree("kept", "copy")
    done = fedrecall(*words(command, "copy"), "--trust")
    assert (done.code, done.err) == (0, "")
    assert Path("own_net.imported").exists()
    forget()
    if command == "resume":
        assert fedrecall("resume", "copy", "rounds=3", "--quiet", "--no-report").code == 0
    else:
        check_asks(fedrecall, "resume", "copy", NOT_LISTED)


def test_force_is_not_trust(fedrecall: Any) -> None:
    shutil.copytree("kept", "copy")
    assert fedrecall(*words("resume", "copy"), "--force").code == 2
    assert not Path("own_net.imported").exists()


def test_what_leads_to_no_code_may_be_edited(fedrecall: Any) -> None:
    edit("kept", seed=1)
    done = fedrecall(*words("resume", "kept"))
    assert "the recipe is not the run's: seed was 0 and is 1" in done.err


def test_a_run_that_names_no_code_is_taken_up_anywhere(fedrecall: Any) -> None:
    before = LEDGER.read_bytes()
    Path("plain.yaml").write_text(yaml.safe_dump(PLAIN))
    assert fedrecall("run", "plain.yaml", "--out", "plain", "--quiet", "--no-report").code == 0
    assert LEDGER.read_bytes() == before
    Path("plain").rename("elsewhere")
    for command in COMMANDS:
        done = fedrecall(*words(command, "elsewhere"))
        assert (done.code, done.err) == (0, "")


def test_what_is_typed_is_ones_own_word(fedrecall: Any) -> None:
    """A model that is typed replaces the one that the folder names, whose module stays where it is."""
    shutil.copytree("kept", "copy")
    for typed in ("model.hidden=3", "model=own_net:net"):  # the name, or the options, are still the folder's
        asked = fedrecall(*words("diagnose", "copy"), typed)
        assert asked.err.startswith("fedrecall: error: the run 'copy' would import 'own_net:net', and")
    done = fedrecall(*words("diagnose", "copy"), "model=canary:net")
    assert (done.code, done.err) == (0, "")
    assert Path("canary.imported").exists()
    assert not Path("own_net.imported").exists()


def test_in_python_a_copy_needs_trust_for_its_model() -> None:
    shutil.copytree("kept", "copy")
    with pytest.raises(InputError, match=r"'own_net:net', and is not known .* say trust=True if you trust it"):
        Run("copy").model()
    assert not Path("own_net.imported").exists()
    theirs, ours = (run.state_dict() for run in (Run("copy").model(trust=True), Run("kept").model()))
    assert all((theirs[name] == ours[name]).all() for name in ours)
    assert Run("copy").metrics == Run("kept").metrics  # which need no code


def test_a_script_that_resumes_names_its_code_itself() -> None:
    federation = Federation.from_arrays(X, ARRAYS["y_train"], partition=Iid(clients=4, validation=0.25))
    for rounds in (1, 2):
        run = federate("own_net:net", federation, rounds=rounds, local={"steps": 1}, out="mine", resume=True)
        assert len(run.metrics) == rounds
        LEDGER.unlink()


# The ledger


def remade(make: Callable[[], object]) -> Callable[[Any], object]:
    """Something else in the ledger's place."""

    def change(_: Any) -> object:
        LEDGER.unlink()
        return make()

    return change


def a_link() -> None:
    Path("elsewhere").write_bytes(Path("../kept", LEDGER).read_bytes())
    LEDGER.symlink_to(Path("elsewhere").resolve())


def chowned(path: str) -> Callable[[Any], None]:
    def change(_: Any) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can give a file to somebody else")
        os.chown(path, 12345, -1)

    return change


def no_home(patch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    for name in ("FEDRECALL_STATE", "XDG_STATE_HOME", "HOME"):
        patch.delenv(name, raising=False)
    patch.setattr("pwd.getpwuid", unknown)  # as in a container with a user that it does not know


def placed(path: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setenv("FEDRECALL_STATE", path.format(Path.cwd()))


LEDGERS: dict[str, tuple[Callable[[Any], object], str | None]] = {
    "others can read it": (lambda _: LEDGER.chmod(0o644), None),
    "damaged lines before": (lambda _: LEDGER.write_bytes(b'\n["/a", \xff\n[[[\n{}' + LEDGER.read_bytes()), None),
    "a damaged line": (lambda _: os.truncate(LEDGER, LEDGER.stat().st_size - 1), NOT_LISTED),
    "damaged": (lambda _: LEDGER.write_bytes(b"\xff\x00" * 99), NOT_LISTED),
    "empty": (lambda _: LEDGER.write_bytes(b""), NOT_LISTED),
    "gone": (lambda _: shutil.rmtree("state"), NOT_LISTED),
    "the group can write": (lambda _: LEDGER.chmod(0o620), NOT_OURS),
    "all can write": (lambda _: LEDGER.chmod(0o602), NOT_OURS),
    "others can write to its folder": (lambda _: Path("state").chmod(0o777), NOT_OURS),
    "another user's": (chowned("state/runs.jsonl"), NOT_OURS),
    "in another user's folder": (chowned("state"), NOT_OURS),
    "a link": (remade(a_link), NOT_OURS),
    "a link to itself": (remade(lambda: LEDGER.symlink_to("runs.jsonl")), NOT_OURS),
    "a link to nothing": (remade(lambda: LEDGER.symlink_to("no")), NOT_OURS),
    "a pipe": (remade(lambda: os.mkfifo(LEDGER)), NOT_OURS),
    "a folder": (remade(LEDGER.mkdir), NOT_OURS),
    "below a file": (placed("{}/recipe.yaml/below"), "cannot be read: Not a directory"),
    "a relative place": (placed("relative"), "expected an absolute path in FEDRECALL_STATE, got 'relative'"),
    "no home folder": (no_home, "you have no home folder for the ledger; name a folder in FEDRECALL_STATE"),
}


@pytest.mark.skipif(os.name != "posix", reason="the modes and links of POSIX")
@pytest.mark.parametrize("what", LEDGERS)
def test_with_any_ledger_runs_work_and_resume_says_why_it_asks(
    fedrecall: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    harm, reason = LEDGERS[what]
    harm(monkeypatch)
    if reason is None:
        check_own(fedrecall, "replay", "kept")
    else:
        done = fedrecall(*words("resume", "kept"))
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert f"{reason}; look at that code, and say --trust if you trust it" in done.err
        assert not Path("own_net.imported").exists()
    done = fedrecall("run", "recipe.yaml", "--out", "new", "--quiet", "--no-report")
    assert (done.code, done.err) == (0, "")
    forget()
    if reason in (None, NOT_LISTED):  # the new line counts, whatever is before it
        check_own(fedrecall, "replay", "new")
    else:
        assert reason in fedrecall(*words("replay", "new")).err
        assert fedrecall(*words("resume", "new"), "--trust").code == 0
    assert not Path("relative").exists()


def test_the_ledger_is_where_the_system_keeps_what_is_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FEDRECALL_STATE")
    monkeypatch.setenv("HOME", str(tmp_path))
    for given, place in {"": ".local/state", "relative": ".local/state", f"{tmp_path}/xdg": "xdg"}.items():
        monkeypatch.setenv("XDG_STATE_HOME", given)
        assert ledger_path() == tmp_path / place / "fedrecall/runs.jsonl"


def test_runs_that_begin_at_once_are_all_in_the_ledger_which_is_for_this_user_alone() -> None:
    shutil.rmtree("state")
    together, code = Barrier(8), {"model": {"name": "own_net:net"}}
    runs = [Path(f"run-{number}-\n\u00e9") for number in range(8)]

    def begin(run: Path) -> None:
        together.wait()
        record(run, code)

    before = os.umask(0)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(begin, runs))
    finally:
        os.umask(before)
    assert [unknown_reason(run, code) for run in runs] == [None] * 8
    assert unknown_reason(Path("run-8"), code) == NOT_LISTED
    assert [stat.S_IMODE(path.stat().st_mode) for path in (LEDGER.parent, LEDGER)] == [0o700, 0o600]


# The keys


def keys_of(group: type[Settings], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in group.model_fields.items():
        yield (*above, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield from keys_of(field.annotation, (*above, name))


@pytest.mark.slow
def test_whatever_key_of_a_recipe_names_code_asks_first() -> None:
    """Every key there is, those of later versions too: who adds one that imports must add it to `own_code`."""
    every = [*keys_of(Recipe), *((section, key) for section in NAMED for key in option_names(section))]
    assert ("evaluation", "metrics") in every
    for path in every:
        for value in ("canary:net", ["canary:net"], {"name": "canary:net"}):
            tree = json.loads(json.dumps(PLAIN))
            inner = tree
            for part in path[:-1]:
                inner[part] = {"name": inner[part]} if isinstance(inner.get(part), str) else inner.get(part, {})
                inner = inner[part]
            inner[path[-1]] = value
            Path("kept/recipe.yaml").write_text(yaml.safe_dump(tree))
            with contextlib.suppress(InputError):
                loaded = load_run_recipe(Path("kept"), trust=False)
                recipe_experiment(loaded, load_federation(loaded))
            assert not Path("canary.imported").exists(), (path, value)
    Path("kept/recipe.yaml").write_text(yaml.safe_dump({**PLAIN, "evaluation": {"metrics": ["canary:score"]}}))
    loaded = load_run_recipe(Path("kept"), trust=True)
    recipe_experiment(loaded, load_federation(loaded))
    assert Path("canary.imported").exists()  # so that the test could fail
