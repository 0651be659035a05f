"""A client of one's own. Two lines are fedrecall's: the loss, and the mod that logs forgetting."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedrecall import WSMLoss, class_proportions
from fedrecall.flower.mods import ForgettingMod
from wsm_app.task import data, model

app = ClientApp(mods=[ForgettingMod("accuracy")])


@app.train()
def train(message: Message, context: Context) -> Message:
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client, clients = context.node_config["partition-id"], context.node_config["num-partitions"]
    x, y = data(client, clients, "train")
    loss = WSMLoss(class_proportions(y, num_classes=10))  # in place of nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in torch.randperm(len(y)).split(32):
        optimiser.zero_grad()
        loss(net(x[batch]), y[batch]).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client, clients = context.node_config["partition-id"], context.node_config["num-partitions"]
    x, y = data(client, clients, "validation")
    with torch.no_grad():
        accuracy = float((net(x).argmax(1) == y).float().mean())
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
