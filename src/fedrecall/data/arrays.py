"""Arrays given by users: checked, split into training and test data, and brought into the stored layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrecall.data.transform import Plain, Transform, channels_last, normalised
from fedrecall.errors import InputError

ArrayPair = tuple[Any, Any]  # samples and labels
STREAM = 0x74657374  # "test": keeps this draw apart from other uses of an equal seed
MOST_CLASSES = 100_000  # a larger label is taken for a mistake unless the number of classes is given


@dataclass(frozen=True)
class PreparedArrays:
    """The arrays of a federation, images as (N, H, W, C)."""

    x: np.ndarray
    y: np.ndarray
    test: tuple[np.ndarray, np.ndarray] | None
    ids: np.ndarray | None  # the client id of each training sample
    num_classes: int
    transform: Transform


def prepare_arrays(
    x: Any,
    y: Any,
    *,
    test: ArrayPair | None,
    test_fraction: float | None,
    test_seed: int,
    num_classes: int | None,
    ids: Any,
    transform: Transform | None,
    layout: str,
) -> PreparedArrays:
    """Check the arrays of `Federation.from_arrays`, draw the test set, and infer what is not given."""
    x, y = checked(x, y, num_classes, "training")
    ids = None if ids is None else as_array(ids, "client ids")
    if test_fraction is not None:
        if test is not None:
            raise InputError("test and test_fraction are both given; they exclude each other")
        kept, drawn = split_off(len(y), test_fraction, test_seed, key="test_fraction")
        if ids is not None and len(ids) == len(y):  # otherwise the partition says what is wrong
            ids = ids[kept]
        x, y, test = x[kept], y[kept], (x[drawn], y[drawn])
    tested = checked(*test, num_classes, "test") if test is not None else None
    if len(y) > 1 and y.min() == y.max():
        raise InputError(f"the training labels have one class only, {int(y[0])}; at least two were expected")
    if num_classes is None:
        num_classes = 1 + max(int(labels.max()) for labels in (y, *(tested or ())[1:]))
        if num_classes > MOST_CLASSES:
            raise InputError(f"a label is {num_classes - 1}; say num_classes if there are that many classes")
    if tested is not None and (tested[0].shape[1:], tested[0].dtype) != (x.shape[1:], x.dtype):
        raise InputError(
            f"a training sample is {x.dtype} of shape {x.shape[1:]}, "
            f"but a test sample {tested[0].dtype} of shape {tested[0].shape[1:]}"
        )
    images = x.dtype == np.uint8 and x.ndim in (3, 4) and not isinstance(transform, Plain)
    if images:
        x = channels_last(x, layout)
        tested = (channels_last(tested[0], layout), tested[1]) if tested is not None else None
    if transform is None:
        transform = normalised(x) if images else Plain()
    return PreparedArrays(x, y, tested, ids, num_classes, transform)


def join_clients(
    clients: Sequence[ArrayPair], num_classes: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Concatenate one (samples, labels) pair per client; return samples, labels and the client of each sample."""
    if not clients:
        raise InputError("there are no clients; a list of (samples, labels) pairs was expected")
    pairs = [checked(x, y, num_classes, f"client {k}") for k, (x, y) in enumerate(clients)]
    shapes = {x.shape[1:]: k for k, (x, _) in reversed(list(enumerate(pairs)))}
    if len(shapes) > 1:
        found = ", ".join(f"{shape} at client {k}" for shape, k in sorted(shapes.items(), key=lambda s: s[1]))
        raise InputError(f"the clients' samples differ in shape: {found}")
    x, y = (np.concatenate(parts) for parts in zip(*pairs))
    return x, y, np.repeat(np.arange(len(pairs)), [len(labels) for _, labels in pairs])


def split_off(
    count: int, fraction: float, seed: int, key: str = "data.test_fraction"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the training samples and of the drawn test samples, both ascending."""
    if not 0 < fraction < 1:
        raise InputError(f"{key} is {fraction}; it must be above 0 and below 1")
    if count < 2:
        raise InputError("there is only one sample, too few for training and test")
    drawn = min(max(round(count * fraction), 1), count - 1)
    order = np.random.default_rng(np.random.SeedSequence([seed, STREAM])).permutation(count)
    return np.sort(order[drawn:]), np.sort(order[:drawn])


def checked(x: object, y: object, num_classes: int | None, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return samples and labels as arrays, or raise an `InputError` that says what is wrong with them."""
    samples, labels = as_array(x, f"{what} samples"), as_array(y, f"{what} labels")
    if labels.ndim != 1:
        raise InputError(f"the {what} labels have shape {labels.shape}; one label per sample was expected")
    if samples.ndim == 0:
        raise InputError(f"the {what} samples are a single number; an array of samples was expected")
    if len(samples) != len(labels):
        raise InputError(f"there are {len(samples)} {what} samples but {len(labels)} {what} labels")
    if len(labels) == 0:
        raise InputError(f"there are no {what} samples")
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"the {what} labels are {labels.dtype}; whole numbers from 0 were expected")
    if samples.dtype.kind not in "fiub":
        raise InputError(f"the {what} samples are {samples.dtype}; numbers were expected")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (num_classes is not None and high >= num_classes):
        wrong = low if low < 0 else high
        raise InputError(
            f"a {what} label is {wrong}; labels from 0 to {(num_classes or high + 1) - 1} were expected"
        )
    if samples.dtype.kind == "f":
        check_finite(samples, what)
    return samples, labels


def as_array(values: object, what: str) -> np.ndarray:
    """Return tensors, arrays or lists as a NumPy array."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    try:
        array = np.asanyarray(values)
    except ValueError:  # a ragged list
        array = np.empty(0, object)
    if array.dtype.kind == "O" and what != "client ids":
        raise InputError(f"the {what} do not form an array of numbers; samples of one shape were expected")
    return array


def check_finite(samples: np.ndarray, what: str, chunk: int = 4096) -> None:
    for start in range(0, len(samples), chunk):
        part = samples[start : start + chunk]
        bad = ~np.isfinite(part).reshape(len(part), -1).all(axis=1)
        if bad.any():
            raise InputError(f"{what} sample {start + int(bad.argmax())} has a value that is not finite")
