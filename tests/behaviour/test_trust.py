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
from fedrecall.front.execute import load_federation
from fedrecall.front.run_recipe import load_run_recipe
from fedrecall.recipe.files import read
from fedrecall.recipe.own_code import own_code
from fedrecall.recipe.recipe import SECTIONS, Recipe
from fedrecall.recipe.settings import Settings
from fedrecall.runs.mark import why_not_own
from fedrecall.runs.user_key import user_key
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
OTHER = "its mark, made_by.json, is of another user, machine or folder, or of other code"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`work`, with the modules and the finished run `kept`, by a user with a key of its own; a copy in `kept`."""
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


def edit(run: str, **sections: Any) -> None:
    path = Path(run, "recipe.yaml")
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **sections}))


def check_asks(fedrecall: Any, command: str, run: str, reason: str, names: str = "'own_net:net'") -> None:
    """The sentence, and neither is anything imported nor anything of the run changed."""
    before = listing(Path(run))
    done = fedrecall(*words(command, run))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith(ASKS.format(run, names, reason))
    assert done.err.endswith("and say --trust if you trust it\n")
    assert not Path("own_net.imported").exists()
    assert not Path("canary.imported").exists()
    assert listing(Path(run)) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_of_ones_own_is_taken_up_without_a_word(fedrecall: Any, command: str) -> None:
    done = fedrecall(*words(command, "kept"))
    assert (done.code, done.err) == (0, "")
    assert Path("own_net.imported").exists()


def test_it_may_be_resumed_again_and_by_another_way_to_its_folder(fedrecall: Any) -> None:
    Path("link").symlink_to("kept")
    for rounds, run in enumerate(("kept", "link", "./kept/../kept", str(Path("kept").resolve())), start=2):
        done = fedrecall("resume", run, f"rounds={rounds}", "--quiet", "--no-report")
        assert (done.code, done.err) == (0, "")
    assert len(Path("kept/metrics.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize("command", COMMANDS)
def test_a_copy_asks_and_imports_nothing(fedrecall: Any, command: str) -> None:
    shutil.copytree("kept", "copy")
    check_asks(fedrecall, command, "copy", OTHER)


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
        check_asks(fedrecall, "resume", "copy", OTHER)


def test_force_is_not_trust(fedrecall: Any) -> None:
    shutil.copytree("kept", "copy")
    assert fedrecall(*words("resume", "copy"), "--force").code == 2
    assert not Path("own_net.imported").exists()


def test_a_run_that_was_moved_asks_until_it_is_back(fedrecall: Any) -> None:
    Path("kept").rename("moved")
    check_asks(fedrecall, "resume", "moved", OTHER)
    Path("moved").rename("kept")
    assert fedrecall(*words("resume", "kept")).code == 0


HUGE = "0x1" + "0" * 4000  # more digits than Python writes down
EDITS: dict[str, tuple[dict[str, Any], str]] = {
    "another name": ({"model": {"name": "canary:net"}}, "'canary:net'"),
    "a name of Python's own": ({"model": {"name": "os:system"}}, "'os:system'"),
    "another section": ({"algorithm": {"name": "canary:Mine"}}, "'own_net:net', 'canary:Mine'"),
    "other options": ({"model": {"name": "own_net:net", "hidden": 4}}, "'own_net:net'"),
    "a metric": ({"evaluation": {"metrics": "canary:score"}}, "'own_net:net', 'canary:score'"),
    "two metrics": (
        {"evaluation": {"metrics": ["canary:a", "canary:b"]}},
        "'own_net:net', 'canary:a', 'canary:b'",
    ),
    "many metrics": (
        {"evaluation": {"metrics": [f"canary:f{n}" for n in range(50)]}},
        "'own_net:net', " + ", ".join(f"'canary:f{n}'" for n in range(7)) + " and 43 more",
    ),
    "a number that JSON has not": ({"model": {"name": "canary:net", "hidden": HUGE}}, "'canary:net'"),
}


@pytest.mark.parametrize("what", EDITS)
def test_a_recipe_that_was_edited_to_name_other_code_asks(fedrecall: Any, what: str) -> None:
    sections, names = EDITS[what]
    edit("kept", **sections)
    path, reason = Path("kept/recipe.yaml"), OTHER
    if HUGE in path.read_text():
        path.write_text(path.read_text().replace(f"'{HUGE}'", HUGE))
        reason = "Exceeds the limit"
    for command in COMMANDS:
        done = fedrecall(*words(command, "kept"))
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        asks = done.err.startswith(ASKS.format("kept", names, reason).removesuffix("; look at"))
        # Before that, a diagnosis compares the recipe with the checkpoint's.
        assert asks or (command == "diagnose" and "is not the recipe of the run" in done.err)
    assert not Path("own_net.imported").exists()
    assert not Path("canary.imported").exists()


def test_what_leads_to_no_code_may_be_edited(fedrecall: Any) -> None:
    edit("kept", seed=1)
    done = fedrecall(*words("resume", "kept"))
    assert "the recipe is not the run's: seed was 0 and is 1" in done.err


def test_another_user_and_another_machine_ask(fedrecall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("machine-id").write_text("other\n")
    with monkeypatch.context() as there:
        there.setattr("fedrecall.runs.mark.MACHINE_IDS", ("no-such-file", "machine-id"))
        check_asks(fedrecall, "resume", "kept", OTHER)
    with monkeypatch.context() as somebody:
        somebody.setenv("FEDRECALL_STATE", str(Path("theirs").resolve()))
        check_asks(fedrecall, "resume", "kept", "this user has marked no run on this machine yet")
        assert not Path("theirs").exists()  # to ask makes nothing
        user_key(make=True)
        check_asks(fedrecall, "resume", "kept", OTHER)


def test_a_run_without_a_mark_asks_only_if_it_names_code(fedrecall: Any) -> None:
    Path("kept/made_by.json").unlink()
    check_asks(fedrecall, "resume", "kept", "it has no mark, made_by.json")
    Path("plain.yaml").write_text(yaml.safe_dump({**RECIPE, "model": {"name": "mlp", "hidden": [3]}}))
    assert fedrecall("run", "plain.yaml", "--out", "plain", "--quiet", "--no-report").code == 0
    assert not Path("plain/made_by.json").exists()
    Path("plain").rename("elsewhere")
    for command in COMMANDS:
        done = fedrecall(*words(command, "elsewhere"))
        assert (done.code, done.err) == (0, "")


def test_what_is_typed_is_ones_own_word(fedrecall: Any) -> None:
    """A model that is typed replaces the one that the folder names, whose module stays where it is."""
    shutil.copytree("kept", "copy")
    asked = fedrecall(*words("diagnose", "copy"), "model.hidden=3")  # over what the folder names
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
        Path("mine/made_by.json").unlink()


# The key


def as_text(path: Path) -> None:
    path.write_text("damaged")
    path.chmod(0o600)


def for_all(path: Path) -> None:
    path.write_bytes(bytes(32))
    path.chmod(0o644)


def linked(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(bytes(32))
    path.symlink_to("elsewhere")


KEYS: dict[str, tuple[Callable[[Path], None], str]] = {
    "damaged": (as_text, "the key '{}' is damaged; delete it, and the next run makes another"),
    "open to all": (for_all, "others can read the key '{}'; delete it, and the next run makes another"),
    "a link": (linked, "the key '{}' cannot be read or made: it is a link"),
    "a link to itself": (lambda path: path.symlink_to("key"), "the key '{}' cannot be read or made: it is a link"),
    "a link to nothing": (lambda path: path.symlink_to("no"), "the key '{}' cannot be read or made: it is a link"),
    "a pipe": (os.mkfifo, "the key '{}' is no regular file"),
    "a folder": (Path.mkdir, "the key '{}' is no regular file"),
}


@pytest.mark.parametrize("what", KEYS)
def test_with_a_key_that_is_none_runs_go_on_and_resume_says_why_it_asks(fedrecall: Any, what: str) -> None:
    put, reason = KEYS[what]
    key = Path("state/key").resolve()
    key.unlink()
    put(key)
    check_asks(fedrecall, "resume", "kept", reason.format(key))
    if what not in ("a pipe", "a link to nothing"):  # the others are read and made alike
        return
    done = fedrecall("run", "recipe.yaml", "--out", "new", "--quiet", "--no-report")
    assert (done.code, done.err) == (0, "")
    assert not Path("new/made_by.json").exists()
    assert fedrecall(*words("resume", "new"), "--trust").code == 0


@pytest.mark.parametrize("place", ["relative", "{}/recipe.yaml/below"])
def test_without_a_place_for_the_key_runs_go_on_and_resume_asks(
    fedrecall: Any, home: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("FEDRECALL_STATE", place.format(home / "work"))
    done = fedrecall("run", "recipe.yaml", "--out", "new", "--quiet", "--no-report")
    assert (done.code, done.err) == (0, "")
    assert not Path("relative").exists()
    forget()
    check_asks(fedrecall, "resume", "new", "it has no mark, made_by.json")
    assert fedrecall(*words("resume", "kept")).err.count("\n") == 1


def test_the_key_lies_where_the_system_keeps_what_is_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("FEDRECALL_STATE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    for given, place in {"": ".local/state", "relative": ".local/state", f"{tmp_path}/xdg": "xdg"}.items():
        monkeypatch.setenv("XDG_STATE_HOME", given)
        user_key(make=True)
        assert (tmp_path / place / "fedrecall/key").is_file()
        assert stat.S_IMODE((tmp_path / place / "fedrecall").stat().st_mode) == 0o700
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(InputError, match="this user has no home folder"):
        user_key(make=True)


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")  # as `Path.home` has it


def test_of_many_who_make_the_key_at_once_all_have_the_same() -> None:
    Path("state/key").unlink()
    together = Barrier(8)

    def make() -> bytes:
        together.wait()
        return user_key(make=True)

    with ThreadPoolExecutor(8) as pool:
        keys = {future.result() for future in [pool.submit(make) for _ in range(8)]}
    assert keys == {Path("state/key").read_bytes()}
    assert len(keys.pop()) == 32
    assert stat.S_IMODE(Path("state/key").stat().st_mode) == 0o600
    assert os.listdir("state") == ["key"]


# The mark


MARKS: dict[str, Callable[[Path], Any]] = {
    "nothing": Path.touch,
    "no JSON": lambda path: path.write_text("{"),
    "a list": lambda path: path.write_text("[]"),
    "no words": lambda path: path.write_text('{"mark": null}'),
    "odd words": lambda path: path.write_text('{"mark": "\u00e9"}'),
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
}


@pytest.mark.parametrize("what", MARKS)
def test_a_mark_that_is_none_asks_and_harms_nothing(fedrecall: Any, what: str) -> None:
    path, code = Path("kept/made_by.json"), own_code(read("kept/recipe.yaml"))
    assert why_not_own(Path("kept"), code) is None
    path.unlink()
    MARKS[what](path)
    done = fedrecall(*words("replay", "kept"))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "say --trust if you trust it" in done.err
    assert not Path("own_net.imported").exists()
    done = fedrecall(*words("resume", "kept"), "--trust")
    assert (done.code, done.err) == (0, "")
    assert path.is_dir() if what == "a folder" else why_not_own(Path("kept"), code) is None


def test_a_mark_does_not_show_what_it_is_made_of() -> None:
    """It travels with the folder: neither the key nor the place is in it."""
    text = Path("kept/made_by.json").read_text()
    assert list(json.loads(text)) == ["mark"]
    assert len(bytes.fromhex(json.loads(text)["mark"])) == 32


def keys_of(group: type[Settings], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in group.model_fields.items():
        yield (*above, name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield from keys_of(field.annotation, (*above, name))


@pytest.mark.slow
def test_whatever_key_of_a_recipe_names_code_asks_first() -> None:
    """Every key there is, those of later versions too: who adds one that imports must add it to `own_code`."""
    every = [
        *keys_of(Recipe),
        *((section, key) for section, named in SECTIONS.items() for key in named.option_names()),
    ]
    assert ("evaluation", "metrics") in every
    plain = {**RECIPE, "model": {"name": "mlp", "hidden": [3]}}
    for path in every:
        for value in ("canary:net", ["canary:net"], {"name": "canary:net"}):
            tree = json.loads(json.dumps(plain))
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
    Path("kept/recipe.yaml").write_text(yaml.safe_dump({**plain, "evaluation": {"metrics": ["canary:score"]}}))
    loaded = load_run_recipe(Path("kept"), trust=True)
    build(loaded, load_federation(loaded))
    assert Path("canary.imported").exists()  # so that the test could fail
