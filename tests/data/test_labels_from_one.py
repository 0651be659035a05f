"""Labels that count from 1 are said in a sentence, wherever the number of classes is not given."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from fedrecall import Federation, Iid
from fedrecall.data.sources import npz
from fedrecall.errors import Note

X = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
Y = 1 + np.arange(40) % 2
SAID = "the labels start at 1, so class 0 has no sample: subtract 1 from the labels, or say {}=3 if this is meant"


def test_arrays(recwarn) -> None:
    with pytest.warns(Note) as notes:
        federation = Federation.from_arrays(X, Y, test=(X, Y), partition=Iid(clients=4))
    assert [str(note.message) for note in notes] == [SAID.format("num_classes")]
    assert federation.num_classes == 3
    with pytest.warns(Note, match="the labels start at 4, so classes 0 to 3 have no sample: subtract 4"):
        Federation.from_clients([(X, Y + 3)])


def test_what_is_meant_is_not_noted() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Federation.from_arrays(X, Y, partition=Iid(clients=4), num_classes=3)
        Federation.from_arrays(X, Y, test=(X, Y - 1), partition=Iid(clients=4))  # class 0 is in the test data
        Federation.from_arrays(X, Y - 1, partition=Iid(clients=4))


def test_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x_train=X, y_train=Y, x_test=X, y_test=Y)
    with pytest.warns(Note) as notes:
        npz(str(tmp_path / "t.npz"))
    assert [str(note.message) for note in notes] == [SAID.format("data.classes")]
