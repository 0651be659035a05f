"""How long a study will take, from rounds that were timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrecall.recipe.layers import load
from fedrecall.studies.timing import extrapolated


def test_plain_probed_and_measured_rounds_count_as_often_as_they_come() -> None:
    recipe = load("demo", ["rounds=20", "evaluation.every=10", "evaluation.test_last=3", "forgetting.every=5"])
    times = {1: 9.0, 2: 1.0, 3: 5.0, 4: 3.0, 5: 2.5}  # plain 2; probed 3 more; measured 0.5 more
    # 20 rounds; 4 of them probed; rounds 10, 18, 19 and 20 measured
    assert extrapolated(recipe, times) == pytest.approx(20 * 2 + 4 * 3 + 4 * 0.5)


@pytest.mark.slow
def test_the_command_says_how_long_and_leaves_nothing(fedrecall, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = fedrecall("sweep", "demo", "model=mlp", "local.steps=2", "objective=wsm,mask", "--dry-run", "--time")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1].startswith("about ")
    assert list(tmp_path.iterdir()) == []
    assert fedrecall("sweep", "demo", "--time").code == 2
