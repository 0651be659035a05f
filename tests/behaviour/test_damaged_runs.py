"""Files of a run that are damaged or hostile: a sentence and nothing changed, or the bits of a run that is whole.

Recipes are in test_bad_input.py, data files in test_bad_files.py and archives in data/test_download.py.
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
import yaml
from fuzzing import RECIPE, listing, make_finished_run

Make = Callable[[], object]
ODD = 'it\'s "odd"\n[red]<b>&</script>'  # quotes, a new line, and markup of the terminal and of a page
PROBE, PARTITION, CARD = "run/forgetting/round-00002.npz", "run/partition.npz", "run/partition.json"
SUMMARY, ORIGIN, NEWEST = "run/summary.json", "run/origin.json", "run/checkpoints/round-000003"
REPORT, RESUME = ("report", "run"), ("resume", "run", "rounds=4", "--quiet")
DIAGNOSE = ("diagnose", "run", "--engine", "serial", "--quiet", "--out", "run/diagnosis")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run in `kept`, and `whole`, a longer one."""
    folder = tmp_path_factory.mktemp("home")
    make_finished_run(folder, class_names=np.array([ODD, "dog", "emu"]))
    return folder


@pytest.fixture(autouse=True)
def in_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    for name in ("run", "elsewhere"):
        shutil.rmtree(name, ignore_errors=True)
    shutil.copytree("kept", "run")


def raw(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def resumed_after() -> list[int]:
    events = [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]
    return [event["round"] for event in events if event["event"] == "resume"]


# How files are damaged


def all_of(*makes: Make) -> Make:
    return lambda: [make() for make in makes]


def content(path: str, written: bytes) -> Make:
    return lambda: Path(path).write_bytes(written)


def without(path: str) -> Make:
    return lambda: shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()


def changed(path: str, change: Callable[[Any], object]) -> Make:
    """A file of JSON or YAML whose tree is changed."""
    parse, write = (yaml.safe_load, yaml.safe_dump) if path.endswith("yaml") else (json.loads, json.dumps)

    def rewrite() -> None:
        tree = parse(Path(path).read_text())
        change(tree)
        Path(path).write_text(write(tree))

    return rewrite


def edited(path: str, **changes: Any) -> Make:
    return changed(path, lambda tree: tree.update(changes))


def line(number: int, new: str, name: str = "metrics.jsonl") -> Make:
    def write() -> None:
        path = Path("run", name)
        lines = path.read_text().splitlines()
        lines[number - 1] = new
        path.write_text("".join(f"{line}\n" for line in lines))

    return write


def arrays(path: str, **changes: Any) -> Make:
    return lambda: np.savez(path, **{**dict(np.load(path)), **changes})


def huge_shape() -> None:
    """Some bytes that speak of 80 terabytes."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)})
    with zipfile.ZipFile(PROBE, "w") as archive:
        archive.writestr("before.npy", file.getvalue())


def zip_bomb() -> None:
    """A few bytes that say they unpack to four gigabytes."""
    with zipfile.ZipFile(PROBE, "w") as archive:
        archive.writestr("before.npy", b"x")
    found = bytearray(Path(PROBE).read_bytes())
    at = found.index(b"PK\1\2") + 24  # the unpacked size in the list of contents
    found[at : at + 4] = struct.pack("<I", 2**32 - 2)
    Path(PROBE).write_bytes(found)


def text_for_arrays() -> None:
    with zipfile.ZipFile(PROBE, "w") as archive:
        for name in ("models", "before", "after"):
            archive.writestr(f"{name}.npy", "no array, but text")


def spoiled(pattern: str) -> Make:
    """One bit of the last byte turned in each of these files."""

    def turn() -> None:
        for path in Path("run").glob(pattern):
            path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))

    return turn


def no_whole_checkpoint() -> None:
    for path in Path("run/checkpoints").glob("*.safetensors"):
        path.write_bytes(struct.pack("<Q", 2**62) + b"{")


def without_records() -> None:
    """As a run of before checkpoints noted what their records are."""
    for path in Path("run/checkpoints").glob("*.json"):
        changed(str(path), lambda note: (note.pop("records"), note.pop("note_sha256")))()


HEX = "0" * 64
PICKLE = "Object arrays cannot be loaded when allow_pickle=False"
END = "; delete it to report without it\n"
AS_NOTED = (
    "is missing or not as it was after round 3, and later numbers depend on it; put it back from a copy, or "
)
METRIC = '{"round": 2, "val_accuracy": 0.5}'
BY_CLASS = "clients.jsonl is damaged: round 2 has no accuracies of 3 classes\n"
ANEW = "--force starts the run again from its beginning\n"

# What is wrong: how it is made, the command, and the sentence to its end or to where other software's words begin.
REFUSED: dict[str, tuple[Make, tuple[str, ...], str]] = {
    "a pickle in a probe": (
        arrays(PROBE, before=np.array([{}])),
        REPORT,
        f"the file '{PROBE}' is damaged: {PICKLE}{END}",
    ),
    "a pickle in the partition": (
        arrays(PARTITION, class_counts=np.array([{}])),
        REPORT,
        f"the file '{PARTITION}' is damaged: {PICKLE}\n",
    ),
    "a huge shape in a probe": (huge_shape, REPORT, f"the file '{PROBE}' is damaged: "),
    "a bomb as a probe": (
        zip_bomb,
        REPORT,
        f"the file '{PROBE}' is damaged: it unpacks to more than 1073741824 bytes{END}",
    ),
    "text for arrays": (text_for_arrays, REPORT, f"the file '{PROBE}' is damaged: the magic string"),
    "no arrays of a probe": (
        lambda: np.savez(PROBE, x=np.ones(2)),
        REPORT,
        f"the file '{PROBE}' is damaged: it is not one of a probed round{END}",
    ),
    "accuracies over 1": (
        arrays(PROBE, before=np.full(4, 1.5)),
        REPORT,
        f"the file '{PROBE}' is damaged: before does not hold accuracies of shape (4,){END}",
    ),
    "counts below zero": (
        arrays(PARTITION, class_counts=-np.ones((4, 3), int)),
        REPORT,
        f"the file '{PARTITION}' is damaged: class_counts are not samples by client and class\n",
    ),
    "NaN in a summary": (
        content(SUMMARY, b'{"final_accuracy": NaN}'),
        REPORT,
        f"the file '{SUMMARY}' is damaged: it is not JSON: NaN is not a number\n",
    ),
    "infinity in a summary": (
        content(SUMMARY, b'{"final_accuracy": 1e999}'),
        REPORT,
        f"the file '{SUMMARY}' is damaged: it is not JSON: the number 1e999 is too large\n",
    ),
    "half a character in a summary": (
        content(SUMMARY, b'{"status": "\\ud800"}'),
        REPORT,
        f"the file '{SUMMARY}' is damaged: it has half of a character, which is not text\n",
    ),
    "a list for a summary": (
        content(SUMMARY, b"[]"),
        REPORT,
        f"the file '{SUMMARY}' is damaged: it does not hold keys and values\n",
    ),
    "markup for a number": (
        edited(SUMMARY, final_accuracy="<b>"),
        REPORT,
        f"the file '{SUMMARY}' is damaged: final_accuracy is '<b>'; it should be a valid number\n",
    ),
    "a word for a section": (
        edited(ORIGIN, data="mine"),
        REPORT,
        f"the file '{ORIGIN}' is damaged: data is 'mine'; it should be a valid dictionary\n",
    ),
    "a number that no float holds": (
        changed("run/recipe.yaml", lambda recipe: recipe["local"].update(momentum=10**400)),
        REPORT,
        "the file 'run/recipe.yaml' is damaged: local.momentum is 1000000000",
    ),
    "a section without a name": (
        edited("run/recipe.yaml", model={"hidden": [3]}),
        REPORT,
        "the file 'run/recipe.yaml' is damaged: the key 'model.name' is missing\n",
    ),
    "a word for an option": (
        changed("run/recipe.yaml", lambda recipe: recipe["partition"].update(clients="many")),
        REPORT,
        "the file 'run/recipe.yaml' is damaged: partition.clients is 'many'; it should be a valid integer\n",
    ),
    "a digit of a summary changed": (
        edited(SUMMARY, final_accuracy=0.125),
        REPORT,
        f"the file '{SUMMARY}' is damaged: it is not as it was written\n",
    ),
    "a digit of a reported metric changed": (
        line(2, METRIC),
        REPORT,
        "'run/metrics.jsonl' is not as it was after round 3; put it back from a copy\n",
    ),
    "a line without its round": (
        line(2, "{}"),
        REPORT,
        "line 2 of 'run/metrics.jsonl' is damaged: the key 'round' is missing\n",
    ),
    "words for ids": (
        line(2, '{"round": 2, "client": ["a"], "val_accuracy": [1.0]}', "clients.jsonl"),
        REPORT,
        "line 2 of 'run/clients.jsonl' is damaged: client.0 is 'a'; it should be a valid integer\n",
    ),
    "a word for a line of an event": (
        content("run/events.jsonl", b'"warning"\n'),
        REPORT,
        "line 1 of 'run/events.jsonl' is damaged: it does not hold keys and values\n",
    ),
    "half a line of a finished run": (
        line(3, '{"round": 3'),
        REPORT,
        "line 3 of 'run/metrics.jsonl' is not JSON\n",
    ),
    "null for a section of the card": (
        edited(CARD, samples=None),
        REPORT,
        f"'{CARD}' is not as it was after round 3; ",
    ),
    "a deep summary": (
        content(SUMMARY, b"[" * 100_000),
        REPORT,
        f"the file '{SUMMARY}' is damaged: it is nested more than 30 deep\n",
    ),
    "a deep card": (
        content(CARD, b'{"a":' * 400 + b"1" + b"}" * 400),
        REPORT,
        f"the file '{CARD}' is damaged: it is nested more than 30 deep\n",
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
        f"noted; {ANEW}",
    ),
    "client states with a bit turned": (
        spoiled("clients/*/*.safetensors"),
        RESUME,
        "no checkpoint is whole: the state of client ",
    ),
    "a digit of a metric changed": (
        line(2, METRIC),
        RESUME,
        f"'run/metrics.jsonl' {AS_NOTED}--force goes on all the same\n",
    ),
    "no lines of clients": (
        without("run/clients.jsonl"),
        RESUME,
        f"'run/clients.jsonl' {AS_NOTED}--force goes on all the same\n",
    ),
    "half a line in the middle": (
        all_of(without_records, line(2, '{"round": 2, "cli')),
        RESUME,
        "line 2 of 'run/metrics.jsonl' is damaged, and the run goes on after round 3; put the file back from a "
        "copy, or take that line out\n",
    ),
    "a round twice": (
        all_of(without_records, line(2, '{"round": 1}')),
        RESUME,
        "'run/metrics.jsonl' is damaged: it does not have the rounds up to 3, each once and in their order; put "
        "it back from a copy\n",
    ),
    "a list for an accuracy": (
        all_of(without_records, line(2, '{"round": 2, "val_class_accuracy": [0.5, [], 1]}', "clients.jsonl")),
        RESUME,
        BY_CLASS,
    ),
    "too few accuracies": (
        all_of(without_records, line(2, '{"round": 2, "val_class_accuracy": [0.5]}', "clients.jsonl")),
        RESUME,
        BY_CLASS,
    ),
    "markup for a metric": (
        all_of(without_records, line(2, '{"round": 2, "val_accuracy": "<b>"}')),
        RESUME,
        "'run/metrics.jsonl' is damaged: 'val_accuracy' of round 2 is not a number\n",
    ),
    "a list for a message": (
        content("run/events.jsonl", b'{"event": "warning", "round": 0, "message": []}\n{"round": 1}\n'),
        RESUME,
        "line 1 of 'run/events.jsonl' is damaged, and the run goes on after round 3; ",
    ),
    "data that changed": (
        changed(ORIGIN, lambda origin: origin["data"].update(digest=HEX)),
        RESUME,
        "the data are not those that the run in 'run' began with; --force goes on all the same\n",
    ),
    "finished, without checkpoints": (
        all_of(without("run/checkpoints"), edited("run/recipe.yaml", seed=7)),
        RESUME,
        f"the run in 'run' is finished, but its checkpoints are gone; {ANEW}",
    ),
    "unfinished, with another recipe": (
        all_of(without("run/checkpoints"), without(SUMMARY), edited("run/recipe.yaml", seed=7)),
        RESUME,
        f"the recipe in 'run' is not the one that the run began with; {ANEW}",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_damaged_or_hostile_file_of_a_run_is_one_sentence(fedrecall: Any, what: str) -> None:
    make, words, sentence = REFUSED[what]
    make()
    before, facts = raw("run"), listing(Path())
    finished = fedrecall(*words)
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith(f"fedrecall: error: {sentence}")
    assert finished.err[:-1].isprintable()
    assert raw("run") == before
    assert {name for name in facts if facts[name] != listing(Path()).get(name)} <= {"run", "run/lock"}


STATES = "the state of client"
NOTE = f"the checkpoint '{NEWEST}.safetensors' is damaged: "

# What is wrong: how it is made, the round after which a resume goes on, and what it says.
RESUMED: dict[str, tuple[Make, int, str]] = {
    "nothing": (lambda: None, 3, ""),
    "states of the last round": (spoiled("clients/*/*-round-000003.safetensors"), 2, STATES),
    "another round in a note": (edited(f"{NEWEST}.json", round=2), 2, NOTE),
    "another recipe in a note": (edited(f"{NEWEST}.json", recipe={"rounds": 1}), 2, NOTE),
    "another version in a note": (edited(f"{NEWEST}.json", fedrecall=HEX), 2, NOTE),
    "another identity in a note": (edited(f"{NEWEST}.json", recipe_sha256=HEX), 2, NOTE),
    "another digest in a note": (edited(f"{NEWEST}.json", sha256=HEX), 2, NOTE),
    "a word for a size in a note": (
        changed(f"{NEWEST}.json", lambda note: note.update(records={"a": {"bytes": "1", "sha256": HEX}})),
        2,
        f"{NOTE}its note is damaged: records.a.bytes is '1'; it should be a valid integer",
    ),
    "notes without a checksum, as at first": (
        all_of(*(changed(f"{NEWEST[:-1]}{n}.json", lambda note: note.pop("note_sha256")) for n in (2, 3))),
        3,
        "",
    ),
    "notes without records, as at first": (without_records, 3, ""),
    "no card": (without(CARD), 3, ""),
    "half a card": (content(CARD, b"{"), 3, ""),
    "half a partition": (content(PARTITION, b"PK"), 3, ""),
    "no matrix": (without(PROBE), 3, "forgetting/round-00002.npz is missing or not as it was after round 3"),
    "null in the origin": (edited(ORIGIN, data=None), 3, "origin.json is missing or not as it was after round 3"),
}


@pytest.mark.parametrize("what", RESUMED)
def test_a_damaged_run_is_resumed_with_its_bits(fedrecall: Any, what: str) -> None:
    make, after, said = RESUMED[what]
    make()
    done = fedrecall(*RESUME)
    assert (done.code, done.err) == (0, "")
    assert said in done.out
    assert ("damaged" in done.out) == (after < 3)
    assert resumed_after() == [after]
    for name in ("metrics.jsonl", "clients.jsonl", "model.safetensors", "partition.json", "partition.npz"):
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes()


def test_other_data_are_taken_with_force(fedrecall: Any) -> None:
    REFUSED["data that changed"][0]()
    assert fedrecall(*RESUME, "--force").code == 0


@pytest.mark.parametrize("folder", ["clients", "checkpoints", "forgetting"])
def test_nothing_is_deleted_behind_a_link(fedrecall: Any, folder: str) -> None:
    elsewhere = Path("elsewhere")
    shutil.copytree(Path("run", folder), elsewhere)
    (elsewhere / "0000").mkdir(exist_ok=True)
    for name in ("0000/precious", "round-00009.npz", "round-000009.safetensors", "mine.txt"):
        (elsewhere / name).write_text("precious")
    shutil.rmtree(Path("run", folder))
    Path("run", folder).symlink_to(elsewhere.resolve(), target_is_directory=True)
    before = {path for path in elsewhere.rglob("*") if path.is_file()}
    fedrecall(*RESUME)
    assert before <= {path for path in elsewhere.rglob("*") if path.is_file()}


def test_no_checkpoint_goes_before_the_new_one_is_read_back(home: Path, fedrecall: Any, monkeypatch) -> None:
    before = {path: path.read_bytes() for path in Path("run/checkpoints").glob("*.safetensors")}

    def torn(path: Path, content: bytes) -> int:  # a disk that loses the end of what is written
        return original(path, content[:-1] if path.name.startswith(".round-") else content)

    original = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", torn)
    assert fedrecall(*RESUME).code == 2
    assert {path: path.read_bytes() for path in before} == before
    assert all(path.with_suffix(".json").exists() for path in before)
    monkeypatch.undo()
    monkeypatch.chdir(home)
    assert fedrecall(*RESUME).code == 0
    assert Path("run/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()


def test_a_command_that_we_print_works_with_another_engine(tmp_path: Path, monkeypatch, fedrecall: Any) -> None:
    shutil.copy("my.npz", tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "execution": {"engine": "processes", "workers": 2}}))
    assert fedrecall("run", "recipe.yaml", "--out", "run", "--quiet").code == 0
    done = fedrecall("resume", "run", "rounds=4", "--engine", "serial", "--quiet")
    assert (done.code, done.err) == (0, "")


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
