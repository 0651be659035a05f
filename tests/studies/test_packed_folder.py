"""Runs' folders on their way between machines."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedrecall.errors import WriteError
from fedrecall.studies.packed_folder import pack_folder, replaced_folder, unpack_folder


def test_a_folder_arrives_as_it_was_but_for_its_lock_in_place_of_what_was_there(tmp_path: Path) -> None:
    sent, place = tmp_path / "sent", tmp_path / "cell" / "place"
    for path, text in (("a", "1"), ("inner/b", "2"), ("lock", "")):
        (sent / path).parent.mkdir(parents=True, exist_ok=True)
        (sent / path).write_text(text)
    place.mkdir(parents=True)
    (place / "old").touch()
    unpack_folder(pack_folder(sent), place)
    assert sorted(str(path.relative_to(place)) for path in place.rglob("*")) == ["a", "inner", "inner/b"]
    assert (place / "inner/b").read_text() == "2"
    assert list(place.parent.iterdir()) == [place]


def test_nothing_is_unpacked_outside_of_its_folder(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    with pytest.raises(tarfile.OutsideDestinationError):
        unpack_folder(np.frombuffer(buffer.getvalue(), np.uint8), tmp_path / "place")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "place").exists()


def fill_half(place: Path) -> None:
    with replaced_folder(place) as beside:
        (beside / "new").touch()
        raise KeyError


def test_a_folder_that_is_not_whole_does_not_take_the_place(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "old").touch()
    with pytest.raises(KeyError):
        fill_half(place)
    assert [path.name for path in tmp_path.rglob("*")] == ["place", "old"]


def test_what_was_there_is_put_back_if_the_new_folder_cannot_be(tmp_path: Path, monkeypatch) -> None:
    place, rename = tmp_path / "place", Path.rename
    place.mkdir()
    (place / "old").touch()

    def refused(path: Path, target: Path) -> Path:
        if path.suffix == ".part":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(WriteError, match=r"'.*place' cannot be written: No space left on device"):
        unpack_folder(pack_folder(place), place)
    assert [path.name for path in tmp_path.rglob("*")] == ["place", "old"]
