"""The sentences about lost workers and nodes."""

from __future__ import annotations

from fedrecall.engines.ray.losses import Losses, NodePlace

FIRST, SECOND = NodePlace("aaaaaaaa11", "10.0.0.2"), NodePlace("bbbbbbbb22", "10.0.0.3")


def test_a_round_is_one_sentence_with_its_workers_and_clients() -> None:
    losses = Losses()
    losses.worker(3, FIRST, 2)
    losses.worker(3, FIRST, 5)
    losses.worker(3, SECOND, 0)
    losses.updates(3, 16)
    losses.worker(8, SECOND, 1)
    assert losses.sentences() == [
        "round 3 lost 2 workers on the node 10.0.0.2 (aaaaaaaa) and 1 worker on the node 10.0.0.3 (bbbbbbbb); "
        "23 clients were run again by others",
        "round 8 lost 1 worker on the node 10.0.0.3 (bbbbbbbb); 1 client was run again by others",
    ]


def test_a_node_is_said_to_be_lost_once_it_is_known_and_in_its_round() -> None:
    losses = Losses()
    assert not losses.unexplained()
    losses.worker(3, FIRST, 2)
    losses.explain([])  # so far, the node answers
    assert losses.unexplained() == {FIRST.node}
    assert len(losses.sentences()) == 1
    losses.explain([FIRST.node])
    assert not losses.unexplained()
    assert losses.sentences()[1:] == ["the node 10.0.0.2 (aaaaaaaa) was lost in round 3"]
    losses.worker(5, FIRST, 1)
    losses.explain([FIRST.node])
    assert losses.dead == {FIRST: 3}
