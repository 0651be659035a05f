"""Randomness is a function of its arguments."""

from __future__ import annotations

import torch

from fedrecall.rng import PURPOSES, default_generator, stream, torch_stream


def test_equal_arguments_give_equal_numbers() -> None:
    first = stream(3, "batches", round=5, client=2).integers(0, 2**62, 8)
    assert (first == stream(3, "batches", round=5, client=2).integers(0, 2**62, 8)).all()


def test_each_argument_changes_the_stream() -> None:
    streams = [(0, "batches", 1, 1), (1, "batches", 1, 1), (0, "augment", 1, 1), (0, "batches", 2, 1)]
    streams += [(0, "batches", 1, 2), (0, "batches", 12, 0), (0, "batches", 0, 12)]
    first_numbers = {int(stream(*arguments).integers(0, 2**62)) for arguments in streams}
    first_torch_numbers = {torch_stream(*arguments).initial_seed() for arguments in streams}
    assert len(first_numbers) == len(first_torch_numbers) == len(streams)


def test_streams_are_the_same_in_every_version() -> None:
    # Written down once; a change here changes every published result.
    assert PURPOSES == {"init": 1, "sample": 2, "batches": 3, "augment": 4, "model": 5}
    assert stream(0, "sample", 1).integers(0, 1000, 4).tolist() == [967, 518, 322, 831]
    assert torch_stream(0, "augment", 1, 2).initial_seed() == 6775611746057050632


def test_the_default_generator_is_given_back() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with default_generator(0, "model", 1, 1):
        torch.rand(100)
    assert torch.equal(torch.rand(3), expected)


def test_the_default_generator_is_seeded_by_its_stream() -> None:
    draws = []
    for noise in (0, 7):
        torch.rand(noise)
        with default_generator(4, "model", 2, 1):
            draws.append(torch.rand(3))
    assert torch.equal(*draws)
