"""How many CPUs this process may use: not the machine's, but what it was given."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cpus() -> int:
    """The least of the affinity, the cgroup's quota and Slurm's allotment."""
    counts = [affinity(), quota(), slurm()]
    return max(1, min(count for count in counts if count is not None))


def affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """A container's share of CPU time, rounded up to whole CPUs; version 2 of cgroups, then 1."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (root / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    return None if limit in ("max", "-1") else max(1, math.ceil(int(limit) / int(period)))


def slurm() -> int | None:
    given = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return int(given) if given.isdigit() and int(given) > 0 else None
