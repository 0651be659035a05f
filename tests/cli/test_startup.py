"""Help, lists and completion answer at once: nothing that takes a second to import is imported for them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "matplotlib", "plotly", "pandas", "scipy")
SCRIPT = f"""
import sys
from fedrecall.cli.main import main
sys.argv = ["fedrecall", *sys.argv[1:]]
try:
    main()
finally:
    found = [name for name in {HEAVY!r} if name in sys.modules]
    print("imported:", *found, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["run", "--help"],
        ["diagnose", "--help"],
        ["sweep", "--help"],
        ["recipes"],
        ["data", "list"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_what_must_answer_at_once_imports_nothing_heavy(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].strip() == "imported:"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("fedrecall ru", "run"),
        ("fedrecall run de", "demo"),
        ("fedrecall data f", "fetch"),
        ("fedrecall sweep de", "demo"),
    ],
)
def test_completion_finishes_commands_and_recipes(typed: str, expected: str) -> None:
    words = typed.split()
    variables = {
        "_FEDRECALL_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **variables}, capture_output=True, text=True, timeout=60
    )
    assert f"plain,{expected}" in done.stdout.splitlines()
    assert done.stderr.splitlines()[-1].strip() == "imported:"


def test_every_public_name_can_be_imported() -> None:
    import fedrecall

    for name in fedrecall.__all__:
        assert getattr(fedrecall, name) is not None
