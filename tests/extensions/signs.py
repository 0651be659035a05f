"""Sign compression with error feedback: a byte a parameter travels, and what was lost is added the next time."""

from dataclasses import dataclass

import torch

from fedrecall import Stage


@dataclass(frozen=True)
class Signs(Stage):
    """Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019, arXiv 1901.09847."""

    def send(self, change, state, at):
        wanted = {name: tensor + state.get(name, 0.0) for name, tensor in change.items()}
        sent = {name: tensor.sign().to(torch.int8) for name, tensor in wanted.items()}
        sent |= {f"{name}.scale": tensor.abs().mean().reshape(1) for name, tensor in wanted.items()}
        decoded = self.receive(sent, at)
        return sent, {name: tensor - decoded[name] for name, tensor in wanted.items()}

    def receive(self, sent, at):
        names = [name for name in sent if not name.endswith(".scale")]
        return {name: sent[name].float() * sent[f"{name}.scale"] for name in names}
