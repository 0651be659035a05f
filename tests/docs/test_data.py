"""Every block of docs/data.md runs as it stands, on small files of the kinds that it names."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedrecall import Federation
from fedrecall.data.files.idx import FASHION_MNIST, MNIST
from fedrecall.data.sources import DATASETS

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
REAL = Path(os.environ.get("FEDRECALL_DATA", ""))

MARKS = {
    "cifar": [
        pytest.mark.real_data,
        pytest.mark.slow,
        pytest.mark.skipif(
            not ((REAL / "cifar-10-batches-bin").is_dir() and (REAL / "cifar-100-binary").is_dir()),
            reason="FEDRECALL_DATA has no folders cifar-10-batches-bin and cifar-100-binary",
        ),
    ],
    "tables": [
        pytest.mark.heavy,
        pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="the extra tables is not installed"),
    ],
    "hf": [
        pytest.mark.heavy,
        pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="the extra hf is not installed"),
    ],
}

random = np.random.default_rng(0)


# The files that the page speaks of.


def my_npz() -> None:
    x, y = random.normal(size=(240, 6)), np.arange(240) % 4
    np.savez("my.npz", x_train=x[40:], y_train=y[40:], x_test=x[:40], y_test=y[:40])


def texts_npz() -> None:
    x, y = random.integers(0, 1000, (240, 12)), np.arange(240) % 4
    np.savez("texts.npz", x_train=x[40:], y_train=y[40:], x_test=x[:40], y_test=y[:40])


def images() -> None:
    for name in ("cat", "dog", "emu"):
        for i in range(20):
            pixels = random.integers(0, 256, (random.integers(30, 50), 40, 3), np.uint8)
            Path("images", name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(f"images/{name}/{i}.jpg")


def columns(rows: int) -> dict[str, list[Any]]:
    return {
        "user": [i % 8 for i in range(rows)],
        "age": random.integers(18, 80, rows).tolist(),
        "income": random.normal(size=rows).tolist(),
        "kind": [("b", "a", "c")[i % 3] for i in range(rows)],
    }


def table_csv() -> None:
    table = columns(160)
    lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values()))]
    Path("table.csv").write_text("\n".join(lines))


def parquet_files() -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns(160)), "train.parquet")
    pyarrow.parquet.write_table(pyarrow.table(columns(40)), "test.parquet")


def saved() -> None:
    from datasets import Dataset, DatasetDict

    pictures = [Image.fromarray(random.integers(0, 256, (8, 8), np.uint8)) for _ in range(60)]
    rows = {"image": pictures, "label": [i % 3 for i in range(60)], "writer": [f"w{i % 6}" for i in range(60)]}
    DatasetDict({split: Dataset.from_dict(rows) for split in ("train", "test")}).save_to_disk("saved")


def idx_files(folder: str, counts: Any) -> None:
    """Black images, which take no place on the disk, with the labels that the data set has."""
    Path(folder).mkdir()
    for split, prefix in (("train", "train"), ("test", "t10k")):
        labels = np.repeat(np.arange(10, dtype=np.uint8), counts[split])
        with Path(folder, f"{prefix}-images-idx3-ubyte").open("wb") as file:
            file.write(b"\0\0\x08\x03" + struct.pack(">III", len(labels), 28, 28))
            file.truncate(16 + len(labels) * 28 * 28)
        head = b"\0\0\x08\x01" + struct.pack(">I", len(labels))
        Path(folder, f"{prefix}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def femnist() -> None:
    writers = {
        f"w{k}": {"x": random.random((12, 784)).round(3).tolist(), "y": random.integers(0, 62, 12).tolist()}
        for k in range(4)
    }
    for split in ("train", "test"):
        folder = Path("femnist/data", split)
        folder.mkdir(parents=True)
        content = {"users": list(writers), "num_samples": [12] * 4, "user_data": writers}
        (folder / "all.json").write_text(json.dumps(content))


def clients_txt() -> None:
    Path("clients.txt").write_text(str({k: list(range(k * 40, k * 40 + 40)) for k in range(10)}))


FILES: dict[str, Callable[[], None]] = {  # by what a block says when it needs them
    "my.npz": my_npz,
    "texts.npz": texts_npz,
    "path: images": images,
    "table.csv": table_csv,
    "train.parquet": parquet_files,
    "path: saved": saved,
    "data=mnist": lambda: idx_files("mnist", MNIST.counts),
    "data=fashion_mnist": lambda: idx_files("fashion-mnist", FASHION_MNIST.counts),
    "data: femnist": femnist,
    "clients.txt": clients_txt,
}


# Running.


def run_block(kind: str, block: str, fedrecall: Callable[..., Any]) -> None:
    if kind == "python":
        first = block.split("\n")[0]
        if re.fullmatch(r"# \w+\.py", first):
            Path(first[2:]).write_text(block)
        names: dict[str, Any] = {}
        exec(compile(block, "docs/data.md", "exec"), names)  # a block that raises fails the test
        assert isinstance(names.get("federation"), Federation) or first.startswith("#")
    elif kind == "yaml":
        Path("mine.yaml").write_text(block)
        finish(fedrecall("run", "mine.yaml", "--json"))
    else:
        assert kind == "console"
        for line in block.splitlines():
            program, *words = shlex.split(line)
            assert program == "fedrecall"
            finish(fedrecall(*words, "--json"))


def finish(finished: Any) -> None:
    assert finished.code == 0, finished.err
    (run,) = json.loads(finished.out)["runs"].values()
    assert (Path(run["path"]) / "model.safetensors").is_file()


def sections() -> list[Any]:
    needs = {title: re.findall(r"<!-- needs: (\w+) -->", text) for title, text in SECTIONS.items()}
    return [pytest.param(title, marks=[m for need in needs[title] for m in MARKS[need]]) for title in SECTIONS]


@pytest.mark.parametrize("title", sections())
def test_the_blocks_of_a_section_run(
    title: str, fedrecall: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "needs: cifar" not in SECTIONS[title]:
        monkeypatch.setenv("FEDRECALL_DATA", str(tmp_path))
    blocks = BLOCK.findall(SECTIONS[title])
    for said, make in FILES.items():
        if any(said in block for _, block in blocks):
            make()
    for kind, block in blocks:
        run_block(kind, block, fedrecall)


def test_every_section_has_a_block_and_no_block_more_than_ten_lines() -> None:
    for title, text in SECTIONS.items():
        blocks = BLOCK.findall(text)
        assert blocks, title
        assert all(len(block.splitlines()) <= 10 for _, block in blocks), title


def test_every_kind_of_data_is_on_the_page() -> None:
    missing = [name for name in DATASETS if not re.search(rf"(name: |data: |data=|lenet-){name}\b", PAGE)]
    assert missing == []
