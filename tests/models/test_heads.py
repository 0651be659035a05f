"""Heads: formulas by hand, angles of the fixed class directions, and runs with each of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import Dirichlet, Federation, Local, federate
from fedrecall.errors import InputError
from fedrecall.models import MODELS, mlp
from fedrecall.models.heads import EtfHead, NormalisedHead, with_head
from fedrecall.runs.identity import hash_of, round_identity

SAMPLES = {"lenet": (1, 28, 28), "resnet18": (3, 16, 16), "mlp": (20,)}


def test_a_normalised_head_is_the_cosine_times_length_and_scale() -> None:
    head = NormalisedHead(2, 2, scale=10.0)
    head.linear.weight.data = torch.tensor([[1.0, 0.0], [0.5, 2.0]])
    logits = head(torch.tensor([[3.0, 4.0], [30.0, 40.0]]))  # 10 (0.6, 0.8), whatever the length
    assert logits.detach().numpy() == pytest.approx(np.array([[6.0, 19.0]] * 2), rel=1e-6)


def test_zero_features_have_zero_logits_and_a_finite_gradient() -> None:
    features = torch.zeros(1, 3, requires_grad=True)
    logits = NormalisedHead(3, 2, scale=4.0)(features)
    logits.sum().backward()
    assert not logits.any()
    assert features.grad is not None
    assert features.grad.isfinite().all()


@pytest.mark.parametrize(("features", "classes"), [(84, 10), (84, 100), (2, 2)])
def test_class_directions_of_an_etf_are_unit_vectors_at_equal_angles(features: int, classes: int) -> None:
    directions = EtfHead(features, classes, scale=10.0).directions.double()
    cosines = directions.T @ directions
    expected = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64).fill_diagonal_(1.0)
    assert torch.allclose(cosines, expected, atol=1e-5)


def test_an_etf_head_is_the_scaled_cosine_with_each_direction() -> None:
    torch.manual_seed(0)
    head, g = EtfHead(5, 3, scale=7.0), torch.randn(4, 5)
    h = (g @ head.map.weight.T + head.map.bias).detach().numpy()
    cosine = h @ head.directions.numpy() / np.linalg.norm(h, axis=1, keepdims=True)
    assert head(g).detach().numpy() == pytest.approx(7 * cosine, abs=1e-5)
    assert [name for name, p in head.named_parameters() if p.requires_grad] == ["scale", "map.weight", "map.bias"]


@pytest.mark.parametrize(("model", "head"), list(itertools.product(SAMPLES, ["normalised", "etf"])))
def test_every_shipped_model_takes_every_head(model: str, head: str) -> None:
    made = MODELS[model](SAMPLES[model], 10, head=head, scale=4.0)
    assert made(torch.randn(3, *SAMPLES[model])).shape == (3, 10)
    assert isinstance([*made.modules()][-2], NormalisedHead | EtfHead)  # its linear layer is the last module


def test_a_text_model_takes_a_head() -> None:
    made = MODELS["embedding"]((6,), 3, vocabulary=11, head="normalised")
    assert made(torch.ones(2, 6, dtype=torch.long)).shape == (2, 3)


def test_the_linear_head_has_the_weights_that_it_always_had() -> None:
    torch.manual_seed(1)
    given = MODELS["mlp"]((4,), 3, hidden=(5,), head="linear")
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    assert all(torch.equal(a, b) for a, b in zip(given.parameters(), plain.parameters(), strict=True))


def test_a_head_replaces_a_named_layer_of_the_users_model() -> None:
    model = nn.Sequential()
    model.add_module("classify", nn.Linear(4, 3))
    model.add_module("after", nn.Linear(3, 3))
    assert isinstance(with_head(model, "normalised", layer="classify").classify, NormalisedHead)


@pytest.mark.parametrize(
    ("model", "head", "layer", "sentence"),
    [
        (nn.Sequential(nn.ReLU()), "normalised", None, "replaces an nn.Linear inside the model"),
        (nn.Sequential(nn.Linear(2, 2)), "normalised", "9", "replaces an nn.Linear inside the model; .* 0"),
        (nn.Sequential(nn.Linear(2, 2)), "cosine", None, "model.head is 'cosine'; one of linear, normalised, etf"),
        (nn.Sequential(nn.Linear(2, 1)), "etf", None, "needs two classes or more; the data has 1"),
    ],
)  # fmt: skip
def test_what_cannot_have_a_head_is_refused(model: nn.Module, head: str, layer: str | None, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        with_head(model, head, layer=layer)  # type: ignore[arg-type]


def test_older_recipes_without_these_keys_keep_their_digest() -> None:
    def digest(**model: object) -> str:
        return hash_of(round_identity({"model": {"name": "lenet", **model}}))

    assert digest() == digest(head="linear", scale=10.0) != digest(head="normalised", scale=10.0)


def federation() -> Federation:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(240, 20)).astype("float32"), random.integers(0, 4, 240)
    partition = Dirichlet(alpha=0.5, clients=6, validation=0.1, seed=0)
    return Federation.from_arrays(x, y, test=(x[:40], y[:40]), partition=partition)


@pytest.mark.parametrize(("head", "step"), [("normalised", "lanes"), ("normalised", "exact"), ("etf", "exact")])
@pytest.mark.usefixtures("warm_workers")
def test_a_head_trains_with_the_same_bits_in_processes(head: str, step: str, tmp_path: Path) -> None:
    runs = [
        federate(
            lambda: with_head(mlp((20,), 4, hidden=(16,)), head),  # type: ignore[arg-type]
            federation(),
            rounds=2,
            clients_per_round=3,
            local=Local(epochs=1, batch_size=16, lr=0.1, step=step),  # type: ignore[arg-type]
            engine=engine,
            workers=2 if engine == "processes" else 1,
            out=tmp_path / engine,
        )
        for engine in ("serial", "processes")
    ]
    models = [(run.path / "model.safetensors").read_bytes() for run in runs]
    assert models[0] == models[1]
    assert "no kernel" not in (runs[0].path / "events.jsonl").read_text(encoding="utf-8")
