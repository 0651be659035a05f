"""The list of data sets, and where their files are looked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedrecall.data.cache import write_rows
from fedrecall.data.places import data_folder, data_root, require
from fedrecall.data.sources import DATASETS
from fedrecall.errors import InputError


@pytest.fixture(autouse=True)
def no_folder_given(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))


def test_data_sets_are_listed_under_their_names() -> None:
    for name in ("fashion_mini", "cifar10", "cifar100", "mnist", "fashion_mnist"):
        assert DATASETS[name].__name__ == name


def test_the_given_folder_goes_before_the_environment(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FEDRECALL_DATA", str(tmp_path / "environment"))
    assert data_root(tmp_path / "given") == tmp_path / "given"
    assert data_root() == tmp_path / "environment"


def test_without_either_it_is_a_folder_of_the_cache(tmp_path) -> None:
    assert data_root() == tmp_path / "cache" / "data"


def test_a_tilde_is_the_home_folder(monkeypatch) -> None:
    monkeypatch.setenv("FEDRECALL_DATA", "~/sets")
    assert data_root() == Path.home() / "sets"


def test_the_first_folder_that_is_there_is_taken(tmp_path) -> None:
    (tmp_path / "b" / "raw").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    assert data_folder("set", tmp_path, "a", "b/raw", "c") == tmp_path / "b" / "raw"


def test_else_the_root_itself_is_taken(tmp_path) -> None:
    assert data_folder("set", tmp_path, "a", "b") == tmp_path


def test_what_was_fetched_is_found_without_a_word(tmp_path) -> None:
    (tmp_path / "cache" / "data" / "a").mkdir(parents=True)
    assert data_folder("set", None, "a") == tmp_path / "cache" / "data" / "a"


def test_a_folder_that_is_not_there_is_named(tmp_path) -> None:
    with pytest.raises(InputError, match=r"^set: there is no folder .*absent; say with --data DIR or FEDRECALL_DATA"):
        data_folder("set", tmp_path / "absent", "a")


def test_the_command_that_downloads_is_proposed_where_there_is_one(tmp_path) -> None:
    with pytest.raises(InputError, match=r"^set: no folder is given; say with") as plain:
        data_folder("set", None, "a")
    assert "fetch" not in str(plain.value)
    with pytest.raises(InputError, match="no folder is given; download it with `fedrecall data fetch set`, or say"):
        data_folder("set", None, "a", fetched=True)
    with pytest.raises(InputError, match=r"^file is missing in .*; unpack"):
        require(tmp_path / "file")
    with pytest.raises(InputError, match="; download it with `fedrecall data fetch set`, or unpack"):
        require(tmp_path / "file", fetched="set")


def test_an_array_may_be_written_in_pieces(tmp_path) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
    write_rows(tmp_path / "x.npy", 4, [array[:1], array[1:]])
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy", mmap_mode="r"), array)
