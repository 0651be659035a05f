"""The bare loops that the simulator is measured against: plain PyTorch in two processes, no framework at all.

Each process has one thread, keeps the model channels last and its freed memory, and trains every second client of
a round; the first process adds up the models. `python benchmarks/bare.py WORK` runs the rounds it is told to, and
`.. WORK DEVICE` on a device, where one process has the model and all samples.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import nn

from fedrecall.engines.malloc import keep_freed_memory
from plain import model, train
from turns import Turns
from work import WORKS, Work, data


def serve(link: Connection, work: Work, part: int, device: str) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    x, y = (torch.from_numpy(array).to(device) for array in data(work))
    net = model(work).to(device, memory_format=torch.channels_last)
    random = np.random.default_rng(part)
    while True:
        message = link.recv()
        if message is None:
            return
        vector, clients = message
        total = torch.zeros(len(vector))
        steps = 0
        for client in clients:
            load(net, torch.from_numpy(vector))
            own = slice(client * work.samples, (client + 1) * work.samples)
            order = torch.from_numpy(random.permutation(work.samples)).to(device)
            steps += train(net, x[own], y[own], work, order)
            total += torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()]).cpu()
        link.send((total.numpy(), steps))


@torch.no_grad()
def load(net: nn.Module, vector: torch.Tensor) -> None:
    """Values alone: the parameters stay where they are, channels last."""
    parts = vector.split([parameter.numel() for parameter in net.parameters()])
    for parameter, part in zip(net.parameters(), parts):
        parameter.copy_(part.view(parameter.shape))


def rounds(work: Work, device: str = "cpu") -> Iterator[float]:
    """The seconds of one round after the other. The steps are counted, not assumed."""
    processes = 2 if device == "cpu" else 1
    context = get_context("spawn")
    links, workers = [], []
    for part in range(processes):
        ours, theirs = context.Pipe()
        worker = context.Process(target=serve, args=(theirs, work, part, device), daemon=True)
        worker.start()
        links.append(ours)
        workers.append(worker)
    vector = first = nn.utils.parameters_to_vector(model(work).parameters()).detach().numpy()
    random = np.random.default_rng(0)
    try:
        while True:
            start = time.perf_counter()
            clients = random.choice(work.clients, work.per_round, replace=False).tolist()
            for part, link in enumerate(links):
                link.send((vector, clients[part::processes]))
            answers = [link.recv() for link in links]
            assert sum(steps for _, steps in answers) == work.per_round * work.steps
            vector = sum(total for total, _ in answers) / len(clients)
            yield time.perf_counter() - start
    finally:
        print(json.dumps({"moved": float(np.linalg.norm(vector - first))}))
        for link, worker in zip(links, workers):
            link.send(None)
            worker.join()


def main() -> None:
    turns, loop = Turns(), rounds(WORKS[sys.argv[1]], *sys.argv[2:])
    for seconds in loop:
        if turns.over_after(seconds):
            break
    loop.close()


if __name__ == "__main__":
    main()
