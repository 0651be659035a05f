"""`tools/check_names.py`, which `make lint` runs, finds what it is there to find."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "check_names.py"))
problems, ALLOWED = TOOL["problems"], TOOL["ALLOWED"]


def package(folder: Path, **modules: str) -> Path:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def test_the_package_has_none_and_the_exceptions_are_few() -> None:
    assert problems(TOOL["PACKAGE"]) == []
    assert len(ALLOWED) < 30
    assert all(ALLOWED.values())


@pytest.mark.parametrize(
    "definition",
    [
        "def twice(): ...",
        "async def twice(): ...",
        "class twice: ...",
        "if True:\n    def twice(): ...",
        "try:\n    import x\nexcept ImportError:\n    class twice: ...",
        "try:\n    import x\nfinally:\n    def twice(): ...",
        "if a:\n    pass\nelse:\n    def twice(): ...",
    ],
)
def test_a_name_in_two_modules_is_found_with_both_files(tmp_path: Path, definition: str) -> None:
    package(tmp_path, one=definition, two="class twice:\n    pass")
    assert problems(tmp_path, {}) == ["twice is defined in 2 modules: one.py, two.py"]


def test_a_name_twice_in_one_module_within_a_class_or_on_the_list_is_fine(tmp_path: Path) -> None:
    package(tmp_path, one="if True:\n    def f(): ...\nelse:\n    def f(): ...", two="class A:\n    def f(self): ...")
    package(tmp_path, three="def main(): ...", four="def main(): ...")
    assert problems(tmp_path, {"main": "a reason"}) == []


def test_an_exception_that_no_longer_is_one_is_found(tmp_path: Path) -> None:
    package(tmp_path, one="def main(): ...")
    assert problems(tmp_path, {"main": "a reason"}) == [
        "main is on the list of exceptions, but only one module defines it"
    ]


@pytest.mark.parametrize("opening", ["Of", "What", "Whether it"])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"""{} goes."""', 1),
        ('\ndef f():\n    """{} goes."""', 2),
        ('class A:\n    """{}: a riddle."""', 1),
        ('class A:\n    def f(self):\n        """\n        {}\n        goes."""', 2),
        ('def f():\n    async def g():\n        """{}, in short."""', 2),
    ],
)
def test_a_headless_docstring_is_found_with_its_line(tmp_path: Path, opening: str, text: str, line: int) -> None:
    package(tmp_path, one=text.format(opening))
    assert problems(tmp_path, {}) == [f'one.py:{line}: a docstring begins with "{opening}"']


@pytest.mark.parametrize("opening", ["Often", "Whatever", "Whether a", "Whether its", "Return what", "Offset"])
def test_other_openings_are_fine(tmp_path: Path, opening: str) -> None:
    assert problems(package(tmp_path, one=f'def f():\n    """{opening} goes."""'), {}) == []


def test_make_lint_runs_it_and_its_exit_code_says_what_it_found(tmp_path: Path) -> None:
    assert "tools/check_names.py" in (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    package(tmp_path, one="def main(): ...", two='"""Of two."""')
    ended = subprocess.run([sys.executable, ROOT / "tools/check_names.py", tmp_path], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[0] == 'two.py:1: a docstring begins with "Of"'
