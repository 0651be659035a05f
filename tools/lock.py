"""Solve constraints.txt: one set of versions for the package and all its extras together.

    python tools/lock.py            keep the pins there are, add what is missing, drop what is unused
    python tools/lock.py NAME ..    also let these packages move to their newest fitting version

It asks pip for a dry run in a throw-away environment; nothing is installed but pip's own copy.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
TORCH = "torch==2.13.0"
HEADER = (
    "# Every package of fedrecall and all its extras, solved together by tools/lock.py.\n"
    "# Used by every `pip install` of this project: pip install -c constraints.txt ...\n"
)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def kept_pins(released: set[str]) -> list[str]:
    lines = CONSTRAINTS.read_text().splitlines() if CONSTRAINTS.exists() else []
    pins = [line for line in lines if "==" in line and not line.startswith("#")]
    return [pin for pin in pins if canonical(pin.split("==")[0]) not in released]


def solve(pins: list[str]) -> dict[str, str]:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    with tempfile.TemporaryDirectory() as folder:
        venv.create(f"{folder}/venv", with_pip=True)
        Path(folder, "pins.txt").write_text("\n".join([*pins, TORCH]) + "\n")
        command = [f"{folder}/venv/bin/python", "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        command += ["--quiet", "--report", f"{folder}/report.json", "-c", f"{folder}/pins.txt"]
        subprocess.run([*command, f"{ROOT}[{','.join(extras)}]"], check=True)
        report = json.loads(Path(folder, "report.json").read_text())
    found = {canonical(item["metadata"]["name"]): item["metadata"]["version"] for item in report["install"]}
    found.pop("fedrecall")
    return found


def main() -> None:
    solved = solve(kept_pins({canonical(name) for name in sys.argv[1:]}))
    # A local label ("2.13.0+cpu") names one build of a release; the pin is for the release.
    lines = [f"{name}=={version.split('+')[0]}" for name, version in sorted(solved.items())]
    CONSTRAINTS.write_text(HEADER + "\n".join(lines) + "\n")
    print(f"{CONSTRAINTS.name}: {len(lines)} packages")


if __name__ == "__main__":
    main()
