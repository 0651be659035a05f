"""Splits of others: the forms that they come in, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedrecall import Federation, InputError, SplitFile
from fedrecall.api.execute import load_federation
from fedrecall.data.partition import describe_partition
from fedrecall.recipe.recipe import Recipe

SPLIT = [[7, 2, 0, 5], [3, 1, 9]]  # samples 4, 6 and 8 are nobody's
FORMS = {
    "a list a line": "[7, 2, 0, 5]\n[3, 1, 9]\n",
    "numbers a line": "7 2 0 5\n\n3 1 9",
    "JSON": "[[7, 2, 0, 5], [3, 1, 9]]",
    "JSON over many lines": "[\n [\n  7,\n  2,\n 0, 5\n ],\n [3, 1, 9]\n]",
    "JSON by client": '{"1": [3, 1, 9], "0": [7, 2, 0, 5]}',
    "a dictionary as Python prints it": "{0: [7, 2, 0, 5], 1: [3, 1, 9]}",  # FedACG's
}
LABELS = np.arange(10) % 2


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_clients_their_samples(form: str, tmp_path: Path) -> None:
    file = tmp_path / "split.txt"
    file.write_text(FORMS[form])
    assignment = SplitFile(str(file), validation=0.0).assign(LABELS, 2)
    assert assignment.client.tolist() == [0, 1, 0, 1, -1, 0, -1, 0, -1, 1]
    assert not assignment.validation.any()


def test_validation_and_held_out_clients_are_those_of_other_partitions(tmp_path: Path) -> None:
    file = tmp_path / "split.txt"
    file.write_text("\n".join(str(list(range(start, start + 20))) for start in (0, 20, 40)))
    labels = np.arange(60) % 3
    first = SplitFile(str(file), validation=0.25, seed=1, held_out=1).assign(labels, 3)
    assert [int(first.validation[k * 20 : k * 20 + 20].sum()) for k in range(3)] == [5, 5, 0]
    again = SplitFile(str(file), validation=0.25, seed=1, held_out=1).assign(labels, 3)
    other = SplitFile(str(file), validation=0.25, seed=2, held_out=1).assign(labels, 3)
    assert first.digest() == again.digest() != other.digest()


def test_a_recipe_finds_the_file_below_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "split.txt").write_text("\n".join(str([k, k + 10, k + 20]) for k in range(5)))
    tree = {"data": "fashion_mini", "partition": {"name": "split_file", "path": "split.txt", "validation": 0.34}}
    federation = load_federation(Recipe(**tree, execution={"data": str(tmp_path)}))
    assert len(federation) == 5
    held = np.concatenate([federation.train_indices(3), federation.validation_indices(3)])
    assert sorted(held.tolist()) == [3, 13, 23]
    assert len(federation.validation_indices(3)) == 1
    assert "folder" not in Recipe(**tree).partition


def test_its_description_has_a_digest_of_the_file_and_no_place(tmp_path: Path) -> None:
    file = tmp_path / "split.txt"
    file.write_text(FORMS["JSON"])
    described = describe_partition(SplitFile(str(file), folder=str(tmp_path)))
    file.write_text(FORMS["numbers a line"])
    assert described["name"] == "split_file"
    assert described["folder"] is None
    assert described["sha256"] != describe_partition(SplitFile(str(file)))["sha256"]


REFUSED = {
    "": "it is empty",
    "[[0], []]": "client 1 has no samples",
    "[0]\n[]": "client 1 has no samples",
    "[[0, 1], [10]]": "client 1 has sample 10, but the training data have 10; numbers from 0 to 9 were expected",
    "[[0, -1]]": "client 0 has sample -1",
    "[[0, 1], [2, 1]]": "sample 1 is listed for clients 0 and 1; one client for each was expected",
    "[[0, 1, 0]]": "sample 0 is listed for client 0 twice",
    "{0: [1], 2: [3]}": "it has 2 clients, but none with number 1; numbers from 0 were expected",
    "[[0, 1.5]]": "a list of sample numbers for each client was expected",
    "[[true]]": "a list of sample numbers for each client was expected",
    "[0, 1]\n[2, x]": "it begins with '[0, 1]\\n[2, x]'; a list of sample numbers for each client was expected",
    "__import__('os').system('true')": "a list of sample numbers for each client was expected",
    "[[99999999999999999999999]]": "split.txt",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_bad_file_is_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    file = tmp_path / "split.txt"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        SplitFile(str(file)).assign(LABELS, 2)
    assert str(refused.value).startswith(f"the split file '{file}'")
    assert REFUSED[text] in str(refused.value)


def test_what_is_no_text_or_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "split.txt").write_bytes(b"\x80\x04\x95")  # a pickle
    with pytest.raises(InputError, match="it is not text in UTF-8"):
        SplitFile(str(tmp_path / "split.txt")).assign(LABELS, 2)
    with pytest.raises(InputError, match=r"partition\.path is 'none', but there is no such file"):
        SplitFile("none").assign(LABELS, 2)
    with pytest.raises(InputError, match="the split file"):
        SplitFile(str(tmp_path)).assign(LABELS, 2)


class Named:
    """A data set with names as torchvision has them."""

    classes = ("cat", "dog")

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return np.full(3, i, np.float32), i % 2


class Part:
    def __init__(self, dataset: Named) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return self.dataset[i]


@pytest.mark.parametrize("dataset", [Named(), Part(Named())])
def test_the_names_of_a_torch_data_set_are_kept_and_shown(dataset: object) -> None:
    federation = Federation.from_datasets(dataset, partition={"name": "iid", "clients": 2})
    assert federation.class_names == ("cat", "dog")
    assert "2 (cat, dog)" in repr(federation)
    own = Federation.from_datasets(dataset, partition={"name": "iid", "clients": 2}, class_names=("a", "b"))
    assert own.class_names == ("a", "b")
