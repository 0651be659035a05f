"""Check the names and docstrings of the package: one meaning a name, and docstrings that open with a sentence.

    python tools/check_names.py [PACKAGE_FOLDER]

Exits with 1, and a line for each, if a top-level function or class name is defined in two modules, or if a docstring
begins with "Of", "What" or "Whether it".
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "fedrecall"
COMMAND = "a command and the function that it calls"
KERNEL = "one kernel for each kind of layer, called as module.name"
# Names that several modules may define, each with the reason. Fewer than 30.
ALLOWED = {
    "compare": COMMAND,
    "calibrate": COMMAND,
    "diagnose": COMMAND,
    "replay": COMMAND,
    "sweep": COMMAND,
    "main": "the entry point of a process",
    "run_worker": "the main loop of a worker process: of an engine's, and of a study's",
    "backward": KERNEL,
    "forward": KERNEL,
    "input_gradient": KERNEL,
    "weight_gradient": KERNEL,
}
BAD_OPENING = re.compile(r"(Of|What|Whether it)\b")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def top_level(body: list[ast.stmt]) -> Iterator[Definition]:
    """Yield the definitions of a module, also those within `if`, `try` and `with`."""
    for statement in body:
        if isinstance(statement, Definition):
            yield statement
        else:
            children = ast.iter_child_nodes(statement)
            yield from top_level([c for c in children if isinstance(c, ast.stmt | ast.ExceptHandler)])


def headless(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the first words of each docstring that opens without a sentence."""
    for node in ast.walk(tree):
        if isinstance(node, Definition | ast.Module) and (opening := BAD_OPENING.match(ast.get_docstring(node) or "")):
            yield getattr(node, "lineno", 1), opening[1]


def problems(package: Path, allowed: dict[str, str] = ALLOWED) -> list[str]:
    """Return a line for each name and docstring that breaks a rule, and for each exception that is none."""
    lines: list[str] = []
    modules = defaultdict(set)
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for definition in top_level(tree.body):
            modules[definition.name].add(file)
        lines += [f'{file}:{line}: a docstring begins with "{opening}"' for line, opening in headless(tree)]
    for name, files in sorted(modules.items()):
        if len(files) > 1 and name not in allowed:
            lines.append(f"{name} is defined in {len(files)} modules: {', '.join(sorted(files))}")
    unneeded = [name for name in sorted(allowed) if len(modules[name]) < 2]
    return lines + [f"{name} is on the list of exceptions, but only one module defines it" for name in unneeded]


def main() -> int:
    package = Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE
    lines = problems(package)
    print("\n".join(lines) if lines else "names and docstrings: nothing to mend")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
