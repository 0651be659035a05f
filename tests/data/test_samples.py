"""Samples in mapped files: any shape and dtype, copied out in batches, and bad arrays told apart."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedrecall.data.arrays import checked
from fedrecall.data.samples import Samples, mapped_file
from fedrecall.errors import InputError

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
SHAPES = [(), (3,), (4, 5), (4, 5, 3), (2, 3, 4, 5)]


def written(folder: Path, x: np.ndarray, y: np.ndarray | None = None) -> Samples:
    return Samples.write(folder, "train", x, np.arange(len(x)) if y is None else y)


def numbers(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_as_it_was(dtype: str, tmp_path: Path) -> None:
    x = numbers((7, 3), dtype)
    batch, _ = written(tmp_path, x).gather(torch.tensor([6, 0, 6]))
    assert batch.numpy().dtype == x.dtype
    assert (batch.numpy() == x[[6, 0, 6]]).all()


@pytest.mark.skipif(sys.platform != "linux", reason="pages are mapped at once on Linux only")
def test_all_pages_of_a_file_are_mapped_at_once(tmp_path: Path) -> None:
    import resource

    x = numbers((2000, 4096))  # 8000 pages
    samples = written(tmp_path, x)
    samples.map_pages()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert samples.x.sum() == x.sum()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_comes_back_as_it_was(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = numbers((7, *shape))
    batch, _ = written(tmp_path, x).gather(torch.arange(7))
    assert (batch.numpy() == x).all()


@pytest.mark.parametrize("order", ["reversed", "transposed", "every second"])
def test_an_array_with_strides_comes_back_as_it_was(order: str, tmp_path: Path) -> None:
    base = numbers((8, 8))
    x = {"reversed": base[::-1], "transposed": base.T, "every second": base[::2, ::2]}[order]
    batch, _ = written(tmp_path, x).gather(torch.arange(len(x)))
    assert (batch.numpy() == x).all()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64"])
def test_labels_are_int64_whatever_they_were(dtype: str, tmp_path: Path) -> None:
    samples = written(tmp_path, numbers((4, 2)), np.array([3, 0, 2, 1], dtype))
    _, target = samples.gather(torch.tensor([2, 0]))
    assert target.dtype == torch.int64
    assert target.tolist() == [2, 3]


def test_the_length_is_the_number_of_samples(tmp_path: Path) -> None:
    assert len(written(tmp_path, numbers((7, 3)))) == 7


def test_writing_into_a_batch_does_not_change_the_samples(tmp_path: Path) -> None:
    x = numbers((7, 3))
    samples = written(tmp_path, x)
    batch, target = samples.gather(torch.arange(7))
    batch.fill_(-1), target.fill_(-1)
    again, labels = samples.gather(torch.arange(7))
    assert (again.numpy() == x).all()
    assert labels.tolist() == list(range(7))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("indices", [[0], [1], [3, 4, 5], [6, 2, 2]])
def test_a_batch_starts_on_a_64_byte_boundary(dtype: str, indices: list[int], tmp_path: Path) -> None:
    batch, target = written(tmp_path, numbers((7, 3), dtype)).gather(torch.tensor(indices))
    assert batch.data_ptr() % 64 == 0
    assert target.data_ptr() % 64 == 0
    assert batch.is_contiguous()


def test_a_pickled_object_opens_the_same_files(tmp_path: Path) -> None:
    samples = written(tmp_path, numbers((7, 3)))
    again = pickle.loads(pickle.dumps(samples))
    assert (again.x_path, again.y_path) == (samples.x_path, samples.y_path)
    assert (again.x == samples.x).all()
    assert (again.y == samples.y).all()


def test_a_pickled_object_does_not_carry_the_data(tmp_path: Path) -> None:
    samples = written(tmp_path, numbers((5000, 30)))
    assert len(pickle.dumps(samples)) < 1000


def test_a_mapped_file_is_used_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "mine.npy"
    np.save(path, numbers((7, 3)))
    (tmp_path / "run").mkdir()
    samples = written(tmp_path / "run", np.load(path, mmap_mode="r"))
    assert samples.x_path == path
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["train_y.npy"]


@pytest.mark.parametrize("part", [np.s_[1:], np.s_[::-1], np.s_[:, :2], np.s_[..., None]])
def test_a_part_of_a_mapped_file_is_copied(part: object, tmp_path: Path) -> None:
    path = tmp_path / "mine.npy"
    np.save(path, numbers((7, 3)))
    x = np.load(path, mmap_mode="r")[part]
    samples = written(tmp_path, x)
    assert samples.x_path != path
    assert (samples.gather(torch.arange(len(x)))[0].numpy() == x).all()


def test_a_mapped_file_seen_as_another_dtype_is_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", numbers((7, 3)))
    assert mapped_file(np.load(tmp_path / "mine.npy", mmap_mode="r").view("int32")) is None


def test_a_raw_mapped_file_named_npy_is_copied(tmp_path: Path) -> None:
    x = np.memmap(tmp_path / "mine.npy", "float32", "w+", shape=(7, 3))  # writes no header
    x[:] = numbers((7, 3))
    samples = written(tmp_path, x)
    assert (samples.x == x).all()


def test_a_mapped_array_changed_in_memory_keeps_its_changes(tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", np.ones((7, 3), np.float32))
    x = np.load(tmp_path / "mine.npy", mmap_mode="c")
    x -= 1  # normalised "in place"; a copy-on-write map does not write it back
    assert (written(tmp_path, x).x == 0).all()


def test_good_arrays_pass_unchanged() -> None:
    x, y = numbers((3, 2)), np.array([0, 1, 2])
    samples, labels = checked(x, y, 3, "training")
    assert samples is x
    assert labels is y


def test_tensors_and_lists_become_arrays() -> None:
    x, y = checked(torch.ones(2, 3, requires_grad=True), [0, 1], None, "training")
    assert isinstance(x, np.ndarray)
    assert y.tolist() == [0, 1]


def with_nan(at: int, length: int) -> np.ndarray:
    x = np.zeros((length, 2), np.float32)
    x[at, 1] = np.nan
    return x


FOUR = np.zeros((4, 2), np.float32)
BAD = {
    "lengths differ": (FOUR, [0, 1], "4 test samples but 2 test labels"),
    "labels in columns": (FOUR, np.zeros((4, 2), int), r"labels have shape \(4, 2\); one label per sample"),
    "one label": (FOUR, np.int64(3), r"labels have shape \(\)"),
    "float labels": (FOUR, np.zeros(4), "labels are float64; whole numbers"),
    "bool labels": (FOUR, np.zeros(4, bool), "labels are bool; whole numbers"),
    "text labels": (FOUR, ["a", "b", "c", "d"], "labels are <U1; whole numbers"),
    "label too large": (FOUR, [0, 1, 5, 2], "a test label is 5; labels from 0 to 2"),
    "label negative": (FOUR, [0, -1, 1, 2], "a test label is -1; labels from 0 to 2"),
    "not a number": (with_nan(2, 4), [0, 1, 2, 0], "test sample 2 has a value that is not finite"),
    "infinite": (np.array([0.0, 1.0, 2.0, -np.inf]), [0, 1, 2, 0], "test sample 3 has a value"),
    "not a number, far on": (with_nan(4100, 5000), [0] * 5000, "test sample 4100 has a value"),
    "objects": (np.array([None, 1, 2, 3], object), [0, 1, 2, 0], "test samples do not form an array"),
    "object labels": (FOUR, np.array([0, 1, None, 2], object), "test labels do not form an array"),
    "text": (["a", "b"], [0, 1], "samples are <U1; numbers were expected"),
    "complex": (FOUR.astype(complex), [0, 1, 2, 0], "samples are complex128; numbers"),
    "empty": (np.zeros((0, 2)), np.zeros(0, int), "there are no test samples"),
    "empty lists": ([], [], "there are no test samples"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_refused_with_the_reason(case: str) -> None:
    x, y, reason = BAD[case]
    with pytest.raises(InputError, match=reason):
        checked(x, y, 3, "test")


def test_without_a_number_of_classes_any_label_from_0_is_good() -> None:
    assert checked(FOUR, [0, 1, 500, 2], None, "training")[1].max() == 500


def test_a_ragged_list_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match="samples of one shape"):
        checked([[1.0], [1.0, 2.0]], [0, 1], 2, "training")


def test_a_single_number_in_place_of_samples_is_refused() -> None:
    with pytest.raises(InputError):
        checked(np.float32(3), [0], 2, "training")


@pytest.mark.parametrize("dtype", [">f4", ">i4"])
def test_big_endian_samples_come_back_as_they_were(dtype: str, tmp_path: Path) -> None:
    x, y = checked(numbers((7, 3), dtype), np.arange(7), None, "training")
    assert (written(tmp_path, x, y).gather(torch.arange(7))[0].numpy() == x).all()
