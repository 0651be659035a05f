"""Tables of the user's own, as CSV and as Parquet."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrecall import Federation, Natural
from fedrecall.data.sources import DATASETS, csv, parquet
from fedrecall.data.sources.base import DataSet
from fedrecall.data.transform import Plain
from fedrecall.errors import InputError

TABLE: dict[str, list[Any]] = {
    "who": ["eve", "ann", "ann", "bob", "eve", "bob", "ann", "eve", "bob", "ann"],
    "age": [31, 45, 23, 52, 37, 28, 61, 44, 39, 50],
    "income": [1.5, -2.25, 3e3, 0.0, 4.0, 5.5, 6.0, 7.0, 8.0, 9.0],
    "kind": ["b", "a", "c", "a", "b", "c", "a", "b", "c", "a"],
}
FEATURES = np.stack([TABLE["age"], TABLE["income"]], axis=1).astype(np.float32)

Write = Callable[[str, dict[str, list[Any]]], str]


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDRECALL_DATA", raising=False)


def write_csv(name: str, table: dict[str, list[Any]]) -> str:
    lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values()))]
    Path(name).write_text("\n".join(lines) + "\n")
    return name


def write_parquet(name: str, table: dict[str, list[Any]]) -> str:
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(table), name)
    return name


@pytest.fixture(params=["csv", pytest.param("parquet", marks=pytest.mark.heavy)])
def kind(request: pytest.FixtureRequest) -> tuple[Callable[..., DataSet], Write]:
    """A reader, and what writes its files."""
    return {"csv": (csv, write_csv), "parquet": (parquet, write_parquet)}[request.param]


def lines(text: str) -> str:
    Path("table.csv").write_text(text)
    return "table.csv"


def refused(read: Callable[..., DataSet], expected: str, *words: Any, **options: Any) -> None:
    with pytest.raises(InputError, match=expected) as caught:
        read(*words, **options)
    assert "\n" not in str(caught.value)


# What both read.


def test_a_test_file_holds_the_test_rows(kind: Any) -> None:
    read, write = kind
    write("train", {key: values[:7] for key, values in TABLE.items()})
    write("test", {key: values[7:] for key, values in TABLE.items()})
    data = read("train", "kind", test="test", id="who", standardise=False)
    np.testing.assert_array_equal(data.x_train, FEATURES[:7])
    np.testing.assert_array_equal(data.x_test, FEATURES[7:])
    assert data.x_train.dtype == np.float32
    assert data.y_train.tolist() == [1, 0, 2, 0, 1, 2, 0]  # a, b, c
    assert data.y_test.tolist() == [1, 2, 0]
    assert data.y_train.dtype == np.int64
    assert data.class_names == ("a", "b", "c")
    assert (data.num_classes, data.transform) == (3, Plain())


def test_the_columns_of_the_test_file_may_be_in_another_order_and_need_no_ids(kind: Any) -> None:
    read, write = kind
    write("train", TABLE)
    write("test", {key: TABLE[key] for key in ("income", "kind", "age")})
    data = read("train", "kind", test="test", id="who", standardise=False)
    np.testing.assert_array_equal(data.x_test, FEATURES)


def test_without_a_test_file_a_share_is_drawn_and_nothing_is_lost(kind: Any) -> None:
    read, write = kind
    write("all", TABLE)
    data = read("all", "kind", id="who", test_fraction=0.3, standardise=False)
    assert (len(data.x_train), len(data.x_test)) == (7, 3)
    rows = {(*x, "abc"[y]) for x, y in zip([*data.x_train, *data.x_test], [*data.y_train, *data.y_test])}
    assert rows == {(*x, y) for x, y in zip(FEATURES, TABLE["kind"])}


def test_the_draw_is_a_function_of_its_seed(kind: Any) -> None:
    read, write = kind
    write("all", TABLE)
    first, again, other = (read("all", "kind", features=["age"], seed=seed).x_test for seed in (0, 0, 3))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_columns_are_standardised_by_the_training_rows(kind: Any) -> None:
    read, write = kind
    write("train", {key: values[:7] for key, values in TABLE.items()} | {"constant": [0.1] * 7})
    write("test", {key: values[7:] for key, values in TABLE.items()} | {"constant": [1.1] * 3})
    data = read("train", "kind", test="test", features=["age", "constant"])
    age = FEATURES[:, 0].astype(float)
    np.testing.assert_allclose(data.x_train[:, 0], (age[:7] - age[:7].mean()) / age[:7].std(), rtol=1e-6)
    np.testing.assert_allclose(data.x_test[:, 0], (age[7:] - age[:7].mean()) / age[:7].std(), rtol=1e-6)
    np.testing.assert_allclose(data.x_train[:, 1], 0, atol=1e-7)
    np.testing.assert_allclose(data.x_test[:, 1], 1, rtol=1e-6)


def test_large_numbers_are_standardised_before_they_are_rounded(kind: Any) -> None:
    """Seconds since 1970 differ by less than float32 can tell at that size."""
    read, write = kind
    write("all", {"time": [1.7e9 + i for i in range(10)], "y": [0, 1] * 5})
    assert len(np.unique(np.concatenate([read("all", "y").x_train, read("all", "y").x_test]))) == 10


def test_ids_are_natural_clients_in_their_order(kind: Any) -> None:
    read, write = kind
    write("train", TABLE)
    federation = Federation.from_data(read("train", "kind", test="train", id="who"), Natural(validation=0))
    assert [federation.train_indices(k).tolist() for k in range(3)] == [[1, 2, 6, 9], [3, 5, 8], [0, 4, 7]]


def test_a_row_keeps_its_id_when_others_are_drawn_for_the_test(kind: Any) -> None:
    read, write = kind
    write("all", {"a": list(range(20)), "who": list(range(20)), "y": [0, 1] * 10})
    data = read("all", "y", id="who", standardise=False)
    assert data.ids.tolist() == data.x_train[:, 0].tolist()
    assert len(data.ids) == 16


def test_ids_that_are_numbers_are_in_the_order_of_numbers(kind: Any) -> None:
    read, write = kind
    write("train", TABLE | {"who": [10, 9, 9, 10, 100, 9, 9, 9, 9, 9]})
    assert read("train", "kind", test="train", id="who").ids.tolist() == [1, 0, 0, 1, 2, 0, 0, 0, 0, 0]


def test_whole_numbers_are_labels_as_they_are(kind: Any) -> None:
    read, write = kind
    write("train", TABLE | {"kind": [0, 3, 1, 0, 0, 1, 3, 3, 0, 0]})
    data = read("train", "kind", test="train", features=["age"])
    assert data.y_train.tolist() == [0, 3, 1, 0, 0, 1, 3, 3, 0, 0]
    assert (data.num_classes, data.class_names) == (4, ("0", "1", "2", "3"))
    assert read("train", "kind", test="train", features=["age"], classes=6).num_classes == 6


def test_a_table_of_more_rows_than_are_held_at_a_time(kind: Any) -> None:
    read, write = kind
    write("train", {"a": list(range(10_000)), "y": [i % 7 for i in range(10_000)]})
    data = read("train", "y", test="train", standardise=False)
    assert data.x_train[:, 0].tolist() == list(range(10_000))
    assert data.y_train.tolist() == [i % 7 for i in range(10_000)]


def test_a_table_trains_end_to_end_with_wsm(kind: Any, fedrecall: Any, tmp_path: Path) -> None:
    read, write = kind
    random = np.random.default_rng(0)
    labels = np.arange(300) % 3
    centres = np.array([[100.0, 0.0], [0.0, 0.001], [-100.0, 0.0]])  # columns of unlike size
    x = centres[labels] + random.normal(size=(300, 2)) * [30.0, 0.0003]
    write("table", {"a": x[:, 0].tolist(), "b": x[:, 1].tolist(), "y": [("u", "v", "w")[c] for c in labels]})
    finished = fedrecall(
        *("run", "demo", f"data={read.__name__}", "data.path=table", "data.label=y", "model=mlp"),
        *("model.hidden=[16]", "objective=wsm", "partition.clients=6", "rounds=20", "local.batch_size=8"),
        *("evaluation.test_last=1", "forgetting.every=0", "--engine", "serial", "--json", "--out", "out"),
    )
    assert finished.code == 0, finished.err
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["final_accuracy"] > 0.9


# What both refuse.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"label": "kindd"}, r"table: there is no column 'kindd'; did you mean 'kind'\?"),
        ({"label": "kind", "id": "wo"}, r"table: there is no column 'wo'; did you mean 'who'\?"),
        ({"label": "kind", "features": ["age", "incom"]}, r"there is no column 'incom'; did you mean 'income'\?"),
        (
            {"label": "kind", "features": ["age", "kind"]},
            "the column 'kind' can be the label, the id or a feature",
        ),
        ({"label": "kind", "features": ["age", "age"]}, "the column 'age' can be .*, but not twice"),
        ({"label": "kind", "features": []}, "table: there is no column of numbers beside the labels"),
        ({"label": "kind"}, "table: .*the column 'who' is .*; a finite number was expected .*data.features"),
        (
            {"label": "income", "features": ["age"]},
            "the column 'income': a label is '.*'; whole numbers from 0, or",
        ),
        (
            {"label": "age", "features": ["income"], "classes": 5},
            "a label is 61; labels from 0 to 4 were expected",
        ),
        ({"label": "kind", "id": "who", "classes": 5}, "data.classes is 5, but there are 3 class names"),
        ({"label": "kind", "id": "who", "test_fraction": 1.0}, "data.test_fraction is 1.0; it must be above 0"),
        ({"label": "kind", "id": "who", "test": "none"}, "data.test is 'none', but there is no such file"),
    ],
)
def test_bad_columns_are_named(kind: Any, options: dict[str, Any], expected: str) -> None:
    read, write = kind
    refused(read, expected, write("table", TABLE), **options)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"y": [0, -1, 1]}, "table: the column 'y': a label is -1; whole numbers from 0 were expected"),
        ({"y": [0, 10**12, 1]}, "the column 'y': a label is 1000000000000; if there are .*data.classes"),
        ({"y": [0.5, float("nan"), 1.0]}, "the column 'y': a label is '0.5'"),
        ({"x": [0.0, float("nan"), 1.0]}, "(line 3|row 2): the column 'x' is .*nan.*; a finite number"),
        ({"x": [0.0, 1.0, float("inf")]}, "(line 4|row 3): the column 'x' is .*inf.*; a finite number"),
        ({"x": [0.0, 1e300, 1.0]}, "table: the column 'x' has numbers too large for 32 bits"),
        ({"x": [1e308, -1e308, 1e308]}, "table: the column 'x' has numbers too large for 32 bits"),
        ({"x": ["1", "two", "3"]}, "the column 'x' is .*; a finite number was expected"),
        ({"x": [], "y": []}, "table: (there are no rows in it|the column 'x' is of type null)"),
        ({"x": [1.0], "y": [0]}, "table: there is only one sample, too few for training and test"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_bad_values_are_named(kind: Any, change: dict[str, list[Any]], expected: str) -> None:
    read, write = kind
    standardise = change.get("x", [0])[:1] == [1e308]  # what overflows in the mean
    refused(
        read,
        expected,
        write("table", {"x": [1.0, 2.0, 3.0], "y": [0, 1, 0]} | change),
        "y",
        standardise=standardise,
    )


# CSV alone.


def test_csv_cells_may_be_quoted_and_have_blanks_around_them() -> None:
    lines('\ufeff"a", y \n 1.5, "the ""first"""\n\n"2", " b"\n')
    data = csv("table.csv", "y", test="table.csv", features=["a"], standardise=False)
    assert data.x_train.tolist() == [[1.5], [2.0]]
    assert data.class_names == ("b", 'the "first"')


def test_csv_may_have_another_separator() -> None:
    lines("a;y\n1;0\n2;1\n")
    assert csv("table.csv", "y", test="table.csv", separator=";").y_train.tolist() == [0, 1]
    refused(csv, "data.separator is ';;'; one character was expected", "table.csv", "y", separator=";;")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "table.csv: its first line does not name the columns"),
        ("a,,y\n1,2,0\n", "table.csv: column 2 has no name; name it or take it out"),
        ("a,a,y\n1,2,0\n", "table.csv: the column 'a' is there 2 times"),
        ("a,y\n1,0\n1\n", "table.csv: line 3 has 1 cells, expected 2"),
        ("a,y\n1,0\n1,0,5\n", "table.csv: line 3 has 3 cells, expected 2"),
        ("a,y\n1,0\n,1\n", "table.csv: line 3: the column 'a' is empty; a finite number"),
        ("a,y\n1,0\n1, \n", "table.csv: line 3: the column 'y' is empty"),
        ("a,y\n1,0\n1x,0\n", "table.csv: line 3: the column 'a' is '1x'; a finite number"),
        ('a,y\n1,0\n"1"x,0\n', "table.csv: line 3: .*expected after"),
        ('a,y\n1,0\n"1,0\n', "table.csv: line 3: unexpected end of data"),
        ("a,y\n1,0\n" + "1" * 200_000 + ",0\n", "table.csv: line 3: field larger than field limit"),
        ("y\n0\n1\n", "table.csv: there is no column of numbers beside the labels"),
        ("a,y\n1,0\n1\x00,0\n", r"table.csv: line 3: the column 'a' is '1\\x00'"),
    ],
)
def test_a_bad_csv_file_is_named_with_its_line(text: str, expected: str) -> None:
    refused(csv, expected, lines(text), "y")


def test_a_line_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrecall.data.sources.table_files.LONGEST_LINE", 100)
    refused(csv, "table.csv: a line has 100 characters or more", lines("a,y\n1,0\n" + "1," * 80), "y")


def test_text_that_is_not_utf_8_is_refused() -> None:
    Path("table.csv").write_bytes(b"a,y\n\xff\xfe,0\n")
    refused(csv, "table.csv cannot be read: 'utf-8' codec", "table.csv", "y")


def test_a_file_that_is_not_there_is_named() -> None:
    refused(csv, "data.path is 'none.csv', but there is no such file", "none.csv", "y")
    refused(csv, r"\. cannot be read: Is a directory", ".", "y")


# Parquet alone.


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    sentence = r"data parquet needs the extra tables: pip install 'fedrecall\[tables\]'"
    refused(parquet, f"^{sentence}$", lines("a"), "y")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([1.0, None, 3.0], "table: row 2: the column 'x' is empty; a finite number was expected"),
        ([1, 2, None], "table: row 3: the column 'x' is empty; a finite number was expected"),
        ([[1], [2], [3]], "table: the column 'x' is of type list<.*>; a finite number was expected"),
        ([b"a", b"b", b"c"], "table: the column 'x' is of type binary; a finite number was expected"),
    ],
)
def test_a_bad_parquet_column_is_named(column: list[Any], expected: str) -> None:
    refused(parquet, expected, write_parquet("table", {"x": column, "y": [0, 1, 0]}), "y")
    good = write_parquet("good", {"x": [1.0, 2.0, 3.0], "y": [0, 1, 0]})
    write_parquet("table", {"x": [1.0, 2.0, 3.0], "y": ["a", None, "b"]})
    refused(parquet, "table: row 2: the column 'y' is empty", good, "y", test="table")


@pytest.mark.heavy
def test_parquet_whole_numbers_and_yes_or_no_are_features() -> None:
    table = {"a.b": [1, 2, 3], "c": [True, False, True], "y": [True, False, True]}
    data = parquet(write_parquet("table", table), "y", test="table", standardise=False)
    assert data.x_train.tolist() == [[1, 1], [2, 0], [3, 1]]
    assert (data.y_train.tolist(), data.class_names) == ([1, 0, 1], ("False", "True"))


@pytest.mark.heavy
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_parquet_file_is_refused(share: float) -> None:
    content = Path(write_parquet("table", TABLE)).read_bytes()
    Path("table").write_bytes(content[: int(share * len(content))])
    refused(parquet, "table cannot be read: ", "table", "kind", id="who")


@pytest.mark.heavy
def test_a_parquet_file_that_unpacks_to_too_much_is_refused() -> None:
    write_parquet("table", {"x": [0.0] * 100_000, "y": [0] * 100_000})
    refused(parquet, "table: it has .* bytes and says that it unpacks to 1600000; more", "table", "y", limit=10**6)


def test_they_are_listed() -> None:
    assert (DATASETS["csv"], DATASETS["parquet"]) == (csv, parquet)


def test_labels_that_begin_at_one_make_no_empty_class(tmp_path) -> None:
    path = tmp_path / "my.csv"
    path.write_text("a,label\n" + "".join(f"{i},{1 + i % 4}\n" for i in range(40)))
    found = csv(str(path), label="label")
    assert (found.num_classes, found.class_names) == (4, ("1", "2", "3", "4"))
    assert set(found.y_train) | set(found.y_test) == {0, 1, 2, 3}
    assert csv(str(path), label="label", classes=5).class_names == ("0", "1", "2", "3", "4")
