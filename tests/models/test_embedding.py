"""The text model, against means worked out by hand, and on texts whose class decides their words."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedrecall import WSM, Dirichlet, Federation, Iid, InputError, Local, federate
from fedrecall.core.vector import FlatModel
from fedrecall.models import MODELS, MeanEmbedding, embedding
from fedrecall.recipe.layers import load_recipe


def transparent(padding: int | None = 0) -> MeanEmbedding:
    """Logits are the mean itself: token k has the vector (k, 10 k), and that of token 0 is (7, 70)."""
    model = embedding((2,), 2, vocabulary=5, dimension=2, padding=padding)
    with torch.no_grad():
        model.vectors.weight.copy_(torch.tensor([[7.0, 70.0], [1, 10], [2, 20], [3, 30], [4, 40]]))
        model.head.weight.copy_(torch.eye(2))
        model.head.bias.zero_()
    return model


def answer(model: nn.Module, *texts: list[int]) -> list[list[float]]:
    with torch.no_grad():
        logits: Tensor = model(torch.tensor(texts))
    return logits.tolist()


def test_vocabulary_times_dimension_and_a_linear_layer_are_the_parameters() -> None:
    model = embedding((12,), 4, vocabulary=100, dimension=8)
    assert sum(p.numel() for p in model.parameters()) == 100 * 8 + (8 * 4 + 4) == 836
    assert list(model.buffers()) == []


def test_the_vectors_have_64_numbers_unless_told_otherwise() -> None:
    assert embedding((12,), 4, vocabulary=100).vectors.weight.shape == (100, 64)


def test_two_tokens_give_the_mean_of_their_vectors() -> None:
    # ((1, 10) + (4, 40)) / 2 and ((2, 20) + (2, 20)) / 2.
    assert answer(transparent(), [1, 4], [2, 2]) == [[2.5, 25.0], [2.0, 20.0]]


def test_the_mean_goes_through_the_linear_layer() -> None:
    model = transparent()
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, -1.0]]))
        model.head.bias.copy_(torch.tensor([100.0, 200.0]))
    assert answer(model, [1, 3]) == [[104.0, 180.0]]  # of the mean (2, 20)


def test_padding_is_not_counted_wherever_it_stands_and_whatever_its_vector() -> None:
    assert answer(transparent(), [3, 0, 1, 0], [0, 0, 0, 4]) == [[2.0, 20.0], [4.0, 40.0]]


def test_a_text_of_padding_only_has_mean_zero_and_a_finite_gradient() -> None:
    model = transparent()
    assert answer(model, [0, 0, 0]) == [[0.0, 0.0]]
    F.cross_entropy(model(torch.tensor([[0, 0, 0]])), torch.tensor([1])).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_another_id_may_be_the_padding() -> None:
    assert answer(transparent(padding=2), [0, 2], [1, 3]) == [[7.0, 70.0], [2.0, 20.0]]


def test_without_padding_every_token_counts() -> None:
    assert answer(transparent(padding=None), [0, 1], [3, 3]) == [[4.0, 40.0], [3.0, 30.0]]


def test_only_tokens_that_occur_get_a_gradient_and_it_is_dense() -> None:
    model = transparent()
    model(torch.tensor([[1, 3, 0, 0], [3, 3, 3, 1]])).sum().backward()
    gradient = model.vectors.weight.grad
    assert gradient is not None
    assert gradient.layout == torch.strided
    # Token 1: a half of the first text and a quarter of the second; token 3: a half and three quarters.
    assert gradient.tolist() == [[0, 0], [0.75, 0.75], [0, 0], [1.25, 1.25], [0, 0]]


def test_the_vector_of_the_padding_starts_at_zero_and_the_others_normal() -> None:
    torch.manual_seed(0)
    weight = embedding((5,), 2, vocabulary=2000, dimension=16, padding=3).vectors.weight
    assert (weight[3] == 0).all()
    assert weight.mean().abs() < 0.02
    assert weight.std().item() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("padding", [0, None])
def test_a_step_in_the_flat_vectors_is_a_step_of_plain_torch(padding: int | None) -> None:
    torch.manual_seed(0)
    module = embedding((6,), 3, vocabulary=11, dimension=5, padding=padding)
    ids, y = torch.randint(0, 11, (7, 6)), torch.arange(7) % 3
    flat = FlatModel(copy.deepcopy(module))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(module(ids), y).backward()
        optimiser.step()
        flat.g.zero_()
        F.cross_entropy(flat.module(ids), y).backward()
        flat.w.add_(flat.g, alpha=-0.5)
    flat.check_views()
    for key, expected in module.state_dict().items():
        torch.testing.assert_close(flat.module.state_dict()[key], expected, rtol=1e-5, atol=1e-6, msg=key)


# Texts of five classes. Half of a text's tokens are of its class, which has ten of the ids 1 to 50; the others are
# any. Texts have 4 to 12 tokens and are filled up with 0.


def texts(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = np.arange(count) % 5
    own = 1 + 10 * y[:, None] + random.integers(0, 10, (count, 12))
    x = np.where(random.random((count, 12)) < 0.5, own, random.integers(1, 51, (count, 12)))
    x[np.arange(12) >= random.integers(4, 13, count)[:, None]] = 0
    return x.astype(np.int64), y


def test_clients_with_skewed_labels_learn_to_tell_texts_apart_with_wsm(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    partition = Dirichlet(alpha=0.2, clients=10, validation=0.1, seed=0)
    federation = Federation.from_arrays(*texts(1000, seed=0), test=texts(500, seed=1), partition=partition)
    assert federation.sample_shape == (12,)
    assert (federation.training_counts() == 0).sum() >= 10  # classes that a client has none of
    torch.manual_seed(0)
    model = embedding(federation.sample_shape, federation.num_classes, vocabulary=51, dimension=16)
    run = federate(
        model,
        federation,
        objective=WSM(),
        engine="serial",
        rounds=30,
        clients_per_round=3,
        local=Local(epochs=3, batch_size=16, lr=1.0),
        evaluation={"every": 30, "test_last": 5},
        out=tmp_path / "run",
    )
    assert np.mean([line["test_accuracy"] for line in run.metrics[-5:]]) > 0.7  # chance: 0.2
    assert (run.model().vectors.weight[0] == 0).all()


# What is refused, and what a recipe says.


@pytest.mark.parametrize("shape", [(), (0,), (3, 32, 32), (4, 5)])
def test_samples_that_are_not_vectors_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"takes texts as vectors of token ids, but a sample of this data is \("):
        embedding(shape, 2, vocabulary=5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vocabulary": 0}, "model.vocabulary is 0"),
        ({"vocabulary": 5, "dimension": 0}, "model.dimension is 0"),
        ({"vocabulary": 5, "padding": 5}, "model.padding is 5; an id from 0 to 4, or null"),
        ({"vocabulary": 5, "padding": -1}, "model.padding is -1"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(options, said: str) -> None:
    with pytest.raises(InputError, match=said):
        embedding((4,), 2, **options)


@pytest.mark.parametrize("wrong", [-1, 5, 99])
def test_an_id_outside_the_vocabulary_is_named(wrong: int) -> None:
    with pytest.raises(InputError, match=rf"a token id is {wrong}, but model.vocabulary is 5; ids from 0 to 4"):
        transparent()(torch.tensor([[1, 2, wrong]]))


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.ones((20, 3), np.float32), "token ids, which are whole numbers, but samples are torch.float32"),
        (np.full((20, 3), 9), "a token id is 9, but model.vocabulary is 5"),
    ],
)
def test_data_that_does_not_fit_ends_in_a_sentence_before_a_run_starts(x, said, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    federation = Federation.from_arrays(x, np.arange(20) % 2, partition=Iid(clients=2, validation=0.0))
    with pytest.raises(InputError, match=said):
        federate(embedding((3,), 2, vocabulary=5), federation, engine="serial", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_it_is_listed_under_its_name() -> None:
    assert MODELS["embedding"] is embedding


def test_a_recipe_gives_the_vocabulary_and_may_switch_the_padding_off(tmp_path: Path) -> None:
    recipe = load_recipe(None, ["model={name: embedding, vocabulary: 9, padding: null}"])
    wanted = {"name": "embedding", "vocabulary": 9, "dimension": 64, "padding": None}
    assert recipe.model.items() >= wanted.items()
    (tmp_path / "again.yaml").write_text(recipe.yaml())
    assert load_recipe(str(tmp_path / "again.yaml")) == recipe
    with pytest.raises(InputError, match=r"'model\.vocabulary' is missing"):
        load_recipe(None, ["model=embedding"])
