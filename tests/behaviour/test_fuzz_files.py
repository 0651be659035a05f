"""Files that were damaged: what reads them goes on, or refuses in a sentence, and soon; nothing else changes."""

from __future__ import annotations

import io
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fuzzing import ARRAYS, FEW, QUICK, edited, make_finished_run, make_whole_run, many, mutated, refused_or_fine
from hypothesis import given
from hypothesis import strategies as st

from fedrecall import Run
from fedrecall.api.execute import load_federation
from fedrecall.data import sources
from fedrecall.data.files import cifar, idx
from fedrecall.data.sources import cifar as cifar_source
from fedrecall.data.sources import idx as idx_source
from fedrecall.models.mlp import mlp
from fedrecall.models.weights import check_weights, read_weights
from fedrecall.recipe.display_titles import titles
from fedrecall.recipe.layers import load_recipe as load_recipe
from fedrecall.report.comparison import group_methods
from fedrecall.report.page.page import page
from fedrecall.runs import checkpoint
from fedrecall.runs.client_states import StateFiles
from fedrecall.runs.folder import RunFolder
from fedrecall.runs.reader import load_run
from fedrecall.simulation.experiment import build
from fedrecall.simulation.resume import resume_experiment


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run in `kept`, which is copied to `run` and damaged there, and a sentinel."""
    folder = tmp_path_factory.mktemp("home")
    make_finished_run(folder)
    make_whole_run(folder)
    (folder / "sentinel").write_text("mine")
    return folder


@pytest.fixture(autouse=True)
def in_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setattr("plotly.offline.get_plotlyjs", str)  # four megabytes that no file of a run changes


def files(home: Path) -> list[list[str]]:
    """The run's files by their kind, so that the many states of clients do not crowd out the rest."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for path in sorted((home / "kept").rglob("*")):
        if path.is_file() and path.stat().st_size:
            name = path.relative_to(home / "kept")
            kinds.setdefault((name.parts[0], path.suffix), []).append(str(name))
    return list(kinds.values())


def damaged(data: st.DataObject, home: Path) -> Path:
    """A copy of the run in which one file is not as it was, or not there."""
    shutil.rmtree(home / "run", ignore_errors=True)
    shutil.copytree(home / "kept", home / "run")
    name = data.draw(st.sampled_from(files(home)).flatmap(st.sampled_from), "file")
    path = home / "run" / name
    content = path.read_bytes()
    choices = {"bytes": mutated(content), "nothing": st.just(b""), "noise": st.binary(max_size=300)}
    if path.suffix == ".json":
        choices["tree"] = edited(json.loads(content)).map(as_json)
    elif path.suffix == ".yaml":
        choices["tree"] = edited(yaml.safe_load(content)).map(as_json)
    elif path.suffix == ".jsonl":
        lines = [json.loads(line) for line in content.splitlines()]
        choices["tree"] = edited(lines).map(as_lines)
    elif path.suffix == ".npz":
        choices["arrays"] = spoiled(dict(np.load(path)))
    kind = data.draw(st.sampled_from(sorted(choices)), "kind")
    if data.draw(st.integers(0, 30), "missing") == 30:
        path.unlink()
    else:
        path.write_bytes(data.draw(choices[kind], "content"))
    return home / "run"


def as_json(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def as_lines(tree: Any) -> bytes:
    return b"".join(as_json(line) + b"\n" for line in tree) if isinstance(tree, list) else as_json(tree)


@st.composite
def spoiled(draw: st.DrawFn, arrays: dict[str, np.ndarray]) -> bytes:
    """The arrays with one of another type or shape, with values that are none, or of another name."""
    arrays = dict(arrays)
    name = draw(st.sampled_from(sorted(arrays)))
    array = arrays.pop(name).copy()
    change = draw(st.sampled_from(["type", "shape", "value", "empty", "name", "pickle", "scalar", "short"]))
    if change == "type" and array.dtype.kind != "U":
        array = array.astype(draw(st.sampled_from(["f2", "f8", "i1", "u8", "?", "c8", "U3", "S2", ">i4"])))
    elif change == "shape":
        array = array.reshape(draw(st.sampled_from([(-1,), (1, -1), (-1, 1), (1, -1, 1)])))
    elif change == "value" and array.dtype.kind in "fiu" and array.size:
        array = array.astype(np.float64) if array.dtype.kind == "f" else array
        value = draw(st.sampled_from([-1, 2, 120, *([np.nan, np.inf, 1e300] if array.dtype.kind == "f" else [])]))
        array.flat[draw(st.integers(0, array.size - 1))] = value
    elif change == "empty":
        array = array[:0]
    elif change == "pickle":
        array = np.array([draw(st.just({})), None], dtype=object)
    elif change == "scalar":
        array = np.array(draw(st.integers(-3, 3)))
    elif change == "short":
        array = array[: len(array) // 2]
    file = io.BytesIO()
    np.savez(file, **arrays, **{f"{name}s" if change == "name" else name: array})
    return file.getvalue()


# The properties, each a function of a damaged file.


def reported(home: Path, data: st.DataObject) -> None:
    run = damaged(data, home)
    with refused_or_fine(home):
        page(group_methods([load_run(run)], titles()))


def read_back(home: Path, data: st.DataObject) -> None:
    run = damaged(data, home)
    with refused_or_fine(home):
        checkpoint.newest(run / "checkpoints")
    with refused_or_fine(home):
        done = Run(run, lambda: mlp((4,), 3, (3,)))
        assert done.metrics is not None
        assert done.forgetting is not None
    with refused_or_fine(home):
        check_weights(read_weights(run / "model.safetensors"), mlp((4,), 3, (3,)), "the file")
    with refused_or_fine(home):
        for path in (run / "clients").rglob("*.safetensors"):
            client, version = (int(path.stem.split("-")[place]) for place in (1, 3))
            StateFiles(run / "clients").get(client, version)


def resumed(home: Path, data: st.DataObject) -> None:
    """Whatever was damaged: the run ends with the bits of one that was not, or is refused."""
    run = damaged(data, home)
    with refused_or_fine(home):
        recipe = load_recipe(str(run / "recipe.yaml"), ["rounds=4"])
        if recipe.tree() != longer(home):
            return  # then it is another run, which may be large
        resume_experiment(RunFolder.reopen(run), build(recipe, load_federation(recipe)))
        assert (run / "model.safetensors").read_bytes() == (home / "whole" / "model.safetensors").read_bytes()


def longer(home: Path) -> dict[str, Any]:
    return load_recipe(str(home / "kept" / "recipe.yaml"), ["rounds=4"]).tree()


TABLE = "a,b,who,y\n" + "".join(f"{i},{i * i},w{i % 2},{i % 3}\n" for i in range(12))
LEAF = {
    "users": ["v", "w"],
    "num_samples": [1, 2],
    "user_data": {"v": {"x": [[0.5] * 784], "y": [3]}, "w": {"x": [[0.25] * 784] * 2, "y": [4, 61]}},
}
GREY = idx.IdxFiles("mnist", ("run",), {"train": (1, 1), "test": (1, 1)}, ("a", "b"), 0.1, 0.3)
COLOUR = cifar.BinaryFiles(
    "cifar10", "run", {"a.bin": 2}, {"b.bin": 1}, {"y": cifar.LabelByte("label", 2, "names.txt")}
)


def an_npz(data: st.DataObject, place: Path) -> Callable[[], object]:
    file = io.BytesIO()
    np.savez(file, **ARRAYS)
    write(place / "x.npz", data.draw(mutated(file.getvalue()) | spoiled(dict(ARRAYS))))
    return lambda: sources.npz(str(place / "x.npz"))


def a_csv(data: st.DataObject, place: Path) -> Callable[[], object]:
    write(place / "x.csv", data.draw(mutated(TABLE.encode())))
    return lambda: sources.csv(str(place / "x.csv"), "y", id="who")


def a_parquet(data: st.DataObject, place: Path) -> Callable[[], object]:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table, file = pyarrow.table({"a": [1.0, 2.0, 3.0, 4.0], "y": ["c", "d", "c", "d"]}), io.BytesIO()
    parquet.write_table(table, file)
    write(place / "x.parquet", data.draw(mutated(file.getvalue())))
    return lambda: sources.parquet(str(place / "x.parquet"), "y")


def an_idx(data: st.DataObject, place: Path) -> Callable[[], object]:
    for split in idx.IMAGES:
        write(place / idx.IMAGES[split], b"\0\0\x08\x03" + struct.pack(">III", 2, 28, 28) + bytes(2 * 784))
        write(place / idx.LABELS[split], b"\0\0\x08\x01" + struct.pack(">I", 2) + b"\0\1")
    spoil(data, place)
    return lambda: idx_source.idx_data(GREY, place.parent)


def a_cifar(data: st.DataObject, place: Path) -> Callable[[], object]:
    for name, count in (("a.bin", 2), ("b.bin", 1)):
        write(place / name, bytes(COLOUR.record * count))
    write(place / "names.txt", b"cat\ndog\n")
    spoil(data, place)
    return lambda: cifar_source.cifar_data(COLOUR, place.parent, "y", True, "cifar10")


def a_leaf(data: st.DataObject, place: Path) -> Callable[[], object]:
    for split in ("train", "test"):
        write(place / "femnist" / "data" / split / "all.json", as_json(LEAF))
    name = data.draw(st.sampled_from(["train", "test"]))
    content = mutated(as_json(LEAF)) | edited(LEAF).map(as_json)
    write(place / "femnist" / "data" / name / "all.json", data.draw(content))
    return lambda: sources.femnist(place)


READERS = {"npz": an_npz, "csv": a_csv, "parquet": a_parquet, "idx": an_idx, "cifar": a_cifar, "femnist": a_leaf}


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def spoil(data: st.DataObject, place: Path) -> None:
    path = data.draw(st.sampled_from(sorted(place.iterdir())))
    path.write_bytes(data.draw(mutated(path.read_bytes())))


def data_read(home: Path, data: st.DataObject, reader: str) -> None:
    shutil.rmtree(home / "run", ignore_errors=True)
    read = READERS[reader](data, home / "run")
    with refused_or_fine(home):
        read()


# Quick, and many times.


PROPERTIES = {"reported": reported, "read": read_back, "resumed with its bits": resumed}


@pytest.mark.parametrize("what", PROPERTIES)
@given(data=st.data())
@FEW
def test_a_damaged_run_is_taken_or_refused(home: Path, data: st.DataObject, what: str) -> None:
    PROPERTIES[what](home, data)


@pytest.mark.slow
@pytest.mark.parametrize("what", PROPERTIES)
@given(data=st.data())
@many(0.133)
def test_a_damaged_run_is_taken_or_refused_many_times(home: Path, data: st.DataObject, what: str) -> None:
    PROPERTIES[what](home, data)


@pytest.mark.parametrize("reader", [name for name in READERS if name != "parquet"])
@given(data=st.data())
@QUICK
def test_a_damaged_data_file_is_read_or_refused(home: Path, data: st.DataObject, reader: str) -> None:
    data_read(home, data, reader)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
@given(data=st.data())
@many(0.033)
def test_a_damaged_data_file_is_read_or_refused_many_times(home: Path, data: st.DataObject, reader: str) -> None:
    data_read(home, data, reader)
