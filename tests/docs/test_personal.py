"""The commands of docs/personal.md run as they stand, and its tables name what there is."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from fedrecall.algorithms import ALGORITHMS

PAGE = (Path(__file__).parents[2] / "docs" / "personal.md").read_text(encoding="utf-8")


def test_the_commands_run_and_show_personal_models(fedrecall, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = set(re.findall(r"`(personal_\w+)`", PAGE.split("| key |")[1].split("## ")[0]))
    for line in re.search(r"```console\n(.*?)```", PAGE, re.DOTALL)[1].splitlines():
        done = fedrecall(*shlex.split(line)[1:], "--quiet", "--no-report", "--json")
        assert done.code == 0
        (summary,) = json.loads(done.out)["runs"].values()
        missing = keys - set(summary)
        assert missing <= ({"personal_forgetting"} if "algorithm" in line else set())


def test_the_table_names_the_personal_algorithms() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE.split("## Algorithms")[1], re.MULTILINE)
    assert set(named) == {name for name, kind in ALGORITHMS.items() if kind.personal}
