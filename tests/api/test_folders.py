"""Where a run is written from Python: what is there already, and what is no folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from fedrecall import Federation, Iid, federate
from fedrecall.errors import InputError


@pytest.fixture(scope="module")
def federation() -> Federation:
    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40) % 2
    return Federation.from_arrays(x, y, test=(x, y), partition=Iid(clients=4, validation=0.2))


def start(federation: Federation, out: Path, **settings):
    return federate(nn.Linear(3, 2), federation, rounds=1, out=out, **settings)


def test_a_cell_that_runs_twice_is_offered_resume(federation: Federation, tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    first = federate(model, federation, rounds=1, out=tmp_path / "run")
    with pytest.raises(InputError, match=r"has a run: resume=True goes on with it, and returns it if it is finished"):
        federate(model, federation, rounds=1, out=tmp_path / "run")
    again = federate(model, federation, rounds=1, out=tmp_path / "run", resume=True)
    assert again.summary == first.summary


def test_another_folder_is_out_in_python(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(InputError, match=r"is not empty; choose another with --out, in Python with out=$"):
        start(federation, tmp_path)
    with pytest.raises(InputError, match=r"mine' is a file; a new or an empty folder was expected$"):
        start(federation, tmp_path / "mine")


def test_out_of_a_command_that_is_a_file(fedrecall, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").touch()
    for command in ("run", "partition", "demo", "sweep"):
        recipe = [] if command == "demo" else ["demo"]
        grid = ["objective=wsm,mask"] if command == "sweep" else []
        done = fedrecall(command, *recipe, *grid, "--out", "mine")
        assert done.code == 2
        assert "'mine' is a file; a new or an empty folder was expected" in done.err, command
    assert Path("mine").read_bytes() == b""
