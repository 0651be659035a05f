"""Folders that go with their process, and those that killed processes left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedrecall.errors import InputError
from fedrecall.storage import scratch
from fedrecall.storage.scratch import ScratchFolder

HOLD = """
import sys, time
from pathlib import Path
from fedrecall.storage.scratch import ScratchFolder
folder = ScratchFolder("test", Path(sys.argv[1]))
(folder.path / "large").write_text("mine")
print(folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def nothing_swept_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_swept", set())


def start(place: Path) -> tuple[subprocess.Popen[str], Path]:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(place)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    return holder, Path(holder.stdout.readline().strip())


def test_a_folder_goes_when_it_is_left_or_forgotten(tmp_path) -> None:
    with ScratchFolder("test", tmp_path) as folder:
        (folder.path / "a").mkdir()
    assert list(tmp_path.iterdir()) == []
    forgotten = ScratchFolder("test", tmp_path)
    assert forgotten.path.is_dir()
    del forgotten
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path) -> None:
    holder, path = start(tmp_path)
    scratch.remove_abandoned(tmp_path)
    assert (path / "large").exists()  # it lives
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert path.exists()
    scratch._swept.clear()
    with ScratchFolder("test", tmp_path) as mine:
        assert list(tmp_path.iterdir()) == [mine.path]


def test_what_has_no_mark_of_ours_stays(tmp_path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".owner").touch()
    (tmp_path / "fedrecall-notes").mkdir()
    (tmp_path / "fedrecall-file").write_text("mine")
    (tmp_path / "fedrecall-link").symlink_to(elsewhere)
    scratch.remove_abandoned(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["elsewhere", "fedrecall-file", "fedrecall-link", "fedrecall-notes"]
    assert (elsewhere / ".owner").exists()


def test_no_place_for_it_is_one_sentence(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file" / "below"))
    with pytest.raises(InputError, match="no temporary folder can be made: Not a directory; name a folder for it"):
        ScratchFolder("test")


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="there are no users' numbers here")
def test_another_users_folder_stays(tmp_path, monkeypatch) -> None:
    (tmp_path / "fedrecall-theirs").mkdir()
    (tmp_path / "fedrecall-theirs" / ".owner").touch()
    me = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: me + 1)
    scratch.remove_abandoned(tmp_path)
    assert (tmp_path / "fedrecall-theirs").is_dir()
    monkeypatch.undo()
    scratch._swept.clear()
    scratch.remove_abandoned(tmp_path)
    assert not (tmp_path / "fedrecall-theirs").exists()
