"""Torch data sets as a federation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fedrecall import Federation, Iid, Images, Natural, Plain
from fedrecall.errors import InputError

IID = Iid(clients=2, validation=0)
random = np.random.default_rng(0)
PIXELS = random.integers(0, 256, (6, 5, 4, 3), np.uint8)


class Items(Dataset[Any]):
    """A map-style data set of these items, which counts how often each is asked for."""

    def __init__(self, *items: Any) -> None:
        self.items, self.asked = items, [0] * len(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        self.asked[i] += 1
        return self.items[i]


def refused(expected: str, train: Any, test: Any = None) -> None:
    with pytest.raises(InputError, match=expected) as caught:
        Federation.from_datasets(train, test, partition=IID)
    assert "\n" not in str(caught.value)


def test_a_tensor_data_set_is_its_tensors() -> None:
    x, y = torch.randn(6, 3), torch.arange(6) % 2
    federation = Federation.from_datasets(TensorDataset(x, y), TensorDataset(x[:2], y[:2]), partition=IID)
    np.testing.assert_array_equal(federation.train.x, x.numpy())
    assert federation.train.y.tolist() == y.tolist()
    assert federation.test is not None
    np.testing.assert_array_equal(federation.test.x, x[:2].numpy())
    assert federation.transform == Plain()


def test_every_item_is_read_once() -> None:
    train, test = Items(*((np.ones(2), i % 2) for i in range(4))), Items((np.ones(2), 1))
    Federation.from_datasets(train, test, partition=IID)
    assert (train.asked, test.asked) == ([1] * 4, [1])


def test_the_order_is_the_data_sets() -> None:
    whole = TensorDataset(torch.arange(6.0), torch.arange(6))
    federation = Federation.from_datasets(Subset(whole, [4, 1, 5]), partition=IID, num_classes=6)
    assert federation.train.x.tolist() == [4.0, 1.0, 5.0]
    assert federation.train.y.tolist() == [4, 1, 5]


def test_pil_images_become_channels_last_bytes() -> None:
    items = Items(*((Image.fromarray(pixels), i % 2) for i, pixels in enumerate(PIXELS)))
    federation = Federation.from_datasets(items, partition=IID)
    assert federation.train.x.dtype == np.uint8
    np.testing.assert_array_equal(federation.train.x, PIXELS)
    assert isinstance(federation.transform, Images)


def test_grey_pil_images_have_one_channel() -> None:
    items = Items(*((Image.fromarray(pixels[..., 0]), i % 2) for i, pixels in enumerate(PIXELS)))
    federation = Federation.from_datasets(items, partition=IID)
    np.testing.assert_array_equal(federation.train.x, PIXELS[..., :1])


def test_a_palette_is_looked_up() -> None:
    image = Image.new("P", (4, 5), 1)
    image.putpalette([0, 0, 0, 9, 8, 7])
    federation = Federation.from_datasets(Items((image, 0), (image, 1)), partition=IID)
    assert federation.train.x[0, 0, 0].tolist() == [9, 8, 7]


def test_byte_tensors_are_images_with_their_channels_first() -> None:
    x = torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy())
    federation = Federation.from_datasets(TensorDataset(x, torch.arange(6) % 2), partition=IID, layout="nchw")
    np.testing.assert_array_equal(federation.train.x, PIXELS)


@pytest.mark.parametrize("label", [1, True, np.int64(1), np.array(1), torch.tensor(1), torch.tensor([1])])
def test_any_whole_number_is_a_label(label: Any) -> None:
    federation = Federation.from_datasets(Items((np.ones(2), 0), (np.ones(2), label)), partition=IID)
    assert federation.train.y.tolist() == [0, 1]


def test_the_options_are_those_of_arrays() -> None:
    whole = TensorDataset(torch.arange(6.0), torch.arange(6) % 2)
    federation = Federation.from_datasets(
        whole, partition=Natural(validation=0), ids=["b", "b", "a", "a", "a", "b"], num_classes=7
    )
    assert federation.train_indices(0).tolist() == [2, 3, 4]
    assert federation.num_classes == 7


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (
            [(np.ones(2), 0), (np.ones(3), 1)],
            r"training sample 1 is float64 \(3,\), but the first is float64 \(2,\)",
        ),
        ([(np.ones(2, int), 0), (np.ones(2), 1)], r"training sample 1 is float64 \(2,\), but the first is int64"),
        (
            [(Image.new("RGB", (4, 5)), 0), (Image.new("L", (4, 5)), 0)],
            r"training sample 1 is uint8 \(5, 4\), but the first is uint8 \(5, 4, 3\)",
        ),
        ([(np.ones(2), 0), (np.ones(2), 1.5)], r"training item 1 is \(.*1.5\); a sample and a whole number"),
        ([(np.ones(2), "cat")], r"training item 0 is \(.*'cat'\); a sample and a whole number were expected"),
        ([(np.ones(2), 10**30)], "training item 0 is .*; a sample and a whole number were expected"),
        ([{"x": 1, "y": 2}], "training item 0 is {'x': 1, 'y': 2}; a sample and a whole number were expected"),
        ([(np.ones(2),)], "training item 0 is .*; a sample and a whole number were expected"),
        ([5], "training item 0 is 5; a sample and a whole number were expected"),
        ([("text", 1)], "the training samples are <U4; numbers were expected"),
        ([], "there are no training samples"),
    ],
)
def test_a_bad_item_is_named(items: list[Any], expected: str) -> None:
    refused(expected, Items(*items))


def test_bad_test_data_are_called_so() -> None:
    good = Items((np.ones(2), 0), (np.ones(2), 1))
    refused(r"test sample 1 is float64 \(3,\)", good, Items((np.ones(2), 0), (np.ones(3), 0)))


def test_a_stream_is_no_map_style_data_set() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from ()

    refused("the training data have no length; a map-style Dataset was expected", Stream())


def test_an_error_of_the_data_set_itself_is_left_as_it_is() -> None:
    class Broken(Items):
        def __getitem__(self, i: int) -> Any:
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        Federation.from_datasets(Broken(1), partition=IID)
