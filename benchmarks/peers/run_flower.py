"""Rounds of a benchmark's work in Flower's simulation, as many as it is told to run: `run_flower.py WORK`.

As Flower's guide to simulations has it: a ServerApp with the FedAvg strategy, a ClientApp, the Ray backend, one
CPU a client, and so two clients at once. Runs in the environment that `make bench-peers` makes for it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # Flower hands the path on to its actors

# Nothing of a benchmark is anyone else's business, or leaves this machine. Flower and Ray read this when imported.
os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's switch, on any system, for servers on 127.0.0.1 only
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # or Ray prints a tip about GPUs

import numpy as np  # noqa: E402
from flower_client import app as client_app  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

from plain import model  # noqa: E402
from turns import Turns, only_answers  # noqa: E402
from work import WORKS, Work  # noqa: E402


class Timed(FedAvg):
    """FedAvg that takes turns, and counts the steps."""

    def __init__(self, work: Work, turns: Turns) -> None:
        # Rounds start while Flower still adds its nodes: without the first two it samples from the few there are.
        super().__init__(
            min_train_nodes=work.per_round,
            min_available_nodes=work.clients,
            fraction_train=work.per_round / work.clients,
            fraction_evaluate=0.0,
        )
        self.work, self.turns = work, turns
        self.began = time.perf_counter()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        found = super().aggregate_train(server_round, replies)
        # Flower goes on without clients that failed: here all must have done their work.
        steps = [reply.content["metrics"]["steps"] for reply in replies if reply.has_content()]
        assert steps == [self.work.steps] * self.work.per_round, steps
        self.turns.over_after(time.perf_counter() - self.began)
        self.began = time.perf_counter()
        return found


def main() -> None:
    answers = only_answers()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    name = sys.argv[1]
    work, turns = WORKS[name], Turns(answers)
    moved: list[float] = []
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        first = ArrayRecord(model(work).state_dict())
        arrays, strategy = first, Timed(work, turns)
        while turns.left:  # the next turn is asked for in the last round of this one
            arrays = strategy.start(
                grid, arrays, num_rounds=turns.left, train_config=ConfigRecord({"work": name})
            ).arrays
        squares = [((arrays[name].numpy() - first[name].numpy()) ** 2).sum() for name in first]
        moved.append(float(np.sqrt(sum(squares))))

    with tempfile.TemporaryDirectory() as folder:
        ray: dict[str, Any] = {"num_cpus": 2, "_temp_dir": folder}
        run_simulation(
            server_app,
            client_app,
            num_supernodes=work.clients,
            backend_config={"init_args": ray, "client_resources": {"num_cpus": 1, "num_gpus": 0}},
        )
    print(json.dumps({"moved": moved[0]}), file=answers, flush=True)


if __name__ == "__main__":
    main()
