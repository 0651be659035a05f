"""Random runs have the bits of `serial` on a Ray cluster too."""

from __future__ import annotations

import pytest
from case_runs import run
from random_cases import case_of
from ray_cluster import cluster  # noqa: F401  (a fixture)

CASES = [2, 14, 36, 48]  # lanes, states of clients, teachers, buffers and forgetting


@pytest.mark.heavy
@pytest.mark.parametrize("number", CASES)
def test_ray_comes_to_the_bits_of_serial(cluster, tmp_path, number) -> None:  # noqa: F811
    case = case_of(number)
    serial = run(case, tmp_path / "serial", "serial")
    ray = run(case, tmp_path / "ray", "ray", workers=2, execution={"ray_address": cluster.address})
    assert serial.differences(ray) == [], case
