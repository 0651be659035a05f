"""One run of ours on a benchmark's work: `python benchmarks/ours.py WORK ENGINE STEP ROUNDS FOLDER LOCAL`."""

from __future__ import annotations

import json
import sys

import numpy as np
import torch

from fedrecall import CrossEntropy, FedAvg, Federation, Images, Local, federate
from fedrecall.models.lenet import lenet
from work import WORKS, data


def main() -> None:
    name, engine, step, rounds, folder, options = sys.argv[1:]
    work, extra = WORKS[name], json.loads(options)
    x, y = data(work)
    transform = Images((0.5,) * 3, (0.25,) * 3, **extra.pop("images", {})) if work.model == "lenet" else None
    clients = [
        (x[k * work.samples : (k + 1) * work.samples], y[k * work.samples : (k + 1) * work.samples])
        for k in range(work.clients)
    ]
    federation = Federation.from_clients(clients, num_classes=10, validation=0, transform=transform, layout="nhwc")
    del clients
    torch.manual_seed(0)
    model = lenet((3, 32, 32), 10) if work.model == "lenet" else torch.nn.Linear(512, 10)
    run = federate(
        model,
        federation,
        algorithm=FedAvg(),
        objective=CrossEntropy(),
        rounds=int(rounds),
        clients_per_round=work.per_round,
        local=Local(
            steps=work.steps, batch_size=work.batch_size, lr=work.lr, weight_decay=0.0, step=step, **extra
        ),
        evaluation={"every": 10, "test_last": 0},
        engine=engine,
        workers=1 if engine == "serial" else 2,
        out=folder,
    )
    assert len(run.metrics) == int(rounds)
    assert all(len(line["clients"]) == work.per_round for line in run.metrics)
    assert np.isfinite(run.metrics[-1]["train_loss"])


if __name__ == "__main__":
    main()
