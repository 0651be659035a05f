"""Top-k with error feedback, beside numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedrecall import TopK
from fedrecall.updates import DecodeError, Stage, StageContext

AT = StageContext(seed=0, round=1, client=3, cohort=5, place=0)


def sent(stage: Stage, values: list[float], state: dict[str, Tensor]) -> tuple[list[float], dict[str, Tensor]]:
    message, kept = stage.send({"w": torch.tensor(values)}, state, AT)
    return stage.receive(message, AT)["w"].tolist(), kept


def test_two_rounds_by_hand() -> None:
    stage = TopK(fraction=0.5)
    first, kept = sent(stage, [1.0, -4.0, 2.0, 3.0], {})
    assert (first, kept["w"].tolist()) == ([0.0, -4.0, 0.0, 3.0], [1.0, 0.0, 2.0, 0.0])
    # wanted: 1 + 1, 0 + .5, 2 - .5, 0 - 1
    second, kept = sent(stage, [1.0, 0.5, -0.5, -1.0], kept)
    assert (second, kept["w"].tolist()) == ([2.0, 0.0, 1.5, 0.0], [0.0, 0.5, 0.0, -1.0])


def test_sent_and_residual_add_up_to_all_that_was_wanted() -> None:
    stage, kept, total, wanted = TopK(fraction=0.1), dict[str, Tensor](), torch.zeros(100), torch.zeros(100)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        change = torch.randint(-8, 9, (100,), generator=generator).float()  # so that sums are exact
        message, kept = stage.send({"w": change}, kept, AT)
        assert len(message["w.values"]) == 10
        total, wanted = total + stage.receive(message, AT)["w"], wanted + change
    assert torch.equal(total + kept["w"], wanted)


def test_without_feedback_the_rest_is_lost() -> None:
    assert sent(TopK(fraction=0.25, error_feedback=False), [1.0, -4.0, 2.0, 3.0], {}) == ([0.0, -4.0, 0.0, 0.0], {})


def test_of_equal_values_the_first_are_sent_and_at_least_one() -> None:
    assert sent(TopK(fraction=0.5), [1.0, -1.0, 1.0, 1.0], {})[0] == [1.0, -1.0, 0.0, 0.0]
    assert sent(TopK(fraction=0.01), [0.0, 0.0, 2.0], {})[0] == [0.0, 0.0, 2.0]


def test_positions_and_the_length_travel_too() -> None:
    message, _ = TopK(fraction=0.01).send({"w": torch.randn(1000)}, {}, AT)
    assert sum(tensor.numel() * tensor.itemsize for tensor in message.values()) == 10 * (4 + 4) + 4


def test_a_number_that_is_not_finite_is_sent() -> None:
    found, _ = sent(TopK(fraction=0.5), [1.0, float("nan"), 2.0, 3.0], {})
    assert not torch.tensor(found).isfinite().all()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"w.size": torch.tensor([10**9], dtype=torch.int32)}, "it sent 2 values of a vector of 1000000000"),
        ({"w.positions": torch.tensor([1, 4], dtype=torch.int32)}, "not ascending ones from 0 to 3"),
        ({"w.positions": torch.tensor([-1, 2], dtype=torch.int32)}, "not ascending ones from 0 to 3"),
        ({"w.positions": torch.tensor([2, 2], dtype=torch.int32)}, "not ascending ones from 0 to 3"),
    ],
)
def test_a_message_that_send_cannot_make_is_refused(changed: dict[str, Tensor], sentence: str) -> None:
    stage = TopK(fraction=0.5)
    message, _ = stage.send({"w": torch.tensor([1.0, 2.0, 3.0, 4.0])}, {}, AT)
    with pytest.raises(DecodeError, match=sentence):
        stage.receive({**message, **changed}, AT)
