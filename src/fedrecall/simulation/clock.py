"""The simulated clock: how long a client's part of a round would take.

A client downloads what it is sent, computes its local steps and uploads its update. Its speed and its bandwidth
are drawn once, from a stream of its own; nothing is measured, so that simulated seconds are the same everywhere.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property

from fedrecall.client.batches import LocalPlan
from fedrecall.client.dry_update import DryUpdate
from fedrecall.client.job import Job
from fedrecall.core.rng import stream
from fedrecall.core.vector import FlatModel
from fedrecall.recipe.clock import ClockSettings


@dataclass(frozen=True)
class SimulatedClock:
    """Computes simulated seconds from a client's plan of local steps."""

    settings: ClockSettings
    seed: int
    flops_per_sample: int
    bytes_down: int  # to one client
    bytes_up: int

    @classmethod
    def of(cls, settings: ClockSettings, job: Job, flat: FlatModel, flops_per_sample: int) -> SimulatedClock:
        down = up = 0
        if job.algorithm.exchanges:
            dry, payload = DryUpdate.of(job, flat), flat.payload
            down = payload.bytes(dry.server, {} if job.own_buffers else dry.buffers)
            up = payload.bytes(dry.message, dry.message_buffers)
        return cls(settings, job.seed, flops_per_sample, down, up)

    @property
    def deadline(self) -> float:
        return math.inf if self.settings.deadline is None else self.settings.deadline

    def client(self, client: int) -> SimulatedClient:
        """Return a client's speed and bandwidth, the same in every round."""
        speed, bandwidth = stream(self.seed, "clock", client=client).standard_normal(2).tolist()
        spread = self.settings.spread
        return SimulatedClient(
            self, self.settings.speed * math.exp(spread * speed), self.settings.bandwidth * math.exp(spread * bandwidth)
        )


@dataclass(frozen=True)
class SimulatedClient:
    """One client's speed, in FLOPs a second, and bandwidth, in bytes a second."""

    clock: SimulatedClock
    speed: float
    bandwidth: float

    @cached_property
    def transfer(self) -> float:
        """Return the seconds of download and upload."""
        return (self.clock.bytes_down + self.clock.bytes_up) / self.bandwidth

    def seconds(self, plan: LocalPlan, slowness: float = 1.0) -> float:
        """Return the seconds of a plan at the client's speed divided by `slowness`."""
        return self.transfer + self.clock.flops_per_sample * plan.samples_seen * slowness / self.speed

    def steps_in_time(self, plan: LocalPlan, slowness: float = 1.0) -> int:
        """Return the most steps of the plan that end before the deadline."""

        def seconds(steps: int) -> float:
            return self.seconds(replace(plan, steps=steps), slowness)

        return bisect_right(range(1, plan.steps + 1), self.clock.deadline, key=seconds)
