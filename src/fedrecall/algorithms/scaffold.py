"""SCAFFOLD: control variates against client drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import Tensor, zeros_like

from fedrecall.algorithms.base import Algorithm, Finished, LocalSteps, Population, Totals
from fedrecall.config.options import Rate
from fedrecall.core.vector import Tensors


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Control variates correct the clients' drift in their local steps.

    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, arXiv
    1910.06378, option II: steps along g - c_i + c, then c_i+ = c_i - c + (x - y) / (K lr), where momentum makes K
    larger (`accumulated`). x += server_lr mean_S (y - x); c += sum_S (c_i+ - c_i) / N: the mean of all N c_i.
    """

    server_lr: Annotated[Rate, "eta_g: step of the server along the mean update"] = 1.0
    weighting: Annotated[Literal["uniform", "samples"], "what a client weighs, in x and in c"] = "uniform"
    title: ClassVar[str] = "SCAFFOLD"
    divides_by_rate: ClassVar[bool] = True
    assumes_sgd: ClassVar[str | None] = "its control variates take every step to be the rate times a gradient"

    def init(self, x: Tensor) -> Tensors:
        return {"w": x, "c": zeros_like(x)}

    def init_client(self, x: Tensor) -> Tensors:
        return {"c": zeros_like(x)}

    def broadcast(self, server: Tensors) -> Tensors:
        return server

    def correct(self, g: Tensor, y: Tensor, server: Tensors, client: Tensors) -> None:
        g -= client["c"]
        g += server["c"]

    def finish(self, y: Tensor, server: Tensors, client: Tensors, local: LocalSteps, extra: Tensors) -> Finished:
        c_i = client["c"] - server["c"] + (server["w"] - y) / (local.accumulated() * local.lr)
        return {"w": y, "dc": c_i - client["c"]}, {"c": c_i}

    def weight(self, name: str, samples: int, steps: int) -> float:
        return 1.0 if self.weighting == "uniform" else float(samples)

    def aggregate(self, server: Tensors, sums: Tensors, totals: Totals, population: Population) -> Tensors:
        x, everyone = server["w"], population.clients if self.weighting == "uniform" else population.samples
        x = x + self.server_lr * (sums["w"] / totals["w"] - x)
        return {"w": x, "c": server["c"] + sums["dc"] / everyone}
