"""Unlabelled server data, for algorithms that aggregate with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrecall.data.federation import Federation
from fedrecall.data.partition import Iid
from fedrecall.data.sources import DataSet
from fedrecall.errors import InputError
from fedrecall.models.build import model_input
from fedrecall.recipe.recipe import Recipe


@dataclass(frozen=True)
class ServerData:
    """The server's samples in the form that the model takes; labels are not read."""

    federation: Federation  # with one client that has all samples
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.federation.train)

    def batch(self, positions: Tensor) -> Tensor:
        """Return the samples at these positions, normalised as the clients' are but not augmented."""
        x, _ = self.federation.train.gather(positions)
        return model_input(self.federation.transform(x, None), self.dtype)


def server_data_of(recipe: Recipe, federation: Federation, dtype: torch.dtype, given: Any = None) -> ServerData | None:
    """Return the server's data, from an array or the recipe's source; None if there are none."""
    if given is None and recipe.server_data is None:
        return None
    one = Iid(clients=1, validation=0.0)
    if given is None:
        data = recipe.create("server_data", folder=recipe.execution.data)
        if not isinstance(data, DataSet):
            raise InputError(f"server_data returned a {type(data).__name__}; expected a DataSet")
        given = data.x_train
    x, transform = np.asarray(given), federation.transform
    held = Federation.from_arrays(
        x, np.arange(len(x)) % 2, partition=one, num_classes=2, transform=transform, layout="nhwc"
    )
    if held.sample_shape != federation.sample_shape:
        raise InputError(
            f"a sample of server_data has the shape {held.sample_shape}, but the clients' have "
            f"{federation.sample_shape}"
        )
    return ServerData(held, dtype)
