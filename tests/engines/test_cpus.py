"""What this process may use."""

from __future__ import annotations

import pytest

from fedrecall.engines import cpus


@pytest.mark.parametrize(("text", "expected"), [("max 100000", None), ("150000 100000", 2), ("50000 100000", 1)])
def test_a_cgroup_quota_is_whole_cpus(text, expected, tmp_path) -> None:
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert cpus.quota(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", None), ("400000", 4)])
def test_an_old_cgroup_quota_is_read_too(quota, expected, tmp_path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cpus.quota(tmp_path) == expected


def test_no_cgroup_is_no_limit(tmp_path) -> None:
    assert cpus.quota(tmp_path) is None


def test_slurms_allotment_counts(monkeypatch) -> None:
    monkeypatch.setattr(cpus, "affinity", lambda: 64)
    monkeypatch.setattr(cpus, "quota", lambda: None)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    assert cpus.usable_cpus() == 3
    monkeypatch.delenv("SLURM_CPUS_PER_TASK")
    assert cpus.usable_cpus() == 64
