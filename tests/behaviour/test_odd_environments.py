"""Environments that lack something: a home, a cache, open files, shared memory. A run goes well or says so."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedrecall.client.lanes.jit import compiled

NATURAL = "partition={name: natural, validation: 0.25}"
WORDS = ["run", "demo", "data=femnist", NATURAL, "model=mlp", "model.hidden=[]", "rounds=1", "clients_per_round=2"]
WORDS += ["evaluation.test_last=1", "--data", "mine", "--quiet", "--no-report", "--out", "run"]
NOWHERE = "/proc/nowhere"  # where not even root can make a folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data in files, which are decoded into the cache."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("FEDRECALL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    writer = {"x": [[0.5] * 784] * 8, "y": [0, 1, 2, 3] * 2}
    leaf = {"users": ["v", "w"], "num_samples": [8, 8], "user_data": {"v": writer, "w": writer}}
    for split in ("train", "test"):
        path = Path("mine/femnist/data", split, "all.json")
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(leaf))


PLACES = {  # what is set (HERE: the working folder), and where the cache is then; None: nowhere
    "HOME and no more": ({}, "home/.cache/fedrecall"),
    "an empty XDG_CACHE_HOME": ({"XDG_CACHE_HOME": ""}, "home/.cache/fedrecall"),
    "XDG_CACHE_HOME": ({"XDG_CACHE_HOME": "HERE/mine/xdg"}, "mine/xdg/fedrecall"),
    "a relative XDG_CACHE_HOME": ({"XDG_CACHE_HOME": "mine/xdg"}, "home/.cache/fedrecall"),
    "FEDRECALL_CACHE": ({"XDG_CACHE_HOME": NOWHERE, "FEDRECALL_CACHE": "mine/cache"}, "mine/cache"),
    "HOME nowhere": ({"HOME": NOWHERE}, None),
    "XDG_CACHE_HOME nowhere": ({"XDG_CACHE_HOME": NOWHERE}, None),
    "FEDRECALL_CACHE nowhere": ({"FEDRECALL_CACHE": NOWHERE}, None),
}


@pytest.mark.parametrize("what", PLACES)
def test_the_cache_is_where_it_can_be_or_the_variable_is_named(
    fedrecall: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    variables, cache = PLACES[what]
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("HERE", str(Path.cwd())))
    compiled.cache_clear()  # by an earlier test
    done = fedrecall(*WORDS, "--engine", "serial")
    if cache is None:
        assert done.code == 2
        assert done.err.startswith(f"fedrecall: error: the cache folder '{NOWHERE}")
        assert done.err.endswith("; name another in FEDRECALL_CACHE\n")
        assert not Path("run").exists()
    else:
        assert done.code == 0, done.err
        kept = {path.name.split("-")[0] for path in Path(cache).iterdir()}
        assert kept == {"femnist", "lanes"}  # decoded data, and compiled kernels


def in_its_own_process(*words: str, before: Any = None, prefix: tuple[str, ...] = ()) -> Any:
    command = [*prefix, sys.executable, "-m", "fedrecall.cli.main", *WORDS, *words]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=before, timeout=300, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("files", [8, 12, 16, 20, 32])
@pytest.mark.parametrize("words", [("--engine", "serial"), ("--engine", "processes", "--workers", "2")], ids=str)
def test_few_open_files_are_enough_or_said_to_be_too_few(words: tuple[str, ...], files: int) -> None:
    done = in_its_own_process(*words, before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert "Too many open files" in done.stderr.splitlines()[-1]
    assert files < 32 or done.returncode == 0, done.stderr


@pytest.mark.slow
def test_no_shared_memory_is_needed() -> None:
    small = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=4k none /dev/shm && exec "$@"', "sh")
    tried = subprocess.run([*small, "true"], capture_output=True, check=False) if shutil.which("unshare") else None
    if tried is None or tried.returncode or os.name != "posix":
        pytest.skip("a small /dev/shm needs the right to mount")
    done = in_its_own_process("--engine", "processes", "--workers", "2", prefix=small)
    assert (done.returncode, done.stderr) == (0, "")
