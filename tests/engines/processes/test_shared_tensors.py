"""Tensors through a memory-mapped file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedrecall.engines.processes.shared_tensors import SharedTensorReader, SharedTensorWriter


def test_tensors_come_out_as_they_went_in(tmp_path) -> None:
    tensors = {"w": torch.randn(7), "i": torch.arange(3), "empty": torch.zeros(0), "m": torch.randn(2, 3).double()}
    taken = SharedTensorReader(tmp_path).read(SharedTensorWriter(tmp_path, "a").write(tensors))
    assert list(taken) == list(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(taken[name], tensor)
        assert taken[name].dtype == tensor.dtype


def test_every_tensor_starts_on_a_64_byte_boundary(tmp_path) -> None:
    taken = SharedTensorReader(tmp_path).read(
        SharedTensorWriter(tmp_path, "a").write({"x": torch.ones(5), "y": torch.ones(3), "z": torch.ones(1)})
    )
    assert all(tensor.data_ptr() % 64 == 0 for tensor in taken.values())


def test_a_file_that_must_grow_is_mapped_again(tmp_path) -> None:
    writer, reader = SharedTensorWriter(tmp_path, "a"), SharedTensorReader(tmp_path)
    reader.read(writer.write({"x": torch.ones(2)}))
    large = torch.randn(100_000)
    assert torch.equal(reader.read(writer.write({"x": large}))["x"], large)


def test_the_next_write_replaces_the_last(tmp_path) -> None:
    writer, reader = SharedTensorWriter(tmp_path, "a"), SharedTensorReader(tmp_path)
    first = reader.read(writer.write({"x": torch.zeros(4)}))["x"]
    writer.write({"x": torch.ones(4)})
    assert first.tolist() == [1, 1, 1, 1]


def mapped_files(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks for mapped files in /proc")
def test_a_file_that_has_grown_leaves_nothing_of_the_smaller_one(tmp_path) -> None:
    writer, reader = SharedTensorWriter(tmp_path, "a"), SharedTensorReader(tmp_path)
    for size in (1, 10_000, 20_000, 30_000):
        taken = reader.read(writer.write({"x": torch.ones(size)}))
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [120_000]
    assert len(mapped_files(tmp_path)) == 2  # of the writer and of the reader
    assert taken["x"].sum() == 30_000


def test_tensors_stay_valid_when_their_writer_is_dropped(tmp_path) -> None:
    reader = SharedTensorReader(tmp_path)
    kept = reader.read(SharedTensorWriter(tmp_path, "a-1").write({"x": torch.arange(5)}))["x"]
    reader.read(SharedTensorWriter(tmp_path, "a-2").write({"x": torch.zeros(5)}))
    reader.drop("a-1")
    assert [path.name for path in tmp_path.iterdir()] == ["a-2-1"]
    assert kept.tolist() == [0, 1, 2, 3, 4]
