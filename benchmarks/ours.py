"""Our rounds of a benchmark's work, as many as it is told to run: `python benchmarks/ours.py WORK KIND FOLDER`, or
`.. WORK KIND FOLDER DEVICE`.

A kind is an engine and what is not as by default: `processes`, `processes lanes`, `processes augmented`,
`processes everything` (validation data, evaluation every 10 rounds, default checkpoints and the
progress bar).
"""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fedrecall import CrossEntropy, FedAvg, Federation, Images, Local, federate
from fedrecall.core.vector import FlatModel
from fedrecall.errors import Interrupted
from fedrecall.models.lenet import lenet
from fedrecall.runs.checkpoint import newest
from fedrecall.simulation.progress import ProgressLine
from turns import Turns
from work import WORKS, data

ENDLESS = 1_000_000


def main() -> None:
    name, kind, folder, device = (*sys.argv[1:], "cpu")[:4]
    engine, _, way = kind.partition(" ")
    work = WORKS[name]
    x, y = data(work)
    augment: dict[str, Any] = {"crop_padding": 4, "flip": True} if way == "augmented" else {}
    transform = Images((0.5,) * 3, (0.25,) * 3, **augment) if work.model == "lenet" else None
    parts = [slice(k * work.samples, (k + 1) * work.samples) for k in range(work.clients)]
    federation = Federation.from_clients(
        [(x[part], y[part]) for part in parts],
        num_classes=10,
        validation=0.1 if way == "everything" else 0,
        transform=transform,
        layout="nhwc",
    )
    del x, y
    torch.manual_seed(0)
    model = lenet((3, 32, 32), 10) if work.model == "lenet" else torch.nn.Linear(512, 10)
    turns = Turns()
    bar = ProgressLine(
        "everything", ENDLESS, quiet=way != "everything", console=Console(file=io.StringIO(), force_terminal=True)
    )
    began = time.perf_counter()

    def watch(line: dict[str, Any]) -> None:
        nonlocal began
        assert len(line["clients"]) == work.per_round
        if turns.over_after(time.perf_counter() - began):
            raise KeyboardInterrupt
        began = time.perf_counter()

    try:
        with bar:
            federate(
                model,
                federation,
                algorithm=FedAvg(),
                objective=CrossEntropy(),
                rounds=ENDLESS,
                clients_per_round=work.per_round,
                local=Local(
                    steps=work.steps,
                    batch_size=work.batch_size,
                    lr=work.lr,
                    weight_decay=0.0,
                    step="lanes" if way == "lanes" else "exact",
                ),
                evaluation={"every": 10 if way == "everything" else ENDLESS, "test_last": 0},
                engine=engine,
                workers=1 if engine == "serial" or (engine == "vectorised" and device != "cpu") else 2,
                device=device,
                callbacks=[bar, watch],
                out=folder,
            )
    except Interrupted:
        point, _ = newest(Path(folder) / "checkpoints")
        assert point is not None
        print(json.dumps({"moved": float((point.server["w"] - FlatModel(model).w).norm())}))


if __name__ == "__main__":
    main()
