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
from fedrecall.api.execute import load_federation
from fedrecall.api.run_recipe import load_run_recipe
from fedrecall.errors import InputError
from fedrecall.recipe.recipe import SECTIONS, Recipe
from fedrecall.recipe.settings import Settings
from fedrecall.runs.ledger import ledger_path, record, unknown_reason
from fedrecall.simulation.experiment import build

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
    "diagnose": ("diagnose", "{}", "--engine", "serial", "--quiet", "--out", "{}-diagnosis"),
}
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
        make_finished_run(folder / "work", RECIPE, **ARRAYS)
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


def words(command: str, run: object) -> tuple[str, ...]:
    return tuple(word.format(run) for word in COMMANDS[command])


def check_asks(fedrecall: Any, command: str, run: object, reason: str, names: str = "'own_net:net'") -> None:
    """The sentence, and neither is anything imported nor anything of the run or beside it changed."""
    before = listing(Path()), listing(Path(run))
    done = fedrecall(*words(command, run))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    named = f"fedrecall: error: the run '{run}' would import {names}, "
    assert done.err.startswith(f"{named}and is not known as made by you in this place: ")
    assert reason in done.err
    assert done.err.endswith("; look at that code, and say --trust if you trust it\n")
    assert (listing(Path()), listing(Path(run))) == before  # where the modules would leave their files


def check_own(fedrecall: Any, command: str, run: object, *more: str) -> None:
    done = fedrecall(*words(command, run), *more)
    assert (done.code, done.err) == (0, "")
    assert Path("own_net.imported").exists()
    forget()


def edit(**sections: Any) -> None:
    path = Path("kept/recipe.yaml")
    text = yaml.safe_dump({**yaml.safe_load(path.read_text()), **sections})
    path.write_text(text.replace("HUGE", "0x1" + "0" * 4000))  # more digits than Python writes down


def replace_ledger(make: Callable[[], object]) -> None:
    LEDGER.rename("elsewhere")
    make()


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    os.chown(path, 12345, -1)


def lose_home(patch: pytest.MonkeyPatch) -> None:
    for name in ("FEDRECALL_STATE", "XDG_STATE_HOME", "HOME"):
        patch.delenv(name, raising=False)
    patch.setattr("pwd.getpwuid", {}.__getitem__)  # as in a container with a user that it does not know


OLD_MARK = '{"mark": "00"}'  # that versions without a ledger left in a run
MANY = [f"canary:f{number}" for number in range(50)]
SHOWN = "'own_net:net', " + ", ".join(f"'{name}'" for name in MANY[:7]) + " and 43 more"
# What is done to the run `kept` (or the folder that is taken up in its place), why it asks, and for which names.
CASES: dict[str, tuple[Any, ...]] = {
    "made here": (lambda _: None, None),
    "by another name": (lambda _: "./kept/../kept", None),
    "by its full name": (lambda _: Path("kept").resolve(), None),
    "by a link": (lambda _: Path("link").symlink_to("kept") or "link", None),
    "moved and moved back": (lambda _: Path("kept").rename("moved").rename("kept"), None),
    "moved": (lambda _: Path("kept").rename("moved"), NOT_LISTED),
    "copied": (lambda _: shutil.copytree("kept", "copy"), NOT_LISTED),
    "another user": (lambda patch: patch.setenv("FEDRECALL_STATE", str(Path("theirs").resolve())), NOT_LISTED),
    "an old mark": (lambda _: LEDGER.unlink() or Path("kept/made_by.json").write_text(OLD_MARK), NOT_LISTED),
    "another name": (lambda _: edit(model={"name": "canary:net"}), NOT_LISTED, "'canary:net'"),
    "a name of Python's own": (lambda _: edit(model={"name": "os:system"}), NOT_LISTED, "'os:system'"),
    "a name in short": (lambda _: edit(model="canary:net"), NOT_LISTED, "'canary:net'"),
    "a section": (lambda _: edit(algorithm="canary:Mine"), NOT_LISTED, "'own_net:net', 'canary:Mine'"),
    "other options": (lambda _: edit(model={**RECIPE["model"], "hidden": 4}), NOT_LISTED),
    "a huge number": (lambda _: edit(model={"name": "canary:net", "hidden": "HUGE"}), "Exceeds", "'canary:net'"),
    "a metric": (lambda _: edit(evaluation={"metrics": "canary:a"}), NOT_LISTED, "'own_net:net', 'canary:a'"),
    "many metrics": (lambda _: edit(evaluation={"metrics": MANY}), NOT_LISTED, SHOWN),
    "others can read the ledger": (lambda _: LEDGER.chmod(0o644), None),
    "damaged lines": (lambda _: LEDGER.write_bytes(b'\n["/a", \xff\n[[[\n{}' + LEDGER.read_bytes()), None),
    "a line cut short": (lambda _: os.truncate(LEDGER, LEDGER.stat().st_size - 1), NOT_LISTED),
    "a damaged ledger": (lambda _: LEDGER.write_bytes(b"\xff\x00" * 99), NOT_LISTED),
    "an empty ledger": (lambda _: os.truncate(LEDGER, 0), NOT_LISTED),
    "no ledger": (lambda _: shutil.rmtree("state"), NOT_LISTED),
    "the group can write": (lambda _: LEDGER.chmod(0o620), NOT_OURS),
    "all can write": (lambda _: LEDGER.chmod(0o602), NOT_OURS),
    "others can write to its folder": (lambda _: LEDGER.parent.chmod(0o777), NOT_OURS),
    "another user's ledger": (lambda _: give_away(LEDGER), NOT_OURS),
    "another user's folder": (lambda _: give_away(LEDGER.parent), NOT_OURS),
    "a link": (lambda _: replace_ledger(lambda: LEDGER.symlink_to("../elsewhere")), NOT_OURS),
    "a link to itself": (lambda _: replace_ledger(lambda: LEDGER.symlink_to(LEDGER.name)), NOT_OURS),
    "a pipe": (lambda _: replace_ledger(lambda: os.mkfifo(LEDGER)), NOT_OURS),
    "a folder": (lambda _: replace_ledger(LEDGER.mkdir), NOT_OURS),
    "below a file": (lambda patch: patch.setenv("FEDRECALL_STATE", f"{Path.cwd()}/my.npz/a"), "Not a directory"),
    "a relative place": (lambda patch: patch.setenv("FEDRECALL_STATE", "here"), "expected an absolute path"),
    "no home folder": (lose_home, "you have no home folder for the ledger; name a folder in FEDRECALL_STATE"),
}


@pytest.mark.skipif(os.name != "posix", reason="modes, owners and links of POSIX")
@pytest.mark.parametrize("what", CASES)
def test_a_run_of_ones_own_is_taken_up_without_a_word_and_any_other_asks(
    fedrecall: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    prepare, reason, *names = CASES[what]
    place = prepare(monkeypatch)
    run = place if isinstance(place, str | Path) else "kept"
    if reason is None:
        check_own(fedrecall, "resume", run)
    else:
        check_asks(fedrecall, "resume", run, reason, *names)
    # A run that begins now works, whatever the ledger is, and is known where it is the user's.
    if not names:
        done = fedrecall("run", "recipe.yaml", "--out", "new", "--quiet", "--no-report")
        assert (done.code, done.err) == (0, "")
        forget()
        if reason in (None, NOT_LISTED):
            check_own(fedrecall, "resume", "new")
        else:
            check_asks(fedrecall, "resume", "new", reason)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_asks_and_trust_is_remembered_by_resume_alone(fedrecall: Any, command: str) -> None:
    shutil.copytree("kept", "copy")
    check_own(fedrecall, command, "kept")
    check_asks(fedrecall, command, "copy", NOT_LISTED)
    check_own(fedrecall, command, "copy", "--trust")
    if command == "resume":
        assert fedrecall("resume", "copy", "rounds=3", "--quiet", "--no-report").code == 0
        assert fedrecall("resume", "copy", "rounds=4", "--quiet", "--no-report").code == 0
        assert len(LEDGER.read_text().split("\n")) == 3  # a first one that is empty, and a line for each run
    else:
        check_asks(fedrecall, "resume", "copy", NOT_LISTED)


def test_force_is_not_trust(fedrecall: Any) -> None:
    shutil.copytree("kept", "copy")
    assert fedrecall(*words("resume", "copy"), "--force").code == 2
    assert not Path("own_net.imported").exists()


def test_what_leads_to_no_code_may_be_edited(fedrecall: Any) -> None:
    edit(seed=1)
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


def keys_of(group: type[Settings], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in group.model_fields.items():
        yield (*above, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield from keys_of(field.annotation, (*above, name))


@pytest.mark.slow
def test_whatever_key_of_a_recipe_names_code_asks_first() -> None:
    """Every key there is, those of later versions too: who adds one that imports must add it to `CODE_KEYS`."""
    every = [*keys_of(Recipe), *((section, key) for section, named in SECTIONS.items() for key in named.option_names())]
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
                build(loaded, load_federation(loaded))
            assert not Path("canary.imported").exists(), (path, value)
    Path("kept/recipe.yaml").write_text(yaml.safe_dump({**PLAIN, "evaluation": {"metrics": ["canary:score"]}}))
    loaded = load_run_recipe(Path("kept"), trust=True)
    build(loaded, load_federation(loaded))
    assert Path("canary.imported").exists()  # so that the test could fail
