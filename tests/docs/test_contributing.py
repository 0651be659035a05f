"""CONTRIBUTING names files and functions that are there, every room, and one meaning for each word."""

from __future__ import annotations

import re
from pathlib import Path

import fedrecall

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PACKAGE = Path(fedrecall.__file__).parent


def test_each_stop_of_the_walk_is_a_file_with_that_function() -> None:
    stops = re.findall(r"^\d+\. `([^`]+)`, (.*?):", PAGE, re.MULTILINE)
    assert 5 < len(stops) <= 10
    for file, functions in stops:
        text = (PACKAGE / file).read_text(encoding="utf-8")
        for name in re.findall(r"`([^`]+)`", functions):
            assert f"def {name.rpartition('.')[2]}(" in text, (file, name)


def test_every_room_is_on_the_map_and_the_root_is_small() -> None:
    table = PAGE.split("| room |")[1].split("## A walk")[0]
    rooms = [path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    for room in rooms:
        assert f"`{room}/`" in table, room
    assert len([path for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]) <= 5


def test_what_is_to_be_touched_is_there() -> None:
    table = PAGE.split("| to add | touch |")[1]
    for name in re.findall(r"`((?:[a-z_]+/)+[a-z_.]*|[a-z]+\.html)`", table):
        assert (ROOT / name).exists() or (PACKAGE / name).exists() or (PACKAGE / "report/page" / name).exists(), name


def test_the_glossary_has_each_word_once_in_order_and_only_words_of_the_package() -> None:
    rows = [
        row.split(" | ")
        for row in re.findall(r"^\| (.*) \|$", PAGE.split("\n## Words\n")[1].split("\n## ")[0], re.MULTILINE)
    ]
    words = [row[0] for row in rows[1:]]
    assert 55 <= len(words) <= 70
    assert words == sorted(set(words))
    assert all(len(row) == 2 and row[1] for row in rows)
    sources = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")).lower().replace("_", " ")
    for word in words:
        name = word.partition(" (")[0]
        assert re.search(rf"\b{name}", sources), word


def test_the_paths_of_make_quick_are_there() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    paths = re.search(r"^QUICK := (.*)$", text, re.MULTILINE)[1].split()
    left_out = re.search(r"^NOT_QUICK := (.*)$", text, re.MULTILINE)[1].split()
    assert {"tests/core", "tests/algorithms", "tests/objectives", "tests/client", "tests/recipe"} <= set(paths)
    for path in paths:
        assert (ROOT / path).exists(), path
    for path in left_out:
        file, _, test = path.partition("::")
        assert any(file.startswith(one) for one in paths), path
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8"), path
