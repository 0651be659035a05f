"""Clients that fail: a fifth of those that are asked do not answer."""

from dataclasses import dataclass

from fedrecall import UniformSampling


@dataclass(frozen=True)
class Unreliable(UniformSampling):
    dropout: float = 0.2

    def answering(self, round, clients, random):
        return [client for client in clients if random.random() >= self.dropout]
