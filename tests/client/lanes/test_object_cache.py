"""Compiled kernels are kept for their owner alone; what was not written by this user is never loaded."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fedrecall.client.lanes.object_cache import cached_object

NAME = "ab" * 32


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRECALL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lanes"


class Compiler:
    def __init__(self, result: bytes = b"machine code") -> None:
        self.result, self.calls = result, 0

    def __call__(self) -> bytes:
        self.calls += 1
        return self.result


def test_code_is_compiled_once(folder) -> None:
    first, second = Compiler(), Compiler()
    assert cached_object(NAME, first) == cached_object(NAME, second) == b"machine code"
    assert (first.calls, second.calls) == (1, 0)


@pytest.mark.skipif(os.name != "posix", reason="the modes of POSIX")
def test_the_folder_and_its_files_are_for_their_owner_alone(folder) -> None:
    before = os.umask(0)
    try:
        cached_object(NAME, Compiler())
    finally:
        os.umask(before)
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def damage_every_byte(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def zeros_at_the_end(path: Path) -> None:
    """As after a power cut."""
    path.write_bytes(path.read_bytes()[:-4] + bytes(4))


def of_another_name(path: Path) -> None:
    cached_object("cd" * 32, Compiler(b"planted"))
    path.write_bytes((path.parent / f"{'cd' * 32}.o").read_bytes())


def open_to_others(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o044)


def another_users(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    os.chown(path, 12345, -1)


def link(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    elsewhere.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(elsewhere)


def link_to_folder(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("elsewhere")))


HARMS = [damage_every_byte, cut, emptied, zeros_at_the_end, of_another_name, open_to_others, another_users, link]


@pytest.mark.skipif(os.name != "posix", reason="modes and links of POSIX")
@pytest.mark.parametrize("harm", HARMS)
def test_what_is_not_as_this_user_wrote_it_is_made_again(folder, harm) -> None:
    cached_object(NAME, Compiler(b"old"))
    file = folder / f"{NAME}.o"
    harm(file)
    again = Compiler(b"new")
    assert cached_object(NAME, again) == b"new"
    assert again.calls == 1
    assert cached_object(NAME, Compiler(b"never")) == b"new"
    assert not file.is_symlink()


@pytest.mark.skipif(os.name != "posix", reason="the modes of POSIX")
@pytest.mark.parametrize("harm", [open_to_others, another_users, link_to_folder])
def test_without_a_folder_of_the_users_own_nothing_is_kept(folder, harm) -> None:
    cached_object(NAME, Compiler(b"old"))
    harm(folder)
    assert cached_object(NAME, Compiler(b"new")) == b"new"
    assert cached_object(NAME, Compiler(b"newer")) == b"newer"
