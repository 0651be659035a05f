"""docs/when-wsm-hurts.md: its commands run, its table of the criterion is true, and runs give the warning."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from fedrecall import Dirichlet, Shards
from fedrecall.core.class_sharing import ClassSharing
from fedrecall.data.assignment import label_counts
from fedrecall.data.sources import fashion_mini

PAGE = (Path(__file__).parents[2] / "docs" / "when-wsm-hurts.md").read_text(encoding="utf-8")
ROWS = {
    cells[0]: cells[1:]
    for line in PAGE.split("| clients | parts |")[1].split("\n\n")[0].splitlines()[2:]
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}


def dealt(*sets: set[int]) -> list[np.ndarray]:
    counts = np.zeros((20, 10), int)
    for k in range(20):
        counts[k, sorted(sets[k % len(sets)])] = 5
    return [counts]


def drawn(partition) -> list[np.ndarray]:
    labels, found = fashion_mini().y_train, []
    for seed in (0, 1):
        assignment = type(partition)(**{**vars(partition), "seed": seed}).assign(labels, 10)
        found.append(
            label_counts(np.where(assignment.validation, -1, assignment.client), labels, partition.clients, 10)
        )
    return found


CASES = {
    "20, a ring": lambda: dealt(*({c, (c + 1) % 10} for c in range(10))),
    "20, disjoint pairs": lambda: dealt(*({2 * c, 2 * c + 1} for c in range(5))),
    "20, one class each": lambda: dealt(*({c} for c in range(10))),
    "20, Dirichlet .01": lambda: drawn(Dirichlet(alpha=0.01, clients=20)),
    "100, two shards each": lambda: drawn(Shards(clients=100)),
    "20, Dirichlet .1": lambda: drawn(Dirichlet(alpha=0.1, clients=20)),
    "20, four shards each": lambda: drawn(Shards(clients=20, shards_per_client=4)),
    "20, Dirichlet .5": lambda: drawn(Dirichlet(alpha=0.5, clients=20)),
}


def ends(text: str) -> tuple[float, float]:
    numbers = [float(number) for number in re.findall(r"[0-9.]+", text)]
    return numbers[0], numbers[-1]


@pytest.mark.parametrize("name", ROWS)
def test_the_table_of_the_criterion_is_true(name: str) -> None:
    parts, per_pair, unshared, warning = ROWS[name]
    found = [ClassSharing.of(counts) for counts in CASES[name]()]
    assert ends(parts) == (min(f.parts for f in found), max(f.parts for f in found))
    values = [round(f.clients_per_pair, 1) for f in found]
    assert ends(per_pair) == (min(values), max(values))
    values = [round(100 * f.unshared_pairs) for f in found]
    assert ends(unshared) == (min(values), max(values))
    clients = int(name.split(",")[0])
    assert {bool(f.too_little(clients)) for f in found} == {warning == "yes"}


def test_every_row_has_its_case() -> None:
    assert set(ROWS) == set(CASES)


def test_the_command_runs_and_without_smoothing_it_is_warned_of(fedrecall, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((line,),) = [block.strip().splitlines() for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)]
    words = [*shlex.split(line)[1:], "evaluation.every=2", "--no-report", "--quiet", "--json"]
    done = fedrecall(*words)
    assert (done.code, done.err) == (0, "")
    (run,) = json.loads(done.out)["runs"].values()
    assert not [said for said in run["warnings"] if "objective.smoothing=0.03" in said]
    done = fedrecall(*[word for word in words if not word.startswith("objective")])
    (run,) = json.loads(done.out)["runs"].values()
    (said,) = [said for said in run["warnings"] if "objective.smoothing=0.03" in said]
    assert said.startswith("two classes have effectively 2.0 of 100 clients in common")


def test_the_command_partition_says_it_too(fedrecall, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = fedrecall("partition", "demo", "partition=shards")
    assert done.code == 0
    assert "class sharing" in done.out
    assert "note: two classes have effectively 2.0 of 100 clients in common" in done.out
    assert "note:" not in fedrecall("partition", "demo").out
    assert "note:" not in fedrecall("partition", "demo", "partition=shards", "objective=cross_entropy").out
