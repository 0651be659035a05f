"""Tensors through a memory-mapped file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedrecall.engines.processes.shared_tensors import Box, Boxes


def test_tensors_come_out_as_they_went_in(tmp_path) -> None:
    tensors = {"w": torch.randn(7), "i": torch.arange(3), "empty": torch.zeros(0), "m": torch.randn(2, 3).double()}
    taken = Boxes(tmp_path).take(Box(tmp_path, "a").put(tensors))
    assert list(taken) == list(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(taken[name], tensor)
        assert taken[name].dtype == tensor.dtype


def test_every_tensor_starts_on_a_64_byte_boundary(tmp_path) -> None:
    taken = Boxes(tmp_path).take(
        Box(tmp_path, "a").put({"x": torch.ones(5), "y": torch.ones(3), "z": torch.ones(1)})
    )
    assert all(tensor.data_ptr() % 64 == 0 for tensor in taken.values())


def test_a_box_that_must_grow_is_read_again(tmp_path) -> None:
    box, boxes = Box(tmp_path, "a"), Boxes(tmp_path)
    boxes.take(box.put({"x": torch.ones(2)}))
    large = torch.randn(100_000)
    assert torch.equal(boxes.take(box.put({"x": large}))["x"], large)


def test_the_next_put_replaces_the_last(tmp_path) -> None:
    box, boxes = Box(tmp_path, "a"), Boxes(tmp_path)
    first = boxes.take(box.put({"x": torch.zeros(4)}))["x"]
    box.put({"x": torch.ones(4)})
    assert first.tolist() == [1, 1, 1, 1]


def mapped_files(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks for mapped files in /proc")
def test_a_box_that_has_grown_leaves_nothing_of_the_smaller_one(tmp_path) -> None:
    box, boxes = Box(tmp_path, "a"), Boxes(tmp_path)
    for size in (1, 10_000, 20_000, 30_000):
        taken = boxes.take(box.put({"x": torch.ones(size)}))
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [120_000]
    assert len(mapped_files(tmp_path)) == 2  # of who puts and who takes
    assert taken["x"].sum() == 30_000


def test_what_was_taken_stays_good_when_its_box_is_dropped(tmp_path) -> None:
    boxes = Boxes(tmp_path)
    kept = boxes.take(Box(tmp_path, "a-1").put({"x": torch.arange(5)}))["x"]
    boxes.take(Box(tmp_path, "a-2").put({"x": torch.zeros(5)}))
    boxes.drop("a-1")
    assert [path.name for path in tmp_path.iterdir()] == ["a-2-1"]
    assert kept.tolist() == [0, 1, 2, 3, 4]
