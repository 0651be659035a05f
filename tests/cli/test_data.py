"""`fedrecall data`: list, fetch and verify, against a server on this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shlex
import struct
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from sentences import check_one_sentence

from fedrecall.cli import main as cli
from fedrecall.cli.data import data
from fedrecall.data.catalogue import CATALOGUE, Download, state
from fedrecall.data.sources import cifar, cifar10, idx, mnist

BATCHES = [f"data_batch_{i}.bin" for i in range(1, 6)]
FOLDER = "cifar-10-batches-bin"
IDX = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]


@pytest.fixture(autouse=True)
def on_its_own(tmp_path, monkeypatch) -> None:
    """The group as a command, no data given, and a cache of its own."""
    monkeypatch.setitem(cli.fedrecall.commands, "data", data)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)


class Handler(SimpleHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path) -> Iterator[str]:
    """The address at which the folder `served` is."""
    (tmp_path / "served").mkdir()
    Handler.asked = []
    handler = partial(Handler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def cifar10_files() -> dict[str, bytes]:
    """Two records in each file: a label, then pixels that are the label too."""
    files = {
        f"{FOLDER}/{name}": b"".join(bytes([label]) * 3073 for label in (i, i + 1))
        for i, name in enumerate([*BATCHES, "test_batch.bin"])
    }
    return {**files, f"{FOLDER}/batches.meta.txt": b"a b c d e f g h i j\n", f"{FOLDER}/readme.html": b"<p>"}


def offer(monkeypatch, name: str, **changes) -> None:
    monkeypatch.setitem(CATALOGUE, name, replace(CATALOGUE[name], **changes))


def offer_cifar10(monkeypatch, server: str, archive: Path, files: dict[str, bytes]) -> None:
    """Make a small CIFAR-10 and put its address into the catalogue."""
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    raw = archive.read_bytes()
    small = replace(cifar.CIFAR10, train=dict.fromkeys(BATCHES, 2), test={"test_batch.bin": 2})
    monkeypatch.setattr(cifar, "CIFAR10", small)
    part = Download(f"{server}/{archive.name}", hashlib.md5(raw).hexdigest(), len(raw))
    offer(monkeypatch, "cifar10", files=small, downloads=(part,), unpacked_size=12 * 3073)


@pytest.fixture
def small_cifar10(tmp_path, monkeypatch, server) -> Path:
    """The served archive."""
    archive = tmp_path / "served" / "cifar-10-binary.tar.gz"
    offer_cifar10(monkeypatch, server, archive, cifar10_files())
    return archive


@pytest.fixture
def small_mnist(tmp_path, monkeypatch, server) -> Path:
    """The folder of the served files: an image of each class in each split."""
    labels = bytes(range(10))
    contents = {
        "images": struct.pack(">4I", 2051, 10, 28, 28) + bytes(7840),
        "labels": struct.pack(">2I", 2049, 10) + labels,
    }
    parts = []
    for name in IDX:
        raw = gzip.compress(contents["images" if "images" in name else "labels"])
        (tmp_path / "served" / f"{name}.gz").write_bytes(raw)
        parts.append(Download(f"{server}/{name}.gz", hashlib.md5(raw).hexdigest(), len(raw)))
    small = replace(idx.MNIST, counts={"train": (1,) * 10, "test": (1,) * 10})
    monkeypatch.setattr(idx, "MNIST", small)
    offer(monkeypatch, "mnist", files=small, downloads=tuple(parts))
    return tmp_path / "served"


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_is_fetched_is_loaded_without_a_word(fedrecall, small_cifar10, tmp_path) -> None:
    finished = fedrecall("data", "fetch", "cifar10")
    place = tmp_path / "cache" / "data" / FOLDER
    assert finished.code == 0, finished.err
    assert finished.out == f"{place}\n"
    assert finished.err == ""
    loaded = cifar10()
    assert loaded.y_train.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert np.array_equal(loaded.x_train[:, 31, 31, 2], loaded.y_train)


def test_the_advice_about_data_that_are_not_here_is_followed(fedrecall, small_cifar10, tmp_path) -> None:
    words = ("partition", "lenet-cifar10", "partition={name: iid, clients: 2, validation: 0.2}")
    (tmp_path / "empty").mkdir()
    for place in ([], ["--data", tmp_path / "empty"]):
        refused = fedrecall(*words, *place)
        check_one_sentence(refused, "`fedrecall data fetch cifar10`", "with --data DIR")
    (tmp_path / "file").touch()
    check_one_sentence(
        fedrecall("data", "fetch", "cifar10", "--to", tmp_path / "file" / "x"), "choose another with --to DIR"
    )
    command = re.search(r"`fedrecall ([^`]*)`", refused.err)[1]
    assert fedrecall(*command.split(), "--to", tmp_path / "mine").code == 0
    assert fedrecall(*words, "--data", tmp_path / "mine").code == 0
    assert fedrecall(*command.split()).code == 0
    assert fedrecall(*words).code == 0


def test_an_example_of_help_works(fedrecall, small_cifar10, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in ("data", "data fetch", "data list", "data verify"):
        example = re.search(r"Example: fedrecall (.*)", fedrecall(*command.split(), "--help").out)[1]
        done = fedrecall(*shlex.split(example.replace("~", str(tmp_path))))
        assert done.code == 0, done.err


def test_the_archive_does_not_stay(fedrecall, small_cifar10, tmp_path) -> None:
    fedrecall("data", "fetch", "cifar10", "--to", tmp_path / "mine")
    assert left_in(tmp_path / "mine") == sorted(cifar10_files())


def test_the_environment_names_the_folder_to_fetch_to(fedrecall, small_cifar10, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FEDRECALL_DATA", str(tmp_path / "mine"))
    assert fedrecall("data", "fetch", "cifar10").out == f"{tmp_path / 'mine' / FOLDER}\n"


def test_what_is_here_is_not_fetched_again(fedrecall, small_cifar10) -> None:
    first, second = (fedrecall("data", "fetch", "cifar10") for _ in range(2))
    assert first == second
    assert Handler.asked == ["/cifar-10-binary.tar.gz"]


def test_what_is_damaged_is_fetched_again(fedrecall, small_cifar10, tmp_path) -> None:
    fedrecall("data", "fetch", "cifar10", "--to", tmp_path / "mine")
    (tmp_path / "mine" / FOLDER / "data_batch_2.bin").write_bytes(b"short")
    assert fedrecall("data", "fetch", "cifar10", "--to", tmp_path / "mine").code == 0
    assert state(CATALOGUE["cifar10"], tmp_path / "mine") == "here"


def test_an_archive_downloaded_by_hand_is_unpacked_and_stays(fedrecall, small_cifar10, tmp_path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / small_cifar10.name).write_bytes(small_cifar10.read_bytes())
    assert fedrecall("data", "fetch", "cifar10", "--to", tmp_path / "mine").code == 0
    assert left_in(tmp_path / "mine") == sorted([small_cifar10.name, *cifar10_files()])
    assert Handler.asked == []


def test_fetch_as_json(fedrecall, small_cifar10, tmp_path) -> None:
    finished = fedrecall("data", "fetch", "cifar10", "--json")
    place = tmp_path / "cache" / "data" / FOLDER
    assert json.loads(finished.out) == {"name": "cifar10", "folder": str(place), "state": "here"}


def test_another_archive_at_the_address_is_refused(fedrecall, small_cifar10, tmp_path) -> None:
    raw = small_cifar10.read_bytes()
    small_cifar10.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    finished = fedrecall("data", "fetch", "cifar10", "--to", tmp_path / "mine")
    check_one_sentence(finished, "cifar-10-binary.tar.gz", "http://127.0.0.1", "hash", "--data DIR")
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({**cifar10_files(), f"{FOLDER}/../../evil": b"x"}, "evil"),
        ({**cifar10_files(), f"{FOLDER}/bomb": bytes(2_000_000)}, "unpacks to more than"),
    ],
    ids=["climbs", "blows up"],
)
def test_a_harmful_archive_leaves_nothing(fedrecall, tmp_path, monkeypatch, server, files, complaint) -> None:
    offer_cifar10(monkeypatch, server, tmp_path / "served" / "a.tar.gz", files)
    check_one_sentence(fedrecall("data", "fetch", "cifar10", "--to", tmp_path / "mine"), "a.tar.gz", complaint)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["served"]


def test_an_archive_without_the_expected_files_is_told(fedrecall, tmp_path, monkeypatch, server) -> None:
    files = cifar10_files()
    del files[f"{FOLDER}/data_batch_3.bin"]
    offer_cifar10(monkeypatch, server, tmp_path / "served" / "a.tar.gz", files)
    finished = fedrecall("data", "fetch", "cifar10", "--to", tmp_path / "mine")
    check_one_sentence(finished, "was downloaded to", "damaged: data_batch_3.bin is missing")


def test_the_four_files_of_mnist_are_fetched_and_read(fedrecall, small_mnist, tmp_path) -> None:
    assert fedrecall("data", "fetch", "mnist", "--to", tmp_path / "mine").code == 0
    assert left_in(tmp_path / "mine") == sorted(f"mnist/{name}" for name in IDX)
    assert mnist(tmp_path / "mine").y_train.tolist() == list(range(10))


def test_when_one_of_four_files_fails_none_is_left(fedrecall, small_mnist, tmp_path) -> None:
    (small_mnist / f"{IDX[2]}.gz").unlink()
    check_one_sentence(fedrecall("data", "fetch", "mnist", "--to", tmp_path / "mine"), IDX[2], "404")
    assert not (tmp_path / "mine").exists()


def test_femnist_is_not_fetched_but_explained(fedrecall) -> None:
    check_one_sentence(fedrecall("data", "fetch", "femnist"), "github.com/TalwalkarLab/leaf", "extra hf")


def test_the_embedded_data_set_is_always_here(fedrecall) -> None:
    assert fedrecall("data", "fetch", "fashion_mini").code == 0
    assert fedrecall("data", "verify", "fashion_mini").out.split() == ["fashion_mini", "here"]


@pytest.mark.parametrize("command", ["fetch", "verify"])
def test_a_wrong_name_gets_the_nearest_right_one(fedrecall, command) -> None:
    check_one_sentence(fedrecall("data", command, "cifar1"), "'cifar1'", "did you mean 'cifar10'?")


def listed(finished) -> dict[str, dict]:
    return {line["name"]: line for line in json.loads(finished.out)["data"]}


def test_list_as_json_tells_all(fedrecall, tmp_path) -> None:
    finished = fedrecall("data", "list", "--json", "--data", tmp_path)
    lines = listed(finished)
    assert list(lines) == ["fashion_mini", "cifar10", "cifar100", "mnist", "fashion_mnist", "femnist"]
    assert json.loads(finished.out)["folder"] == str(tmp_path)
    assert lines["cifar100"]["from"] == ["https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"]
    assert lines["mnist"]["download_bytes"] == 9_912_422 + 28_881 + 1_648_877 + 4_542
    assert lines["mnist"]["unpacked_bytes"] == 70_000 * (784 + 1) + 2 * (16 + 8)
    assert {name: line["state"] for name, line in lines.items() if line["state"] != "missing"} == {
        "fashion_mini": "here"
    }
    for line in lines.values():
        assert line["terms"]
        assert line["terms_from"].startswith("https://")


def test_the_table_has_every_name_address_size_and_state(fedrecall, small_cifar10, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    fedrecall("data", "fetch", "cifar10")
    out = fedrecall("data", "list").out
    assert [line.split()[:2] for line in out.splitlines() if not line.startswith(" ")] == [
        ["fashion_mini", "here"],
        ["cifar10", "here"],
        ["cifar100", "missing"],
        ["mnist", "missing"],
        ["fashion_mnist", "missing"],
        ["femnist", "missing"],
        ["folder:", str(small_cifar10.parent.parent / "cache" / "data")],
    ]
    assert "169 MB to download, 184 MB unpacked, no licence stated" in out
    assert "https://ossci-datasets.s3.amazonaws.com/mnist/" in out


def test_the_table_ends_with_what_is_damaged(fedrecall, small_cifar10, tmp_path) -> None:
    fedrecall("data", "fetch", "cifar10")
    path = tmp_path / "cache" / "data" / FOLDER / "data_batch_1.bin"
    path.write_bytes(b"")
    assert fedrecall("data", "list").out.splitlines()[-1].startswith(f"cifar10 is damaged: {path} has 0 bytes")


def test_verify_says_what_is_here(fedrecall, small_cifar10) -> None:
    fedrecall("data", "fetch", "cifar10")
    finished = fedrecall("data", "verify")
    assert finished.code == 0
    assert "cifar10        here" in finished.out.splitlines()
    assert "mnist          missing" in finished.out.splitlines()


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("data_batch_4.bin", None, "data_batch_4.bin is missing"),
        ("data_batch_4.bin", bytes(3073), "data_batch_4.bin has 3073 bytes, expected 6146"),
        ("test_batch.bin", bytes([10]) * 6146, "test_batch.bin has a label 10"),
        ("batches.meta.txt", b"cat", "batches.meta.txt holds 1 class names"),
    ],
)
def test_verify_ends_with_2_and_names_the_damaged_file(
    fedrecall, small_cifar10, tmp_path, file, content, complaint
) -> None:
    fedrecall("data", "fetch", "cifar10", "--to", tmp_path / "mine")
    path = tmp_path / "mine" / FOLDER / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    for names in ([], ["cifar10"]):
        finished = fedrecall("data", "verify", *names, "--data", tmp_path / "mine")
        check_one_sentence(finished, "cifar10 is damaged", complaint, silent=False)
        assert "cifar10        damaged" in finished.out
    result = json.loads(fedrecall("data", "verify", "cifar10", "--json", "--data", tmp_path / "mine").out)
    assert complaint in result["cifar10"]


def test_verify_of_a_missing_data_set_that_was_named_fails(fedrecall, tmp_path) -> None:
    finished = fedrecall("data", "verify", "mnist", "--data", tmp_path)
    check_one_sentence(finished, "mnist is not in", str(tmp_path), silent=False)


@pytest.mark.parametrize("name", IDX)
def test_verify_reads_every_idx_file(fedrecall, small_mnist, tmp_path, name) -> None:
    fedrecall("data", "fetch", "mnist", "--to", tmp_path / "mine")
    path = tmp_path / "mine" / "mnist" / name
    path.write_bytes(path.read_bytes()[:-1])
    finished = fedrecall("data", "verify", "mnist", "--data", tmp_path / "mine")
    check_one_sentence(finished, f"{name} ends before", silent=False)


def test_loose_files_of_another_data_set_are_no_damage(fedrecall, small_mnist, tmp_path) -> None:
    fedrecall("data", "fetch", "mnist", "--to", tmp_path)
    others = replace(idx.MNIST, counts={"train": (0, 2) + (1,) * 8, "test": (1,) * 10})
    other = replace(CATALOGUE["mnist"], files=others)
    assert state(other, tmp_path / "mnist") == "missing"
    assert state(other, tmp_path).startswith("damaged: ")
    assert state(CATALOGUE["mnist"], tmp_path / "mnist") == "here"


def test_femnist_is_here_with_json_files_of_both_splits(tmp_path) -> None:
    entry, folder = CATALOGUE["femnist"], tmp_path / "femnist" / "data"
    for split, expected in {"train": "damaged: there is no file test/*.json", "test": "here"}.items():
        (folder / split).mkdir(parents=True)
        assert not state(entry, tmp_path).startswith(expected)
        (folder / split / "all.json").write_text("{}")
        assert state(entry, tmp_path).startswith(expected)


def test_a_folder_that_is_not_there_holds_nothing(tmp_path) -> None:
    assert {state(entry, tmp_path / "absent") for name, entry in CATALOGUE.items() if name != "fashion_mini"} == {
        "missing"
    }


def test_the_sizes_of_the_catalogue_are_those_of_the_files() -> None:
    for name, binary in (("cifar10", cifar.CIFAR10), ("cifar100", cifar.CIFAR100)):
        files = sum(binary.train.values()) + sum(binary.test.values())
        assert CATALOGUE[name].unpacked_size == files * binary.record
    for name in ("mnist", "fashion_mnist"):
        assert [part.file_name for part in CATALOGUE[name].downloads] == [f"{file}.gz" for file in IDX]


@pytest.mark.parametrize("command", ["list", "fetch", "verify"])
def test_help_has_an_example(fedrecall, command) -> None:
    assert f"Example: fedrecall data {command}" in fedrecall("data", command, "--help").out
