"""A head that stays with its client: the body is averaged, the last layer is each client's own."""

from dataclasses import dataclass, replace

import torch

from fedrecall import FedAvg


@dataclass(frozen=True)
class PersonalHead(FedAvg):
    """Arivazhagan et al., "Federated Learning with Personalization Layers", 2019, arXiv 1912.00818."""

    start: int = 0  # where the last layer begins in the vector

    def for_model(self, slots):
        last = slots[-1].name.rpartition(".")[0]
        return replace(self, start=min(slot.offset for slot in slots if slot.name.startswith(last)))

    def model_for(self, client, server):
        head = client.get("head", server["w"][self.start :])
        return torch.cat([server["w"][: self.start], head])

    def finish(self, y, server, client, local, extra):
        body = torch.cat([y[: self.start], server["w"][self.start :]])
        return {"w": body}, {"head": y[self.start :].clone()}
