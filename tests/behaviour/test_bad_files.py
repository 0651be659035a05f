"""Bad data files: exit code 2 and one sentence that names the culprit, never a traceback, nothing left behind.

A case is what is wrong, a function that makes the file, what the sentence must have in it, and further words.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sentences import check_one_sentence

ARRAYS: dict[str, Any] = {
    "x_train": np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32),
    "y_train": np.arange(12) % 3,
    "x_test": np.zeros((6, 5), np.float32),
    "y_test": np.arange(6) % 3,
}
TABLE = "a,b,who,y\n" + "".join(f"{i},{i * i},w{i % 2},{i % 3}\n" for i in range(12))
ODD = 'it\'s "odd"\n[red]<b>\x1b[31m'  # quotes, a new line, markup, and what would colour a terminal
QUOTED = '"' + ODD.replace('"', '""') + '"'  # as a cell

Make = Callable[[], Any]


# .npz


def arrays(**changes: Any) -> Make:
    """my.npz with some arrays changed; None leaves one out."""
    content = {key: value for key, value in {**ARRAYS, **changes}.items() if value is not None}
    return lambda: np.savez("my.npz", **content)


def with_value(key: str, value: float) -> Make:
    changed = ARRAYS[key].copy()
    changed[(3,) * changed.ndim] = value
    return arrays(**{key: changed})


def cut(name: str, share: float, make: Make = lambda: None) -> Make:
    def truncated() -> None:
        make()
        content = Path(name).read_bytes()
        Path(name).write_bytes(content[: int(share * len(content))])

    return truncated


def damaged_npz() -> None:
    """A byte in the middle of an array: only its checksum tells."""
    arrays()()
    content = bytearray(Path("my.npz").read_bytes())
    content[content.index(b"NUMPY") + 200] ^= 1
    Path("my.npz").write_bytes(content)


def no_array_inside() -> None:
    with zipfile.ZipFile("my.npz", "w") as archive:
        for key in ARRAYS:
            archive.writestr(f"{key}.npy", "no array, but text")


def bomb() -> None:
    """A few hundred bytes that speak of 80 terabytes."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)})
    with zipfile.ZipFile("my.npz", "w") as archive:
        for key in ARRAYS:
            archive.writestr(f"{key}.npy", file.getvalue())


def text(name: str, content: str | bytes) -> Make:
    def write() -> None:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)

    return write


# CSV


def table(old: str = "", new: str = "") -> Make:
    assert old in TABLE
    return text("my.csv", TABLE.replace(old, new, 1))


# Image folders


def images(change: Make = lambda: None, classes: tuple[str, ...] = ("cat", "dog")) -> Make:
    def draw() -> None:
        for name in classes:
            for i in range(4):
                picture(f"images/{name}/{i}.png", 5)
        change()

    return draw


def picture(name: str, side: int, mode: str = "RGB") -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (side, side)).save(name)


def huge_png() -> bytes:
    data = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + data + struct.pack(">I", zlib.crc32(data))
    return head + b"\0\0\0\x09IDAT"


# CIFAR, MNIST and FEMNIST


def cifar(name: str = "", size: int = 30_730_000, label: int = 0) -> Make:
    """All files of CIFAR-10, of zeros, one of them of another size or with another first label."""

    def write() -> None:
        folder = Path("cifar-10-batches-bin")
        folder.mkdir()
        for file in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
            with (folder / file).open("wb") as stream:  # zeros that are not written take no place
                stream.truncate(size if file == name else 30_730_000)
                stream.write(bytes([label if file == name else 0]))
        (folder / "batches.meta.txt").write_text(" ".join("abcdefghij"))

    return write


def mnist(images: bytes, labels: bytes = b"\0\0\x08\x01" + struct.pack(">I", 60_000) + bytes(60_000)) -> Make:
    def write() -> None:
        for split in ("train", "t10k"):
            text(f"mnist/{split}-images-idx3-ubyte", images)()
            text(f"mnist/{split}-labels-idx1-ubyte", labels)()

    return write


def femnist(**changes: Any) -> Make:
    good = {"users": ["w"], "num_samples": [1], "user_data": {"w": {"x": [[0.5] * 784], "y": [3]}}}

    def write() -> None:
        for split in ("train", "test"):
            text(f"femnist/data/{split}/all.json", json.dumps({**good, **changes}))()

    return write


GREY = b"\0\0\x08\x03" + struct.pack(">III", 60_000, 28, 28)

NPZ: list[Any] = [
    ("missing", lambda: None, "'my.npz', but there is no such file"),
    ("a folder", lambda: Path("my.npz").mkdir(), "'my.npz', which is not a file"),
    ("cut in the middle", cut("my.npz", 0.5, arrays()), "my.npz cannot be read: File is not a zip file"),
    ("cut at its end", cut("my.npz", 0.99, arrays()), "my.npz cannot be read"),
    ("nothing", text("my.npz", ""), "my.npz cannot be read: File is not a zip file"),
    ("text", text("my.npz", "x = 1\n" * 99), "my.npz cannot be read: File is not a zip file"),
    ("a pickle", text("my.npz", b"\x80\x04N."), "my.npz cannot be read: File is not a zip file"),
    ("text inside", no_array_inside, "my.npz: x_train cannot be read: the magic string"),
    ("a damaged byte", damaged_npz, "my.npz: x_train cannot be read: Bad CRC-32"),
    ("a pickle inside", arrays(x_train=np.array([{}] * 12)), "my.npz: x_train: it is an array of Python objects"),
    ("pickled labels", arrays(y_test=np.array([None] * 6)), "my.npz: y_test: it is an array of Python objects"),
    ("a bomb", bomb, "my.npz: x_train: its header speaks of 80000000000000 bytes"),
    ("over its limit", arrays(), "my.npz: it has", "data.limit=100"),
    ("no x_test", arrays(x_test=None, X_test=np.ones(6)), "no array x_test; did you mean 'X_test'?"),
    ("too few labels", arrays(y_train=np.arange(11)), "my.npz: x_train has 12 samples, but y_train has 11"),
    ("a label -1", with_value("y_train", -1), "my.npz: x_train and y_train: a training label is -1"),
    ("a label too large", arrays(), "my.npz: a label is 2; labels from 0 to 1", "data.classes=2"),
    ("too few names", arrays(class_names=np.array(["a", "b"])), "my.npz: a label is 2; labels from 0 to 1"),
    ("a huge label", with_value("y_test", 10**15), "my.npz: a label is 1000000000000000; if"),
    ("float labels", arrays(y_train=np.ones(12)), "my.npz: y_train: it is of type float64; whole numbers"),
    ("labels in a column", arrays(y_train=np.ones((12, 1), int)), "my.npz: y_train: its shape is (12, 1)"),
    ("NaN", with_value("x_train", np.nan), "my.npz: x_train and y_train: training sample 3 has a value"),
    ("infinity", with_value("x_test", np.inf), "my.npz: x_test and y_test: test sample 3 has a value"),
    ("empty arrays", arrays(x_train=np.ones((0, 5)), y_train=np.arange(0)), "x_train: its shape is (0, 5)"),
    ("empty samples", arrays(x_train=np.ones((12, 0)), x_test=np.ones((6, 0))), "x_train: its shape is (12, 0)"),
    ("strings", arrays(x_train=np.full((12, 5), "a")), "my.npz: x_train: it is of type <U1; numbers were"),
    ("another shape", arrays(x_test=np.ones((6, 4), np.float32)), "but one of x_test is float32 of shape (4,)"),
    ("no ids", arrays(), "this data set has no client ids", "partition=natural"),
    ("too few ids", arrays(ids=np.arange(3)), "x_train has 12 samples, but ids has 3", "partition=natural"),
    ("empty clients", arrays(), "partition.clients is 13 but there are only 12", "partition.clients=13"),
    ("no text", arrays(class_names=np.array(["a", "b", "\ud800"])), r"class name '\ud800' is not valid text"),
]
CSV: list[Any] = [
    ("empty", text("my.csv", ""), "my.csv: its first line does not name the columns"),
    ("no rows", text("my.csv", "a,who,y\n"), "my.csv: there are no rows in it"),
    ("binary", text("my.csv", b"\x89PNG\r\n\x1a\n"), "my.csv cannot be read: 'utf-8' codec"),
    ("no labels", table("y", "Y"), "my.csv: there is no column 'y'; there are: Y, a, b, who"),
    ("a column twice", table("a,b", "a,a"), "my.csv: the column 'a' is there 2 times"),
    ("a nameless column", table("a,b", ",b"), "my.csv: column 1 has no name"),
    ("a long row", table("3,9,", "3,9,9,"), "my.csv: line 5 has 5 cells, expected 4"),
    ("an empty cell", table("3,9,", "3,,"), "my.csv: line 5: the column 'b' is empty"),
    ("odd text", table("3,9,", f"3,{QUOTED},"), r"my.csv: line 6: the column 'b' is 'it\'s"),
    ("an odd column", table("a,b", f"a,{QUOTED}"), "my.csv: there is no column 'z'", "data.features=[z]"),
    ("NaN", table("3,9,", "3,nan,"), "my.csv: line 5: the column 'b' is 'nan'; a finite number"),
    ("a column of words", table(), "my.csv: line 2: the column 'who' is 'w0'; a finite number", "data.id=null"),
    ("a client of no name", table("w1", ""), "my.csv: line 3: the column 'who' is empty"),
    ("a label -1", table("w1,1", "w1,-1"), "my.csv: the column 'y': a label is -1; whole numbers from 0"),
    ("a float label", table("w1,1", "w1,1.5"), "my.csv: the column 'y': a label is '1.5'; whole numbers"),
    ("an open quote", table("3,9,", '3,"9,'), "my.csv: line 13: unexpected end of data"),
]
FOLDER: list[Any] = [
    ("text", images(text("images/cat/1.png", "no")), "the image 'images/cat/1.png': it is not an image"),
    ("an image cut off", images(cut("images/cat/1.png", 0.6)), "the image 'images/cat/1.png' cannot be read"),
    ("another size", images(lambda: picture("images/dog/x.png", 6)), "'images/dog/x.png' is 6 pixels high"),
    ("a bomb", images(text("images/cat/1.png", huge_png())), "'images/cat/1.png' cannot be read: Image size"),
    ("16 bits", images(lambda: picture("images/cat/x.png", 5, "I;16")), "'images/cat/x.png': it has more than 8"),
    ("an empty class", images(lambda: Path("images/emu").mkdir()), "no images in the class folder 'emu'"),
    ("no classes", lambda: Path("images").mkdir(), "'images': there are no folders in it"),
    ("an odd empty class", images(lambda: Path("images", ODD).mkdir()), r"\n[red]<b>\x1b[31m'"),
    ("an odd image", images(text(f"images/{ODD}/{ODD}.png", "no")), r"[red]<b>\x1b[31m.png': it is not an image"),
]
CIFAR10: list[Any] = [
    ("missing", lambda: None, "data_batch_1.bin is missing"),
    ("cut off", cifar("data_batch_3.bin", 30_000_000), "data_batch_3.bin has 30000000 bytes"),
    ("cut to nothing", cifar("test_batch.bin", 0), "test_batch.bin has 1 bytes"),
    ("a label 10", cifar("data_batch_1.bin", label=10), "data_batch_1.bin has a label 10"),
]
MNIST: list[Any] = [
    ("of another kind", mnist(b"\0\0\x0d\x03" + GREY[4:]), "idx3-ubyte begins with 00000d03"),
    ("another shape", mnist(GREY[:8] + struct.pack(">II", 32, 32)), "has the dimensions (60000, 32, 32)"),
    ("cut off", mnist(GREY + bytes(1000)), "train-images-idx3-ubyte ends before"),
]
FEMNIST: list[Any] = [
    ("cut off", cut("femnist/data/train/all.json", 0.5, femnist()), "all.json is not a JSON file of LEAF"),
    ("no users", femnist(user_data={}), "all.json lists 1 users"),
    ("a label 62", femnist(user_data={"w": {"x": [[0.5] * 784], "y": [62]}}), "user 'w': 'y' has"),
]
WORDS = {
    "npz": (["data.path=my.npz"], NPZ),
    "csv": (["data.path=my.csv", "data.label=y", "data.id=who"], CSV),
    "image_folder": (["data.path=images"], FOLDER),
    "cifar10": ([], CIFAR10),
    "mnist": ([], MNIST),
    "femnist": ([], FEMNIST),
}
CASES = [
    pytest.param(make, [f"data={name}", *words, *more], named, id=f"{name}: {wrong}")
    for name, (words, cases) in WORDS.items()
    for wrong, make, named, *more in cases
]
ONE_CLASS = {
    "npz": arrays(y_train=np.zeros(12, int), y_test=np.zeros(6, int)),
    "csv": text("my.csv", "a,who,y\n" + "1,w,cat\n" * 9),
    "image_folder": images(classes=("cat",)),
}


def run(fedrecall: Callable[..., Any], words: list[str]) -> Any:
    if not any(word.startswith("partition") for word in words):
        words = ["partition.clients=2", *words]
    small = ["model=mlp", "model.hidden=[]", "rounds=1", "clients_per_round=1", "forgetting.every=0"]
    return fedrecall("run", "demo", *small, *words, "--engine", "serial", "--data", ".", "--quiet")


def check_refused(finished: Any, named: str) -> None:
    check_one_sentence(finished, named)
    assert not Path("runs").exists()


@pytest.mark.parametrize(("make", "words", "named"), CASES)
def test_a_bad_file_is_one_sentence(fedrecall: Any, make: Make, words: list[str], named: str) -> None:
    make()
    check_refused(run(fedrecall, words), named)


@pytest.mark.parametrize("name", ONE_CLASS)
def test_one_class_is_refused(fedrecall: Any, name: str) -> None:
    ONE_CLASS[name]()
    check_refused(run(fedrecall, [f"data={name}", *WORDS[name][0]]), "one class")


def test_a_file_with_an_odd_name_is_one_sentence(fedrecall: Any) -> None:
    odd = ODD.replace("\x1b", "")  # which YAML does not take
    Path(odd).write_text("x")
    Path("odd.yaml").write_text(json.dumps({"data": {"name": "npz", "path": odd}}))
    check_refused(fedrecall("run", "odd.yaml", "--engine", "serial"), "[red]<b>")


def test_there_are_at_least_forty() -> None:
    assert len({case.id for case in CASES}) == len(CASES) >= 40


@pytest.mark.parametrize(("name", "make"), [("npz", arrays()), ("csv", table()), ("image_folder", images())])
def test_the_good_file_is_good(fedrecall: Any, name: str, make: Make) -> None:
    """Otherwise a case might be refused for another reason than its own."""
    make()
    finished = run(fedrecall, [f"data={name}", *WORDS[name][0]])
    assert finished.code == 0, finished.err
