"""Decoded arrays on disk."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedrecall.data.cache import cache_folder, cached_arrays
from fedrecall.errors import InputError


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
