"""Importing the user's own code by name."""

from __future__ import annotations

import sys

import pytest

from fedrecall.user_code import import_named


def test_the_working_folder_comes_after_libraries_and_before_earlier_ones(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", ["/library"])
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "found_here.py").write_text(f"def {name}():\n    pass\n")
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.delitem(sys.modules, "found_here", raising=False)
        assert import_named("model", f"found_here:{name}").__name__ == name
    assert sys.path == ["/library", str(tmp_path / "second"), str(tmp_path / "first")]


PASSES_ON = "from os import system\nfrom torch.nn.functional import relu\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, "which is Python's own; a class or function of yours was expected") for name in (
            "os:system", "subprocess:run", "builtins:exec", "os.path:join",
        )),
        ("passes_on:system", "'system' is not defined in 'passes_on'; name it where it is defined"),
        ("passes_on:relu", "'relu' is not defined in 'passes_on'; 'torch.nn.functional:relu' was expected"),
    ],
)  # fmt: skip
def test_nothing_but_the_users_own_is_called(name: str, said: str, fedrecall, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "passes_on.py").write_text(PASSES_ON)
    done = fedrecall("run", "demo", f"model={name}", "model.command=touch harmed")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"model is '{name}', " in done.err
    assert said in done.err
    assert not (tmp_path / "harmed").exists()
