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
from fuzzing import RECIPE, listing, make_finished_run, make_whole_run

Make = Callable[[], object]
ODD = 'it\'s "odd"\n[red]<b>&</script>'  # quotes, a new line, and markup of the terminal and of a page
PROBE, PARTITION, CARD = "run/forgetting/round-00002.npz", "run/partition.npz", "run/partition.json"
SUMMARY, ORIGIN, USED = "run/summary.json", "run/origin.json", "run/recipe.yaml"
METRICS, CLIENTS, EVENTS = "run/metrics.jsonl", "run/clients.jsonl", "run/events.jsonl"
NEWEST, HUGE = "run/checkpoints/round-000003", struct.pack("<Q", 2**62) + b"{"
REPORT, RESUME = ("report", "run"), ("resume", "run", "rounds=4", "--quiet")
DIAGNOSE = ("diagnose", "run", "--engine", "serial", "--quiet", "--out", "run/diagnosis")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run in `kept`, and `whole`, a longer one."""
    folder = tmp_path_factory.mktemp("home")
    make_finished_run(folder, class_names=np.array([ODD, "dog", "emu"]))
    make_whole_run(folder)
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


def edited(path: str, **changes: Any) -> Make:
    """A file of JSON or YAML with other values."""
    parse, write = (yaml.safe_load, yaml.safe_dump) if path.endswith("yaml") else (json.loads, json.dumps)

    def rewrite() -> None:
        tree = parse(Path(path).read_text())
        Path(path).write_text(write({**tree, **changes}))

    return rewrite


def older_notes(*lacking: str) -> Make:
    """Notes as they were at first, without a checksum of their own and what later versions added."""

    def write() -> None:
        for path in Path("run/checkpoints").glob("*.json"):
            note = json.loads(path.read_text())
            path.write_text(json.dumps({key: note[key] for key in note.keys() - {"note_sha256", *lacking}}))

    return write


def line(number: int, new: str, file: str = METRICS) -> Make:
    def write() -> None:
        path = Path(file)
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


def cut(pattern: str) -> Make:
    """The first of these files without its last bytes."""

    def shorten() -> None:
        path = min(Path("run").glob(pattern))
        path.write_bytes(path.read_bytes()[:-7])

    return shorten


def spoiled(pattern: str) -> Make:
    """Clients' states with one bit of the last byte turned."""

    def turn() -> None:
        for path in Path("run/clients").rglob(f"{pattern}.safetensors"):
            path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))

    return turn


# What a command refuses: how it comes about, the command, and the sentence to its end or to where the words of
# other software begin.


def report(file: str, make: Make | bytes, why: str) -> tuple[Make, tuple[str, ...], str]:
    return content(file, make) if isinstance(make, bytes) else make, REPORT, f"the file '{file}' is damaged: {why}"


def resume(make: Make, sentence: str) -> tuple[Make, tuple[str, ...], str]:
    return make, RESUME, sentence


HEX = "0" * 64
without_records = older_notes("records")
PICKLE = "Object arrays cannot be loaded when allow_pickle=False"
END = "; delete it to report without it\n"
AS_NOTED = "is missing or not as it was after round 3, and later numbers depend on it; put it back from a copy, or "
FORCE = f"{AS_NOTED}--force goes on all the same\n"
GOES_ON = "is damaged, and the run goes on after round 3; put the file back from a copy, or take that line out\n"
ANEW = "--force starts the run again from its beginning\n"
METRIC = '{"round": 2, "val_accuracy": 0.5}'
WORD = '{"round": 2, "val_accuracy": "<b>"}'
BY_CLASS = '{"round": 2, "val_class_accuracy": [0.5]}'
ODD_BY_CLASS = '{"round": 2, "val_class_accuracy": [0.5, [], 1]}'
NOT_BY_CLASS = "clients.jsonl is damaged: round 2 has no accuracies of 3 classes\n"
IDS = '{"round": 2, "client": ["a"], "val_accuracy": [1.0]}'
LATER = "after round 3; put it back from a copy"
NO_ROUND = f"it is not one of a probed round{END}"
NOT_JSON = "it is not JSON: "
DEEP = "it is nested more than 30 deep\n"
NO_INTEGER = "expected a whole number\n"

REFUSED: dict[str, tuple[Make, tuple[str, ...], str]] = {
    "a pickle in a probe": report(PROBE, arrays(PROBE, before=np.array([{}])), f"{PICKLE}{END}"),
    "a pickle as counts": report(PARTITION, arrays(PARTITION, class_counts=np.array([{}])), f"{PICKLE}\n"),
    "a huge shape": report(PROBE, huge_shape, ""),
    "a bomb": report(PROBE, zip_bomb, f"it unpacks to more than 1073741824 bytes{END}"),
    "text for arrays": report(PROBE, text_for_arrays, "the magic string"),
    "no arrays of a probe": report(PROBE, lambda: np.savez(PROBE, x=np.ones(2)), NO_ROUND),
    "accuracies over 1": report(PROBE, arrays(PROBE, before=np.full(4, 1.5)), "before does not hold accuracies"),
    "counts below 0": report(PARTITION, arrays(PARTITION, class_counts=-np.ones((4, 3), int)), "class_counts are"),
    "NaN": report(SUMMARY, b'{"final_accuracy": NaN}', f"{NOT_JSON}NaN is not a number\n"),
    "infinity": report(SUMMARY, b'{"final_accuracy": 1e999}', f"{NOT_JSON}the number 1e999 is too large\n"),
    "half a character": report(SUMMARY, b'{"status": "\\ud800"}', "it has half of a character, which is not text\n"),
    "no text": report(SUMMARY, b"\xff", "it is not text\n"),
    "a list": report(SUMMARY, b"[]", "it does not hold keys and values\n"),
    "a deep list": report(SUMMARY, b"[" * 100_000, DEEP),
    "a deep tree": report(CARD, b'{"a":' * 400 + b"1" + b"}" * 400, DEEP),
    "markup for a number": report(
        SUMMARY, edited(SUMMARY, final_accuracy="<b>"), "final_accuracy is '<b>'; expected a number\n"
    ),
    "a digit of a summary changed": report(
        SUMMARY, edited(SUMMARY, final_accuracy=0.125), "it is not as it was written\n"
    ),
    "a word for a section": report(ORIGIN, edited(ORIGIN, data="a"), "data is 'a'; expected a group of keys\n"),
    "a number that no float holds": report(USED, edited(USED, local={"momentum": 10**400}), "local.momentum is 1000"),
    "a section without a name": report(USED, edited(USED, model={}), "the key 'model.name' is missing\n"),
    "a word for an option": report(
        USED, edited(USED, partition={"name": "iid", "clients": "x"}), f"partition.clients is 'x'; {NO_INTEGER}"
    ),
    "a metric changed": (line(2, METRIC), REPORT, f"'{METRICS}' is not as it was {LATER}\n"),
    "null for a section": (edited(CARD, samples=None), REPORT, f"'{CARD}' is not as it was {LATER}, or delete it"),
    "a line without its round": (line(2, "{}"), REPORT, f"line 2 of '{METRICS}' is damaged: the key 'round' is"),
    "words for ids": (
        line(2, IDS, CLIENTS),
        REPORT,
        f"line 2 of '{CLIENTS}' is damaged: client.0 is 'a'; {NO_INTEGER}",
    ),
    "a word for an event": (line(1, '"a"', EVENTS), REPORT, f"line 1 of '{EVENTS}' is damaged: it does not hold"),
    "half a line of a finished run": (line(3, '{"round": 3'), REPORT, f"line 3 of '{METRICS}' is not JSON\n"),
    "a huge header of weights": (
        content("run/model.safetensors", HUGE),
        DIAGNOSE,
        "the weights 'run/model.safetensors' are damaged or no safetensors file; ",
    ),
    "huge headers of checkpoints": resume(
        all_of(*(content(f"run/checkpoints/round-00000{n}.safetensors", HUGE) for n in (2, 3))),
        f"no checkpoint is whole: the checkpoint '{NEWEST}.safetensors' is damaged: its checksum is another than "
        f"noted; {ANEW}",
    ),
    "states with a bit turned": resume(spoiled("*"), "no checkpoint is whole: the state of client "),
    "another metric": resume(line(2, METRIC), f"'{METRICS}' {FORCE}"),
    "no lines of clients": resume(without(CLIENTS), f"'{CLIENTS}' {FORCE}"),
    "half a line": resume(all_of(without_records, line(2, METRIC[:9])), f"line 2 of '{METRICS}' {GOES_ON}"),
    "markup for a metric": resume(all_of(without_records, line(2, WORD)), f"line 2 of '{METRICS}' {GOES_ON}"),
    "a list for a message": resume(
        content(EVENTS, b'{"round": 0, "message": []}\n{"round": 1}\n'), f"line 1 of '{EVENTS}' {GOES_ON}"
    ),
    "a round twice": resume(
        all_of(without_records, line(2, '{"round": 1}')),
        f"'{METRICS}' is damaged: it does not have the rounds up to 3, each once and in their order; put it back",
    ),
    "a list for an accuracy": resume(all_of(without_records, line(2, ODD_BY_CLASS, CLIENTS)), NOT_BY_CLASS),
    "too few accuracies": resume(all_of(without_records, line(2, BY_CLASS, CLIENTS)), NOT_BY_CLASS),
    "data that changed": resume(
        edited(ORIGIN, data={"digest": HEX}),
        "the data are not those that the run in 'run' began with; --force goes on all the same\n",
    ),
    "finished, without checkpoints": resume(
        all_of(without("run/checkpoints"), edited(USED, seed=7)),
        f"the run in 'run' is finished, but its checkpoints are gone; {ANEW}",
    ),
    "unfinished, with another recipe": resume(
        all_of(without("run/checkpoints"), without(SUMMARY), edited(USED, seed=7)),
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
NOTED = [("round", 2), ("recipe", {"rounds": 1}), *((key, HEX) for key in ("fedrecall", "recipe_sha256", "sha256"))]
NOTE = f"the checkpoint '{NEWEST}.safetensors' is damaged: "

# What is wrong: how it is made, the round after which a resume goes on, and what it says.
RESUMED: dict[str, tuple[Make, int, str]] = {
    "nothing": (lambda: None, 3, ""),
    "states of the last round": (spoiled("*-round-000003"), 2, STATES),
    "a state cut short": (cut("clients/0000/*-round-000003.safetensors"), 2, "after round 3 is missing or damaged"),
    "a checkpoint cut short": (cut("checkpoints/round-000003.safetensors"), 2, NOTE),
    **{f"another {key} in a note": (edited(f"{NEWEST}.json", **{key: value}), 2, NOTE) for key, value in NOTED},
    "a word for a size in a note": (
        edited(f"{NEWEST}.json", note_sha256=None, records={"a": {"bytes": "1", "sha256": HEX}}),
        2,
        f"{NOTE}its note is damaged: records.a.bytes is '1'; expected a whole number",
    ),
    "notes without a checksum, as at first": (older_notes(), 3, ""),
    "notes without records and devices, as at first": (older_notes("records", "device"), 3, ""),
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


@pytest.mark.slow  # real worker processes
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
