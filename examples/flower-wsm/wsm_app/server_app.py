"""Flower's own FedAvg."""

import json
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from wsm_app.task import model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    start = ArrayRecord(model().state_dict())
    result = FedAvg().start(grid, start, num_rounds=int(context.run_config["rounds"]))
    rounds = {number: dict(metrics) for number, metrics in result.evaluate_metrics_clientapp.items()}
    Path(str(context.run_config["out"])).write_text(json.dumps(rounds))
