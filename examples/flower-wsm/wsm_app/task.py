"""The model and the data: Fashion-MNIST's 10,000 images that come with fedrecall, a few classes a client."""

import torch
from torch import nn

from fedrecall import Dirichlet, Federation
from fedrecall.data.sources import fashion_mini


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def data(client: int, clients: int, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's images and labels, for "train" or for "validation"."""
    partition = Dirichlet(alpha=0.1, clients=clients, validation=0.1, seed=0)
    federation = Federation.from_data(fashion_mini(), partition)
    chosen = federation.train_indices(client) if part == "train" else federation.validation_indices(client)
    x, y = federation.train.gather(torch.from_numpy(chosen))
    return federation.transform(x), y
