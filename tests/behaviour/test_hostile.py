"""Input that was made to harm, one by one: the whole sentence, exit code 2, and nothing written outside the run.

What data files can do is in test_bad_files.py, and what archives can do in data/test_download.py.
"""

from __future__ import annotations

import io
import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import listing, make_finished_run

ODD = 'it\'s "odd"\n[red]<b>&</script>'  # quotes, a new line, and markup of the terminal and of a page
ARRAYS: dict[str, Any] = {
    "x_train": np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32),
    "y_train": np.arange(24) % 3,
    "x_test": np.ones((6, 4), np.float32),
    "y_test": np.arange(6) % 3,
    "class_names": np.array([ODD, "dog", "emu"]),
}
RECIPE = {
    "data": {"name": "npz", "path": "my.npz"},
    "partition": {"name": "iid", "clients": 4, "validation": 0.25},
    "model": {"name": "mlp", "hidden": [3]},
    "algorithm": "scaffold",
    "rounds": 3,
    "clients_per_round": 4,
    "local": {"steps": 1, "batch_size": 4},
    "evaluation": {"every": 1, "test_last": 1},
    "forgetting": {"every": 2},
    "checkpoint": {"every": 1},
    "execution": {"engine": "serial"},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run in `kept`."""
    folder = tmp_path_factory.mktemp("home")
    make_finished_run(folder, RECIPE, ARRAYS)
    return folder


@pytest.fixture(autouse=True)
def in_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    for name in ("run", "bad.yaml"):
        if Path(name).is_dir():
            shutil.rmtree(name)
        else:
            Path(name).unlink(missing_ok=True)
    shutil.copytree("kept", "run")


def check(fedrecall: Any, words: tuple[str, ...], sentence: str) -> None:
    """The sentence to its end, or to where other software's words begin."""
    around = {name: facts for name, facts in listing(Path()).items() if name.split("/")[0] != "run"}
    finished = fedrecall(*words)
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith(f"fedrecall: error: {sentence}")
    assert finished.err[:-1].isprintable()
    assert {name: facts for name, facts in listing(Path()).items() if name.split("/")[0] != "run"} == around


# Recipes

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi")
)
RECIPES: dict[str, tuple[bytes | None, str]] = {
    "a folder": (None, "the recipe 'bad.yaml' is a folder; a file was expected, as bad.yaml/recipe.yaml\n"),
    "not UTF-8": (b"rounds: \xff\xfe", "the recipe 'bad.yaml': it is not YAML: it is not text in UTF-8\n"),
    "100 MB": (b"#" * 100_000_000, "the recipe 'bad.yaml': it has more than 131072 characters\n"),
    "an alias bomb": (BOMB.encode(), "the recipe 'bad.yaml': it stands for more than 50000 values\n"),
    "one in itself": (b"rounds: &a [*a]", "the recipe 'bad.yaml': it is nested more than 30 deep\n"),
    "very deep": (
        b"rounds: " + b"[" * 400 + b"]" * 400,
        "the recipe 'bad.yaml': it is nested more than 30 deep\n",
    ),
    "code": (
        b"!!python/object/apply:os.system [touch evil]",
        "the recipe 'bad.yaml': it has a value of the type 'os.system'; ",
    ),
    "a date": (b"seed: 2001-01-01", "the recipe 'bad.yaml': it has a value of the type 'timestamp'; quote it"),
    "half a character": (
        b'init: "\\ud800"',
        "the recipe 'bad.yaml': it has half of a character, which is not text",
    ),
    "an odd key": (
        json.dumps({ODD: 1}).encode(),
        r"""there is no key 'it\'s "odd"\n[red]<b>&</script>'; there are""",
    ),
    "an odd value": (
        json.dumps({"seed": ODD}).encode(),
        r"""seed is 'it\'s "odd"\n[red]<b>&</script>'; expected a whole number""",
    ),
    "a huge number": (b"seed: " + b"9" * 5000, "the recipe 'bad.yaml': it is not YAML: Exceeds the limit"),
    "NaN": (b"local: {lr: .nan}", "local.lr is nan; expected a finite number\n"),
}


@pytest.mark.parametrize("what", RECIPES)
def test_a_hostile_recipe_is_one_sentence(fedrecall: Any, what: str) -> None:
    content, sentence = RECIPES[what]
    if content is None:
        Path("bad.yaml").mkdir()
    else:
        Path("bad.yaml").write_bytes(content)
    check(fedrecall, ("run", "bad.yaml"), sentence)


def test_an_empty_recipe_is_one_of_defaults(fedrecall: Any) -> None:
    Path("bad.yaml").write_bytes(b"")
    assert fedrecall("recipes", "show", "bad.yaml").code == 0


# Files of a run

PROBE = "run/forgetting/round-00002.npz"
NEWEST = "run/checkpoints/round-000003"


def arrays(path: str, **changes: Any) -> Callable[[], None]:
    def write() -> None:
        found = dict(np.load(path))
        np.savez(path, **{**found, **changes})

    return write


def huge_shape(path: str) -> Callable[[], None]:
    """Some bytes that speak of 80 terabytes."""

    def write() -> None:
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)})
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("before.npy", file.getvalue())

    return write


def zip_bomb(path: str) -> Callable[[], None]:
    """A few bytes that say they unpack to four gigabytes."""

    def write() -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("before.npy", b"x")
        raw = bytearray(Path(path).read_bytes())
        at = raw.index(b"PK\1\2") + 24  # the unpacked size in the list of contents
        raw[at : at + 4] = struct.pack("<I", 2**32 - 2)
        Path(path).write_bytes(raw)

    return write


def content(path: str, written: bytes) -> Callable[[], None]:
    return lambda: Path(path).write_bytes(written) and None  # type: ignore[return-value, func-returns-value]


def edited(path: str, **changes: Any) -> Callable[[], None]:
    def write() -> None:
        Path(path).write_text(json.dumps({**json.loads(Path(path).read_text()), **changes}))

    return write


def spoil_states() -> None:
    for path in Path("run/clients").rglob("*.safetensors"):
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        path.write_bytes(raw)


def no_whole_checkpoint() -> None:
    for path in Path("run/checkpoints").glob("*.safetensors"):
        path.write_bytes(struct.pack("<Q", 2**62) + b"{")


def without_records(change: Callable[[], None]) -> Callable[[], None]:
    """As a run of before checkpoints noted what their records are."""

    def write() -> None:
        for path in Path("run/checkpoints").glob("*.json"):
            note = json.loads(path.read_text())
            del note["records"], note["note_sha256"]
            path.write_text(json.dumps(note))
        change()

    return write


def line_changed(number: int, new: str, name: str = "metrics.jsonl") -> Callable[[], None]:
    def write() -> None:
        path = Path("run", name)
        lines = path.read_text().splitlines()
        lines[number - 1] = new
        path.write_text("".join(f"{line}\n" for line in lines))

    return write


REPORT, RESUME = ("report", "run"), ("resume", "run", "rounds=4", "--quiet")
DIAGNOSE = ("diagnose", "run", "--engine", "serial", "--quiet", "--out", "run/diagnosis")
DAMAGED = "the file 'run/forgetting/round-00002.npz' is damaged"
END = "; delete it to report without it\n"
PICKLE = "it has an array of Python objects, which is a pickle, and pickles are never read"
FILES: dict[str, tuple[Callable[[], None], tuple[str, ...], str]] = {
    "a pickle in a probe": (arrays(PROBE, before=np.array([{}])), REPORT, f"{DAMAGED} ({PICKLE}){END}"),
    "a pickle in the partition": (
        arrays("run/partition.npz", class_counts=np.array([{}])),
        REPORT,
        f"the file 'run/partition.npz' is damaged: {PICKLE}\n",
    ),
    "a huge shape in a probe": (
        huge_shape(PROBE),
        REPORT,
        f"{DAMAGED} (an array of it says that its shape is (10000000000000,), but has 128 bytes){END}",
    ),
    "a bomb as a probe": (zip_bomb(PROBE), REPORT, f"{DAMAGED} (it unpacks to more than 1073741824 bytes){END}"),
    "NaN in a summary": (
        content("run/summary.json", b'{"final_accuracy": NaN}'),
        REPORT,
        "the file 'run/summary.json' is damaged: it is not JSON: NaN is not a number\n",
    ),
    "markup for a number": (
        edited("run/summary.json", final_accuracy="<b>"),
        REPORT,
        "'run/summary.json' is damaged: final_accuracy is '<b>'; a number was expected\n",
    ),
    "a number that no float holds": (
        lambda: Path("run/recipe.yaml").write_text(
            Path("run/recipe.yaml").read_text().replace("momentum: 0.0", "momentum: 1" + "0" * 400)
        ),
        REPORT,
        "'run/recipe.yaml' is damaged: local.momentum is 1000000000",
    ),
    "a digit of a summary changed": (
        edited("run/summary.json", final_accuracy=0.125),
        REPORT,
        "the file 'run/summary.json' is damaged: it is not as it was written\n",
    ),
    "a digit of a reported metric changed": (
        line_changed(2, '{"round": 2, "val_accuracy": 0.5}'),
        REPORT,
        "'run/metrics.jsonl' is not as it was after round 3; put it back from a copy\n",
    ),
    "null for a section of the card": (
        edited("run/partition.json", samples=None),
        REPORT,
        "'run/partition.json' is not as it was after round 3; ",
    ),
    "a deep summary": (
        content("run/summary.json", b"[" * 100_000),
        REPORT,
        "the file 'run/summary.json' is damaged: it is nested more than 30 deep\n",
    ),
    "a huge header of weights": (
        content("run/model.safetensors", struct.pack("<Q", 2**62) + b"{"),
        DIAGNOSE,
        "the weights 'run/model.safetensors' are damaged or no safetensors file; ",
    ),
    "huge headers of checkpoints": (
        no_whole_checkpoint,
        RESUME,
        f"no checkpoint is whole: the checkpoint '{NEWEST}.safetensors' is damaged: its checksum is another than "
        "noted; --force starts the run again from its beginning\n",
    ),
    "client states with a bit turned": (spoil_states, RESUME, "no checkpoint is whole: the state of client "),
    "a digit of a metric changed": (
        line_changed(2, '{"round": 2, "val_accuracy": 0.5}'),
        RESUME,
        "'run/metrics.jsonl' is missing or not as it was after round 3, and later numbers depend on it; put it "
        "back from a copy, or --force goes on all the same\n",
    ),
    "no lines of clients": (
        lambda: Path("run/clients.jsonl").unlink(),
        RESUME,
        "'run/clients.jsonl' is missing or not as it was after round 3, and later numbers depend on it; put it "
        "back from a copy, or --force goes on all the same\n",
    ),
    "half a line in the middle": (
        without_records(line_changed(2, '{"round": 2, "cli')),
        RESUME,
        "line 2 of 'run/metrics.jsonl' is damaged, and the run goes on after round 3; put the file back from a "
        "copy, or take that line out\n",
    ),
    "a round twice": (
        without_records(line_changed(2, '{"round": 1}')),
        RESUME,
        "'run/metrics.jsonl' is damaged: it does not have the rounds up to 3, each once and in their order; put "
        "it back from a copy\n",
    ),
    "a list for an accuracy": (
        without_records(line_changed(2, '{"round": 2, "val_class_accuracy": [0.5, [], 1]}', "clients.jsonl")),
        RESUME,
        "clients.jsonl is damaged: round 2 has no accuracies of 3 classes\n",
    ),
    "too few accuracies": (
        without_records(line_changed(2, '{"round": 2, "val_class_accuracy": [0.5]}', "clients.jsonl")),
        RESUME,
        "clients.jsonl is damaged: round 2 has no accuracies of 3 classes\n",
    ),
    "markup for a metric": (
        without_records(line_changed(2, '{"round": 2, "val_accuracy": "<b>"}')),
        RESUME,
        "'run/metrics.jsonl' is damaged: 'val_accuracy' of round 2 is not a number\n",
    ),
}


@pytest.mark.parametrize("what", FILES)
def test_a_hostile_file_of_a_run_is_one_sentence(fedrecall: Any, what: str) -> None:
    make, words, sentence = FILES[what]
    make()
    check(fedrecall, words, sentence)


def test_a_refused_resume_changes_nothing_of_the_run(fedrecall: Any) -> None:
    line_changed(2, "{")()
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    assert fedrecall(*RESUME).code == 2
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("key", ["round", "recipe", "fedrecall", "recipe_sha256", "sha256"])
def test_a_note_that_was_changed_is_passed_over(fedrecall: Any, key: str) -> None:
    """Its checkpoint is not taken for that of another round or recipe: the one before is."""
    edited(f"{NEWEST}.json", **{key: 2 if key == "round" else {"rounds": 1} if key == "recipe" else "0" * 64})()
    finished = fedrecall(*RESUME)
    assert finished.code == 0, finished.err
    assert f"the checkpoint '{NEWEST}.safetensors' is damaged: " in finished.out
    events = [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]
    assert [event["round"] for event in events if event["event"] == "resume"] == [2]


def test_checkpoints_from_before_notes_had_a_checksum_are_read(fedrecall: Any) -> None:
    for path in Path("run/checkpoints").glob("*.json"):
        note = json.loads(path.read_text())
        assert note.pop("note_sha256")
        path.write_text(json.dumps(note))
    finished = fedrecall(*RESUME)
    assert (finished.code, finished.err) == (0, "")
    assert "damaged" not in finished.out


# Names


def test_odd_names_of_classes_and_runs_are_shown_as_text(fedrecall: Any) -> None:
    odd = 'run/it\'s "odd" <x-y>&'
    shutil.copytree("kept", odd)
    finished = fedrecall("report", odd)
    assert finished.code == 0, finished.err
    page = Path(odd, "report.html").read_text()
    assert "&lt;x-y&gt;" in page
    assert "<x-y>" not in page
    assert "[red]<b>&</script>" not in page
    assert fedrecall("partition", str(Path(odd, "recipe.yaml")), "--out", "run/card").code == 0
