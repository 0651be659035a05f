"""Decoded arrays on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedrecall.data.cache import cache_folder, cached_arrays, checked_arrays
from fedrecall.errors import InputError, Note


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(b"abc")
    return path


def counting(calls: list[Path]):
    def decode(target: Path) -> None:
        calls.append(target)
        np.save(target / "x.npy", np.arange(len(calls)))

    return decode


def test_a_file_is_decoded_once(source) -> None:
    calls: list[Path] = []
    for _ in range(2):
        arrays = cached_arrays("set", [source], counting(calls))
    assert len(calls) == 1
    assert arrays["x"].tolist() == [0]
    assert isinstance(arrays["x"], np.memmap)
    assert not arrays["x"].flags.writeable


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_changed_file_is_decoded_again(source, change) -> None:
    calls: list[Path] = []
    cached_arrays("set", [source], counting(calls))
    if change == "size":
        source.write_bytes(b"abcd")
    else:
        os.utime(source, ns=(1, 1))
    cached_arrays("set", [source], counting(calls))
    assert len(calls) == 2


def test_a_failed_decoding_leaves_nothing(source) -> None:
    def fail(target: Path) -> None:
        (target / "half.npy").write_bytes(b"half")
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        cached_arrays("set", [source], fail)
    assert list(cache_folder().iterdir()) == []


def test_who_comes_second_takes_what_is_there(source) -> None:
    def slow(target: Path) -> None:
        np.save(target / "x.npy", np.array([7]))
        cached_arrays(
            "set", [source], lambda inner: np.save(inner / "x.npy", np.array([8]))
        )  # another process is faster

    assert cached_arrays("set", [source], slow)["x"].tolist() == [8]
    assert len(list(cache_folder().iterdir())) == 1


def test_a_cache_folder_that_cannot_be_made_is_one_sentence(source, folder, monkeypatch) -> None:
    monkeypatch.setenv("FEDRECALL_CACHE", str(source / "below-a-file"))
    with pytest.raises(InputError, match=r"the cache folder '.*below-a-file' cannot be written"):
        cached_arrays("set", [source], counting([]))


def turn_a_bit(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def put_another_array(entry: Path) -> None:
    np.save(entry / "x.npy", np.array([9]))


def put_a_file(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("foreign")


def put_a_link(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.symlink_to("nowhere")


def put_a_folder_in_place_of_an_array(entry: Path) -> None:
    (entry / "x.npy").unlink()
    (entry / "x.npy").mkdir()


def put_a_pipe_in_place_of_an_array(entry: Path) -> None:
    (entry / "x.npy").unlink()
    os.mkfifo(entry / "x.npy")


def empty(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a bit of a value": lambda entry: turn_a_bit(entry / "x.npy"),
    "a bit of a header": lambda entry: turn_a_bit(entry / "x.npy", 3),
    "a bit of the manifest": lambda entry: turn_a_bit(entry / "manifest.json", -12),
    "cut off": lambda entry: os.truncate(entry / "x.npy", 130),
    "cut to nothing": lambda entry: os.truncate(entry / "x.npy", 0),
    "an empty manifest": lambda entry: os.truncate(entry / "manifest.json", 0),
    "a manifest of nothing": lambda entry: (entry / "manifest.json").write_text("[]"),
    "no manifest": lambda entry: (entry / "manifest.json").unlink(),
    "no array": lambda entry: (entry / "x.npy").unlink(),
    "another array": put_another_array,
    "an empty folder": empty,
    "a file in its place": put_a_file,
    "a broken link in its place": put_a_link,
    "a folder for an array": put_a_folder_in_place_of_an_array,
    "a pipe for an array": put_a_pipe_in_place_of_an_array,
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_entry_is_made_again_with_a_note(source, what) -> None:
    calls: list[Path] = []
    cached_arrays("set", [source], counting(calls))
    (entry,) = cache_folder().iterdir()
    DAMAGE[what](entry)
    with pytest.warns(Note, match="the cached data '.*set-.*' are made again: its "):
        assert cached_arrays("set", [source], counting(calls))["x"].tolist() == [0, 1]
    assert cached_arrays("set", [source], counting(calls))["x"].tolist() == [0, 1]  # and no note any more
    assert len(calls) == 2
    assert [path.name for path in cache_folder().iterdir()] == [entry.name]


def test_every_bit_of_an_array_counts(source) -> None:
    cached_arrays("set", [source], counting([]))
    (entry,) = cache_folder().iterdir()
    whole = (entry / "x.npy").read_bytes()
    for bit in range(8 * len(whole)):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        (entry / "x.npy").write_bytes(content)
        with pytest.raises(InputError, match=r"its x\.npy is damaged \(it is not as it was written\)"):
            checked_arrays(entry)


def test_the_command_line_says_that_it_is_made_again(fedrecall, folder, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    x, y = np.random.default_rng(0).normal(size=(24, 4)).astype("f4"), np.arange(24) % 3
    np.savez("my.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    words = ["partition", "demo", "data=npz", "data.path=my.npz", "partition.clients=2"]
    assert fedrecall(*words).err == ""
    (entry,) = cache_folder().iterdir()
    turn_a_bit(entry / "x_train.npy")
    again = fedrecall(*words)
    assert again.code == 0
    assert again.err == (
        f"note: the cached data {str(entry)!r} are made again: its x_train.npy is damaged (it is not as it was "
        "written)\n"
    )
    assert fedrecall(*words).err == ""
