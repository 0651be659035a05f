"""Clipping, noise and the fixed divisor, beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import DifferentialPrivacy
from fedrecall.core.vector import FlatModel
from fedrecall.updates import Pipeline, Stage, StageContext

CLIENT, SERVER = StageContext(0, 1, 3, 5, 0), StageContext(0, 1, -1, 3, 0, expected=4)
STAGE = DifferentialPrivacy(clipping_norm=1.0, noise_multiplier=0.5)


def test_all_tensors_of_an_update_are_clipped_together() -> None:
    change = {"w": torch.tensor([3.0, 0.0]), "dc": torch.tensor([4.0])}
    found = STAGE.receive(change, CLIENT)
    assert found["w"].tolist() == pytest.approx([0.6, 0.0], rel=1e-15)  # 3 / 5
    assert found["dc"].tolist() == pytest.approx([0.8], rel=1e-15)
    small = {"w": torch.tensor([0.6, 0.0]), "dc": torch.tensor([0.7])}
    assert all(torch.equal(tensor, small[name].double()) for name, tensor in STAGE.receive(small, CLIENT).items())


def test_a_clipped_update_of_a_large_model_is_no_longer_than_the_norm() -> None:
    """In float32 the sum of the model and a short change would be rounded to something longer."""
    model, moved = torch.full((1000,), 100.0), torch.full((1000,), 100.5)
    pipeline = Pipeline((DifferentialPrivacy(clipping_norm=1e-3, noise_multiplier=1.0),))
    message, _ = pipeline.send({"w": moved}, {"w": model}, {}, 1, 0, 1)
    found = pipeline.receive(message, {"w": model}, 1, 0, 1)["w"].double() - model
    assert float(found.norm()) == pytest.approx(1e-3, rel=1e-8)


def test_the_new_model_is_that_of_numpy() -> None:
    """Three of four expected clients answer; the sum is still divided by four."""
    random = np.random.default_rng(0)
    model, changes = random.normal(size=20), random.normal(size=(3, 20))
    pipeline = Pipeline((STAGE,))
    sums = {"w": torch.from_numpy((model + changes).sum(0))}
    sums, totals = pipeline.aggregate(sums, {"w": 3.0}, {"w": torch.from_numpy(model)}, SERVER)
    noise = SERVER.stream().normal(0.0, 0.5 * 1.0, 20)
    np.testing.assert_allclose(sums["w"] / totals["w"], model + (changes.sum(0) + noise) / 4, rtol=1e-12)


def test_noise_has_the_deviation_that_is_asked_for_and_is_new_each_round() -> None:
    stage = DifferentialPrivacy(clipping_norm=3.0, noise_multiplier=2.0)
    nothing = {"w": torch.zeros(40_000, dtype=torch.float64)}
    first = stage.aggregate(nothing, {"w": 0.0}, SERVER)["w"]
    assert float(first.std()) == pytest.approx(6.0, rel=4 / (2 * 40_000) ** 0.5)
    second = stage.aggregate(nothing, {"w": 0.0}, StageContext(0, 2, -1, 3, 0, expected=4))["w"]
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 4 / 40_000**0.5


def test_several_tensors_get_noise_of_their_own() -> None:
    nothing = {name: torch.zeros(100, dtype=torch.float64) for name in ("w", "dc")}
    found = STAGE.aggregate(nothing, {}, SERVER)
    assert not torch.equal(found["w"], found["dc"])


class Seen(Stage):
    """Keeps the lengths of what it is shown."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def send(self, change, state, at):
        self.lengths += [len(tensor) for tensor in change.values()]
        return change, {}

    def aggregate(self, sums, totals, at):
        return {name: tensor + 1 for name, tensor in sums.items()}


def test_stages_do_not_see_the_padding_of_a_vector() -> None:
    flat, seen = FlatModel(nn.Linear(3, 2)), Seen()  # 6 weights and 2 biases, each padded to 16 numbers
    pipeline = Pipeline((seen,)).for_model(flat, {"w": flat.w, "own": torch.zeros(8)})
    w = flat.w.detach().clone()
    sent = {"w": w + 1, "own": torch.zeros(8)}
    message, _ = pipeline.send(sent, {"w": w}, {}, 1, 0, 1)
    assert seen.lengths == [8, 8]
    found = pipeline.receive(message, {"w": w}, 1, 0, 1)
    real = [*range(6), 16, 17]
    expected = w.clone()
    expected[real] += 1
    torch.testing.assert_close(found["w"], expected)
    assert found["own"].shape == (8,)  # as long as the numbers of the model, but no vector of it
    sums, _ = pipeline.aggregate({"w": w.double()}, {"w": 1.0}, {"w": w}, SERVER)
    torch.testing.assert_close(sums["w"].float(), expected)
