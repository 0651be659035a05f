"""The number of CPUs that this process may use, which can be smaller than the machine's."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cpus() -> int:
    """Return the minimum of the CPU affinity, the cgroup's quota and Slurm's allocation."""
    counts = [affinity(), quota(), slurm()]
    return max(1, min(count for count in counts if count is not None))


def affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return a container's CPU quota (cgroup v2, else v1), rounded up to whole CPUs; None without a limit."""
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
