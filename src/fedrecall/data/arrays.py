"""Arrays given by users: checked, split into training and test data, and brought into the stored layout."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrecall.data.transform import Plain, Transform, channels_last, normalised
from fedrecall.display import printable
from fedrecall.errors import InputError, Note, short_repr

ArrayPair = tuple[Any, Any]  # samples and labels
CheckedPair = tuple[np.ndarray, np.ndarray]  # the same, checked
STREAM = 0x74657374  # "test": keeps this draw apart from other uses of an equal seed
PAIRS = "a list of (samples, labels) pairs, or a dictionary of them with the clients' names,"
MOST_CLASSES = 100_000  # a larger label is taken for a mistake unless the number of classes is given


def draw_test(
    x: np.ndarray, y: np.ndarray, ids: np.ndarray | None, fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, CheckedPair]:
    """Return the samples, labels and ids that remain for training, and the drawn test set."""
    kept, drawn = split_off(len(y), fraction, seed, key="test_fraction")
    if ids is not None and len(ids) == len(y):  # otherwise the partition says what is wrong
        ids = ids[kept]
    return x[kept], y[kept], ids, (x[drawn], y[drawn])


def count_classes(y: np.ndarray, test: CheckedPair | None) -> int:
    """Return the number of classes that the largest label of the training and test data implies."""
    count = 1 + max(int(labels.max()) for labels in (y, *(test or ())[1:]))
    if count > MOST_CLASSES:
        raise InputError(f"a label is {count - 1}; say num_classes if there are that many classes")
    return count


def note_unused_zero(count: int, key: str, *labels: np.ndarray) -> None:
    """Warn if labels seem to count from 1: then class 0 has no samples, and the model one output too many."""
    lowest = min(int(part.min()) for part in labels)
    if lowest > 0:
        empty = "class 0 has" if lowest == 1 else f"classes 0 to {lowest - 1} have"
        warnings.warn(
            f"the labels start at {lowest}, so {empty} no sample: subtract {lowest} from the labels, or say "
            f"{key}={count} if this is meant",
            Note,
            stacklevel=3,
        )


def as_stored(
    x: np.ndarray, test: CheckedPair | None, transform: Transform | None, layout: str
) -> tuple[np.ndarray, CheckedPair | None, Transform]:
    """Return the training samples and the test set, images as (N, H, W, C), and their transform."""
    if test is not None and (test[0].shape[1:], test[0].dtype) != (x.shape[1:], x.dtype):
        raise InputError(
            f"a training sample is {x.dtype} of shape {x.shape[1:]}, "
            f"but a test sample {test[0].dtype} of shape {test[0].shape[1:]}"
        )
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or isinstance(transform, Plain):
        return x, test, Plain() if transform is None else transform
    x = channels_last(x, layout)
    if test is not None:
        test = channels_last(test[0], layout), test[1]
    return x, test, normalised(x) if transform is None else transform


def join_clients(
    clients: Sequence[ArrayPair] | Mapping[str, ArrayPair], num_classes: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Concatenate one (samples, labels) pair per client; return samples, labels and the client of each sample."""
    if not isinstance(clients, Sequence | Mapping):
        raise InputError(f"clients is {description_of(clients)}; {PAIRS} was expected")
    if not clients:
        raise InputError(f"there are no clients; {PAIRS} was expected")
    named = isinstance(clients, Mapping)
    given = clients.items() if isinstance(clients, Mapping) else enumerate(clients)
    pairs = []
    for key, pair in given:
        name = f"client {printable(str(key))!r}" if named else f"client {key}"
        if not isinstance(pair, Sequence) or len(pair) != 2:  # a single array has no labels
            raise InputError(f"{name} is {description_of(pair)}; a pair (samples, labels) was expected")
        pairs.append(checked(*pair, num_classes, name))
    shapes = {x.shape[1:]: k for k, (x, _) in reversed(list(enumerate(pairs)))}
    if len(shapes) > 1:
        found = ", ".join(f"{shape} at client {k}" for shape, k in sorted(shapes.items(), key=lambda s: s[1]))
        raise InputError(f"the clients' samples differ in shape: {found}")
    x, y = (np.concatenate(parts) for parts in zip(*pairs))
    return x, y, np.repeat(np.arange(len(pairs)), [len(labels) for _, labels in pairs])


def description_of(value: Any) -> str:
    """Return in words what was given in place of samples and labels, without its content."""
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return short_repr(value)


def split_off(count: int, fraction: float, seed: int, key: str = "data.test_fraction") -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the training samples and of the drawn test samples, both ascending."""
    if not 0 < fraction < 1:
        raise InputError(f"{key} is {fraction}; it must be above 0 and below 1")
    if count < 2:
        raise InputError("there is only one sample, too few for training and test")
    drawn = min(max(round(count * fraction), 1), count - 1)
    order = np.random.default_rng(np.random.SeedSequence([seed, STREAM])).permutation(count)
    return np.sort(order[drawn:]), np.sort(order[:drawn])


def checked(x: object, y: object, num_classes: int | None, what: str) -> CheckedPair:
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
        raise InputError(f"a {what} label is {wrong}; labels from 0 to {(num_classes or high + 1) - 1} were expected")
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
