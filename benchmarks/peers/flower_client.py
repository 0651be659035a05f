"""The client of the Flower app. A module of its own, so that an actor imports it once and keeps what it holds."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from plain import model, train
from work import WORKS, data

app = ClientApp()


@cache
def held(name: str) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor, np.random.Generator]:
    """What an actor makes once, for all its clients: the model, the data, a source of chance."""
    torch.set_num_threads(1)
    work = WORKS[name]
    x, y = (torch.from_numpy(array) for array in data(work))
    return model(work).to(memory_format=torch.channels_last), x, y, np.random.default_rng()


@app.train()
def local_steps(message: Message, context: Context) -> Message:
    name = message.content["config"]["work"]
    work = WORKS[name]
    net, x, y, random = held(name)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    own = slice(client * work.samples, (client + 1) * work.samples)
    steps = train(net, x[own], y[own], work, torch.from_numpy(random.permutation(work.samples)))
    metrics = MetricRecord({"num-examples": work.samples, "steps": steps})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
