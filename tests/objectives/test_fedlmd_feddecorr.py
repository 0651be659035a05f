"""FedLMD and FedDecorr: values by NumPy, masks by hand, and the same bits in processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import Dirichlet, FedAvg, FedDecorr, Federation, FedLMD, Local, Moon, federate
from fedrecall.core.labels import Labels, shares

COUNTS = torch.tensor([6, 4, 0, 0])  # shares .6, .4, 0, 0: classes 0 and 1 are the majority


def labels(counts: torch.Tensor = COUNTS) -> Labels:
    return Labels(counts, shares(counts))


def softmax(values: np.ndarray) -> np.ndarray:
    e = np.exp(values - values.max())
    return e / e.sum()


@pytest.mark.parametrize("kind", ["global", "uniform"])
def test_the_teacher_is_masked_to_the_minority_and_the_student_only_at_the_label(kind: str) -> None:
    random = np.random.default_rng(0)
    f, t, y = random.normal(size=(3, 4)), random.normal(size=(3, 4)), np.array([0, 1, 0])
    T, expected = 2.0, 0.0
    for own, other, label in zip(f, t, y):
        rest = [c for c in range(4) if c != label]
        q = dict(zip(rest, softmax(own[rest] / T)))
        p = dict(zip([2, 3], softmax(other[[2, 3]] / T) if kind == "global" else [0.5, 0.5]))
        expected += -np.log(softmax(own)[label]) + 0.7 * T**2 * sum(p[c] * np.log(p[c] / q[c]) for c in p)
    objective = FedLMD(beta=0.7, temperature=T, teacher=kind)  # type: ignore[arg-type]
    teacher = torch.tensor(t) if kind == "global" else None
    value = objective(torch.tensor(f), torch.tensor(y), objective.prepare(labels()), teacher)
    assert float(value) == pytest.approx(expected / 3, rel=1e-12)


def test_where_no_class_is_left_only_cross_entropy_remains() -> None:
    counts = torch.tensor([9, 1])  # class 1 is the only one of the minority
    objective, f, t = FedLMD(), torch.tensor([[0.3, 1.0]]), torch.tensor([[2.0, -1.0]])
    alone = objective(f, torch.tensor([1]), objective.prepare(labels(counts)), t)
    assert torch.equal(alone, nn.functional.cross_entropy(f, torch.tensor([1])))


def test_the_penalty_is_the_mean_squared_correlation_off_the_diagonal() -> None:
    g = np.random.default_rng(1).normal(size=(20, 5)) * np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    correlation = np.corrcoef(g.T) - np.eye(5)
    value = FedDecorr(beta=0.3).regulariser(torch.tensor(g))
    assert float(value) == pytest.approx(0.3 * (correlation**2).sum() / 25, rel=1e-6)


def test_one_sample_and_constant_features_have_no_penalty_and_finite_gradients() -> None:
    for g in (torch.randn(1, 4), torch.ones(6, 4)):
        g.requires_grad_()
        value = FedDecorr().regulariser(g)
        value.backward()
        assert float(value.detach()) == pytest.approx(0.0, abs=1e-6)
        assert g.grad is not None
        assert g.grad.isfinite().all()


@pytest.mark.parametrize(
    "given", [(FedLMD(), FedAvg()), (FedDecorr(loss="wsm"), FedAvg()), (FedDecorr(), Moon())], ids=str
)
@pytest.mark.usefixtures("warm_workers")
def test_engines_agree(given, tmp_path: Path) -> None:
    objective, algorithm = given
    random = np.random.default_rng(0)
    x, y = random.normal(size=(200, 12)).astype("float32"), random.integers(0, 4, 200)
    federation = Federation.from_arrays(
        x, y, test=(x[:40], y[:40]), partition=Dirichlet(alpha=0.3, clients=5, validation=0.1, seed=0)
    )

    def model(engine: str) -> dict[str, torch.Tensor]:
        run = federate(
            lambda: nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4)),
            federation, objective=objective, algorithm=algorithm, rounds=2, clients_per_round=3,
            local=Local(epochs=1, batch_size=8, lr=0.1), engine=engine, workers=2 if engine == "processes" else 1,
            out=tmp_path / engine,
        )  # fmt: skip
        return run.model().state_dict()

    serial, processes = map(model, ("serial", "processes"))
    assert all(torch.equal(serial[name], processes[name]) for name in serial)
    if "previous" not in algorithm.needs:  # which `vectorised` has none of
        vectorised = model("vectorised")
        assert all(torch.allclose(serial[name], vectorised[name], atol=1e-5) for name in serial)
