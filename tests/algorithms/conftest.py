"""What the tests of the algorithms share: federated learning in float64 NumPy, beside the package's own.

A `Lab` holds clients, a model and the settings of the local steps. `run` trains with the package; `local` is one
client's training written out in NumPy. What the server does is written out in each test, in its paper's symbols.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedrecall import CrossEntropy, Federation, Local, Objective, federate
from fedrecall.core.rng import Shuffle

FEATURES, CLASSES, SEED = 4, 3, 3
Vector = np.ndarray


def softmax_regression() -> nn.Module:
    """15 parameters, so that the flat vector of the package is padded; float64, so that 1e-6 is far away."""
    torch.manual_seed(1)
    return nn.Linear(FEATURES, CLASSES).double()


def with_batch_norm() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))


def sample_gradients(theta: Vector, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[n, parameters]: the gradient of each sample's cross-entropy, weights first, then biases."""
    W, b = theta[: CLASSES * FEATURES].reshape(CLASSES, FEATURES), theta[CLASSES * FEATURES :]
    e = np.exp(x @ W.T + b)
    error = e / e.sum(1, keepdims=True) - np.eye(CLASSES)[y]  # p - onehot(y)
    return np.concatenate([(error[:, :, None] * x[:, None, :]).reshape(len(x), -1), error], axis=1)


def mean_gradient(theta: Vector, x: np.ndarray, y: np.ndarray) -> Vector:
    return sample_gradients(theta, x, y).mean(0)


def label_skewed(sizes: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Clients whose inputs differ in place and scale and whose labels are mostly one class."""
    random = np.random.default_rng(5)
    clients = []
    for k, n in enumerate(sizes):
        x = random.normal(size=(n, FEATURES)) * random.uniform(0.6, 1.2, FEATURES) + random.normal(size=FEATURES) / 2
        y = np.where(random.random(n) < 0.6, k % CLASSES, random.integers(0, CLASSES, n))
        clients.append((x.astype(np.float32), y))
    return clients


def well_conditioned(sizes: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Clients whose mean of x x^T has eigenvalues from 1/2 to 3/2, in directions of their own."""
    random = np.random.default_rng(5)
    clients = []
    for k, n in enumerate(sizes):
        left, right = (np.linalg.qr(random.normal(size=(rows, FEATURES)))[0] for rows in (n, FEATURES))
        x = np.sqrt(n) * left * np.sqrt(np.linspace(0.5, 1.5, FEATURES)) @ right
        y = np.where(random.random(n) < 0.6, k % CLASSES, (k + 1) % CLASSES)
        clients.append((x.astype(np.float32), y))
    return clients


@dataclass
class Lab:
    """Clients with `sizes` samples. A batch of 100 is all that a client has: an epoch is then one step."""

    out: Path
    sizes: list[int]
    epochs: int = 3
    batch_size: int = 100
    lr: float = 0.4
    momentum: float = 0.0
    weight_decay: float = 0.02
    factor: float | None = None  # of a schedule that multiplies the rate every round
    model: nn.Module = field(default_factory=softmax_regression)
    gradient: Callable[..., Vector] = mean_gradient  # of the mean loss of a batch
    objective: Objective = field(default_factory=CrossEntropy)
    clients: list[tuple[np.ndarray, np.ndarray]] | None = None

    def __post_init__(self) -> None:
        clients = self.clients or label_skewed(self.sizes)
        self.federation = Federation.from_clients(clients, num_classes=CLASSES, validation=0.0)
        # The package reads float32 samples; their float64 values are the same numbers.
        self.x = np.concatenate([x for x, _ in clients]).astype(np.float64)
        self.y = np.concatenate([y for _, y in clients])
        self.N, self.n = len(self.sizes), np.array(self.sizes, dtype=np.float64)

    def run(self, algorithm, rounds: int = 2, **settings):
        """The package's run; all clients are in every round unless `clients_per_round` says otherwise."""
        settings = {"clients_per_round": self.N, "seed": SEED, "model": self.model} | settings
        local = Local(
            epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, momentum=self.momentum,
            weight_decay=self.weight_decay,
            schedule={"name": "step", "factor": self.factor, "every": 1} if self.factor else "constant",
        )  # fmt: skip
        return federate(
            settings.pop("model"), self.federation, algorithm=algorithm, objective=self.objective, rounds=rounds,
            local=local, engine="serial", out=self.out / f"run-{len(list(self.out.iterdir()))}", **settings,
        )  # fmt: skip

    @property
    def start(self) -> Vector:
        return vector(self.model)

    def rate(self, t: int) -> float:
        return self.lr * (self.factor or 1.0) ** (t - 1)

    def samples(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        at = self._indices(k)
        return self.x[at], self.y[at]

    def _indices(self, k: int) -> np.ndarray:
        first = sum(self.sizes[:k])
        return np.arange(first, first + self.sizes[k])

    def _batches(self, k: int, t: int) -> Iterator[np.ndarray]:
        random, size = Shuffle(SEED, t, k), min(self.batch_size, self.sizes[k])
        for _ in range(self.epochs):
            order = random.permutation(self._indices(k))
            yield from (order[s * size : (s + 1) * size] for s in range(self.sizes[k] // size))

    def local(self, x: Vector, k: int, t: int, correct=lambda g, y: g, gradient=None) -> tuple[Vector, int]:
        """(y, K): client k's vector after its local steps of round t from the server's x, and their number."""
        y, velocity, K = x.copy(), np.zeros_like(x), 0
        for batch in self._batches(k, t):
            g = (gradient or self.gradient)(y, self.x[batch], self.y[batch]) + self.weight_decay * y
            velocity = self.momentum * velocity + correct(g, y)
            y = y - self.rate(t) * velocity
            K += 1
        return y, K


def vector(model: nn.Module) -> Vector:
    return parameters_to_vector(model.parameters()).detach().numpy().astype(np.float64)


def rounds(run) -> list[tuple[int, list[int]]]:
    """(t, S) of each round."""
    return [(line["round"], line["clients"]) for line in run.metrics]


def server_state(run) -> dict[str, Vector]:
    """The server's tensors after the last round, in the package's padded layout."""
    last = max((run.path / "checkpoints").glob("round-*.safetensors"))
    return {
        name.removeprefix("server."): tensor for name, tensor in load_file(last).items() if name.startswith("server.")
    }


def client_states(run) -> dict[int, dict[str, Vector]]:
    """The newest state of each client that has taken part, in the package's padded layout."""
    files = sorted((run.path / "clients").glob("*/client-*-round-*.safetensors"))
    return {int(file.name.split("-")[1]): load_file(file) for file in files}


def padded(tensors: list[np.ndarray]) -> Vector:
    """Float64 tensors one after the other, each filled with zeros to a multiple of 64 bytes."""
    return np.concatenate([np.pad(t.ravel(), (0, -t.size % 8)) for t in tensors])


class LeastSquares(Objective):
    """Half the squared distance to the one-hot target: a quadratic in the weights of a linear model."""

    def __call__(self, logits, target, client, teacher=None):
        onehot = nn.functional.one_hot(target, logits.shape[1]).to(logits.dtype)
        return (logits - onehot).square().sum(1).mean() / 2


class Quadratic(Lab):
    """f_i(W) = 1/(2 n_i) sum_j |W x_j - onehot(y_j)|^2: every client has a Hessian and an optimum of its own."""

    def optimum(self, weights: np.ndarray) -> Vector:
        """Where the weighted sum of the clients' objectives is least, from its normal equations."""
        hessian, target = np.zeros((FEATURES, FEATURES)), np.zeros((FEATURES, CLASSES))
        for k, weight in enumerate(weights):
            x, y = self.samples(k)
            hessian += weight * x.T @ x / len(x)
            target += weight * x.T @ np.eye(CLASSES)[y] / len(x)
        return np.linalg.solve(hessian, target).T.ravel()

    def starting_at(self, theta: Vector) -> nn.Module:
        model = copy.deepcopy(self.model)
        vector_to_parameters(torch.from_numpy(theta), model.parameters())
        return model


@pytest.fixture(scope="session")
def lab(tmp_path_factory) -> Callable[..., Lab]:
    def make(sizes, **settings) -> Lab:
        return Lab(tmp_path_factory.mktemp("lab"), sizes, **settings)

    return make


@pytest.fixture(scope="session")
def quadratic(tmp_path_factory) -> Callable[..., Quadratic]:
    def make(sizes, **settings) -> Quadratic:
        torch.manual_seed(1)
        return Quadratic(
            tmp_path_factory.mktemp("lab"), sizes, clients=well_conditioned(sizes), objective=LeastSquares(),
            model=nn.Linear(FEATURES, CLASSES, bias=False).double(), weight_decay=0.0, **settings,
        )  # fmt: skip

    return make


@pytest.fixture(scope="session")
def tools():
    """The functions of this file that tests call."""

    class Tools:
        vector = staticmethod(vector)
        rounds = staticmethod(rounds)
        server_state = staticmethod(server_state)
        client_states = staticmethod(client_states)
        padded = staticmethod(padded)
        sample_gradients = staticmethod(sample_gradients)
        with_batch_norm = staticmethod(with_batch_norm)

        @staticmethod
        def agree(run, expected: Vector, tolerance: float = 1e-9) -> None:
            """The run's model is the expected vector. Both are float64, so 1e-6 would be lenient."""
            np.testing.assert_allclose(vector(run.model()), expected, rtol=0, atol=tolerance)

    return Tools
