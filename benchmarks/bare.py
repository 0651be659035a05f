"""The bare loops that the simulator is measured against: plain PyTorch in two processes, no framework at all.

Each process has one thread, keeps the model channels last and its freed memory, and trains every second client of
a round; the first process adds up the models. `python benchmarks/bare.py WORK SECONDS` prints seconds a round.
"""

from __future__ import annotations

import copy
import sys
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from fedrecall.engines.memory import keep_freed_memory
from work import WORKS, Work, data


class LeNet(nn.Module):
    """As most would write it: ReLU, then pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        logits: torch.Tensor = self.fc3(F.relu(self.fc2(x)))
        return logits


def model(work: Work) -> nn.Module:
    torch.manual_seed(0)
    return LeNet() if work.model == "lenet" else nn.Linear(512, 10)


def train(net: nn.Module, x: torch.Tensor, y: torch.Tensor, work: Work, order: torch.Tensor) -> int:
    """A client's local steps; how many there were."""
    optimiser = torch.optim.SGD(net.parameters(), lr=work.lr)
    steps = 0
    per_epoch = len(y) // work.batch_size
    while steps < work.steps:
        at = steps % per_epoch * work.batch_size
        chosen = order[at : at + work.batch_size]
        batch = x[chosen]
        if x.dtype == torch.uint8:
            batch = ((batch.float() / 255 - 0.5) / 0.25).permute(0, 3, 1, 2)
        optimiser.zero_grad()
        F.cross_entropy(net(batch), y[chosen]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        steps += 1
    return steps


def serve(link: Connection, work: Work, part: int) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    x, y = (torch.from_numpy(array) for array in data(work))
    net = model(work).to(memory_format=torch.channels_last)
    random = np.random.default_rng(part)
    while True:
        message = link.recv()
        if message is None:
            return
        vector, clients = message
        total = torch.zeros(len(vector))
        steps = 0
        for client in clients:
            nn.utils.vector_to_parameters(torch.from_numpy(vector), net.parameters())
            own = slice(client * work.samples, (client + 1) * work.samples)
            steps += train(net, x[own], y[own], work, torch.from_numpy(random.permutation(work.samples)))
            total += nn.utils.parameters_to_vector(net.parameters()).detach()
        link.send((total.numpy(), steps))


def seconds_per_round(work: Work, seconds: float, processes: int = 2) -> list[float]:
    """The times of as many rounds as fit, the first left out. The steps are counted, not assumed."""
    context = get_context("spawn")
    links, workers = [], []
    for part in range(processes):
        ours, theirs = context.Pipe()
        worker = context.Process(target=serve, args=(theirs, work, part), daemon=True)
        worker.start()
        links.append(ours)
        workers.append(worker)
    vector = nn.utils.parameters_to_vector(model(work).parameters()).detach().numpy()
    random, times, began = np.random.default_rng(0), [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        clients = random.choice(work.clients, work.per_round, replace=False).tolist()
        for part, link in enumerate(links):
            link.send((copy.copy(vector), clients[part::processes]))
        answers = [link.recv() for link in links]
        assert sum(steps for _, steps in answers) == work.per_round * work.steps
        vector = sum(total for total, _ in answers) / len(clients)
        times.append(time.perf_counter() - start)
        if len(times) == 1:
            began = time.perf_counter()
    for link, worker in zip(links, workers):
        link.send(None)
        worker.join()
    return times[1:]


if __name__ == "__main__":
    print(*seconds_per_round(WORKS[sys.argv[1]], float(sys.argv[2])))
