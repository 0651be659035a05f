"""The shipped part of Fashion-MNIST against its checksum and, where Debian's package is, the originals."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import pytest

from fedrecall import data
from fedrecall.data.sources import fashion_mini

TOOL = Path(__file__).resolve().parents[2] / "tools" / "make_fashion_mini.py"
FILE = Path(data.__file__).with_name("fashion_mini.npz")


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("make_fashion_mini", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data():
    return fashion_mini()


def test_shapes_and_types(data):
    assert (data.x_train.shape, data.x_train.dtype) == ((10_000, 28, 28, 1), np.uint8)
    assert (data.x_test.shape, data.x_test.dtype) == ((2_000, 28, 28, 1), np.uint8)
    assert (data.y_train.shape, data.y_train.dtype) == ((10_000,), np.int64)
    assert (data.y_test.shape, data.y_test.dtype) == ((2_000,), np.int64)


def test_classes_are_balanced_and_named(data):
    assert np.bincount(data.y_train).tolist() == [1000] * 10
    assert np.bincount(data.y_test).tolist() == [200] * 10
    assert data.num_classes == len(data.class_names) == 10
    assert (data.class_names[0], data.class_names[9]) == ("T-shirt/top", "Ankle boot")


def test_mean_and_std_are_those_of_the_training_images(data):
    pixels = data.x_train / 255
    assert data.transform.mean == (round(pixels.mean(), 4),)
    assert data.transform.std == (round(pixels.std(), 4),)


def test_nothing_is_augmented(data):
    assert (data.transform.crop_padding, data.transform.flip) == (0, False)


def test_the_file_is_below_6_megabytes():
    assert FILE.stat().st_size < 6_000_000


def test_the_arrays_have_the_recorded_checksum(tool):
    with np.load(FILE, allow_pickle=False) as file:
        arrays = dict(file)
    assert all(array.dtype == np.uint8 for array in arrays.values())
    assert tool.arrays_sha256(arrays) == tool.ARRAYS_SHA256


def test_the_file_does_not_say_when_it_was_made(tool):
    arrays = {"x_train": np.arange(6, dtype=np.uint8)}
    assert tool.npz_bytes(arrays) == tool.npz_bytes(arrays)
    assert tool.npz_bytes(arrays)[10:14] == b"\x00\x00\x21\x00"  # the DOS time 1980-01-01 00:00


@pytest.mark.parametrize(("split", "prefix", "per_class"), [("train", "train", 1000), ("test", "t10k", 200)])
def test_images_are_the_first_of_each_class_of_the_originals(data, tool, split, prefix, per_class):
    images, labels = (tool.DEBIAN / f"{prefix}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    if not images.exists():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    pixels, seen, kept = gzip.decompress(images.read_bytes())[16:], [0] * 10, []
    for i, label in enumerate(gzip.decompress(labels.read_bytes())[8:]):
        seen[label] += 1
        if seen[label] <= per_class:
            kept.append((label, pixels[i * 784 : (i + 1) * 784]))
    assert getattr(data, f"y_{split}").tolist() == [label for label, _ in kept]
    assert getattr(data, f"x_{split}").tobytes() == b"".join(image for _, image in kept)
