"""Notes of what a run has recorded."""

from __future__ import annotations

from pathlib import Path

from fedrecall.runs.jsonl import jsonl_text
from fedrecall.runs.records import before_and_after, changed_since, note_of_lines

BEFORE = [{"round": 1, "lr": 0.1}, {"round": 2, "lr": 0.1, "val_nll": None}, {"round": 3, "lr": 0.1}]
AFTER = [{"round": 1, "lr": 0.1}, {"round": 2, "lr": 0.1}, {"round": 3, "lr": 0.1}]
OTHER = [{"round": 1, "lr": 0.1}, {"round": 2, "lr": 0.2}, {"round": 3, "lr": 0.1}]


def test_a_file_that_is_being_rewritten_is_unchanged_before_and_after_and_changed_otherwise(tmp_path: Path) -> None:
    noted = {"a.jsonl": note_of_lines(BEFORE, 2)}
    both = before_and_after(noted, {"a.jsonl": BEFORE}, {"a.jsonl": AFTER}, 2)
    found = []
    for lines in (BEFORE, AFTER, OTHER, BEFORE[:1]):
        (tmp_path / "a.jsonl").write_text(jsonl_text(lines))
        found.append((changed_since(tmp_path, noted), changed_since(tmp_path, both)))
    assert found == [([], []), (["a.jsonl"], []), (["a.jsonl"], ["a.jsonl"]), (["a.jsonl"], ["a.jsonl"])]


def test_a_note_changes_only_for_files_whose_lines_change() -> None:
    noted = {"a.jsonl": note_of_lines(BEFORE, 3), "b.npz": {"bytes": 1, "sha256": "0"}}
    assert before_and_after(noted, {"a.jsonl": BEFORE}, {"a.jsonl": BEFORE}, 3) == noted
    both = before_and_after(noted, {"a.jsonl": BEFORE}, {"a.jsonl": AFTER}, 3)
    assert both["b.npz"] == noted["b.npz"]
    early = {"a.jsonl": note_of_lines(BEFORE, 1)}  # before the first line that changes
    assert before_and_after(early, {"a.jsonl": BEFORE}, {"a.jsonl": AFTER}, 1) == early


def test_the_note_of_a_file_that_was_rewritten_may_be_rewritten_again(tmp_path: Path) -> None:
    """A killed process rewrote it for one length, the next one rewrites it for another."""
    noted = {"a.jsonl": note_of_lines(BEFORE, 3)}
    both = before_and_after(noted, {"a.jsonl": BEFORE}, {"a.jsonl": AFTER}, 3)
    third = before_and_after(both, {"a.jsonl": AFTER}, {"a.jsonl": OTHER}, 3)
    for lines in (AFTER, OTHER):
        (tmp_path / "a.jsonl").write_text(jsonl_text(lines))
        assert changed_since(tmp_path, third) == []
