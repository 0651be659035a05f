"""Randomness is a function of its arguments."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from fedrecall.core.rng import (
    PURPOSES,
    STRIDE,
    Shuffle,
    default_generator,
    orders,
    splitmix,
    splitmix_array,
    stream,
    torch_stream,
)


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
    first = {"init": 1, "sample": 2, "batches": 3, "augment": 4, "model": 5, "probe": 6, "evaluate": 7}
    assert {
        **first,
        "updates": 8,
        "answers": 9,
        "aggregate": 10,
        "stragglers": 11,
        "clock": 12,
        "calibrate": 15,
    } == PURPOSES
    assert stream(0, "sample", 1).integers(0, 1000, 4).tolist() == [967, 518, 322, 831]
    assert torch_stream(0, "augment", 1, 2).initial_seed() == 5109693598521095404


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


def test_splitmix_is_the_published_one() -> None:
    # The first outputs from the state 0, as in the reference implementation of the xoshiro authors.
    assert (splitmix(0), splitmix(STRIDE)) == (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4)


def test_splitmix_of_an_array_is_that_of_its_elements() -> None:
    states = np.array([0, 1, 2**63, 2**64 - 1, STRIDE], np.uint64)
    assert splitmix_array(states).tolist() == [splitmix(int(state)) for state in states]


def test_orders_are_sorted_keys_of_a_hash() -> None:
    seed, round, client, epoch, count = 2**70 + 5, 3, -1, 2, 9
    state = 0
    for part in (seed % 2**64, PURPOSES["batches"], round, epoch, client % 2**64):
        state = splitmix(state ^ part)
    keys = [splitmix((state + i * STRIDE) % 2**64) for i in range(1, count + 1)]
    expected = sorted(range(count), key=keys.__getitem__)
    assert orders(seed, round, np.array([client]), epoch, count)[0].tolist() == expected


def test_every_order_is_as_likely_as_any_other() -> None:
    found = orders(0, 1, np.arange(24_000), 0, 4)
    numbers = dict.fromkeys(itertools.permutations(range(4)), 0)
    for order in found:
        numbers[tuple(order.tolist())] += 1
    # Chi-square with 23 degrees of freedom: above 50 once in a thousand.
    assert sum((count - 1000) ** 2 / 1000 for count in numbers.values()) < 50


def test_orders_of_neighbours_have_nothing_in_common() -> None:
    apart = [orders(0, 1, np.arange(2000), 0, 10), orders(0, 1, np.arange(2000), 1, 10)]
    apart += [orders(0, 2, np.arange(2000), 0, 10), orders(1, 1, np.arange(2000), 0, 10)]
    apart += [orders(0, 1, np.arange(1, 2001), 0, 10)]
    for first, second in itertools.combinations(apart, 2):
        # One position in ten agrees by chance; the deviation of the share is 0.002.
        assert abs((first == second).mean() - 0.1) < 0.01


def test_a_shuffle_goes_from_epoch_to_epoch() -> None:
    shuffle, indices = Shuffle(5, 3, 8), np.arange(100, 120)
    for epoch in range(3):
        expected = indices[orders(5, 3, np.array([8]), epoch, 20)[0]]
        assert (shuffle.permutation(indices) == expected).all()
