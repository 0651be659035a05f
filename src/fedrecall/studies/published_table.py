"""The tables of a reproduction: each cell with its published result, and the gain of WSM in each setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedrecall.errors import InputError
from fedrecall.recipe.display_titles import titles
from fedrecall.recipe.recipe import Recipe
from fedrecall.report.comparison import Method
from fedrecall.report.paper_results import Published
from fedrecall.report.text_table import TextTable
from fedrecall.report.wording import KEY_NAMES, points
from fedrecall.storage.atomic_files import write_text
from fedrecall.studies.cells import Cell
from fedrecall.studies.folder import StudyFolder
from fedrecall.studies.published import HEADING, PublishedComparison, Source, published_source, remarks
from fedrecall.studies.reproduce import Reproduction
from fedrecall.studies.selection import value_of
from fedrecall.studies.table import StudyRow, StudyTable, paired, study_table
from fedrecall.studies.table_texts import paired_heading, paired_texts, setting_headings, setting_text, setting_texts
from fedrecall.studies.tuning import group_key

NORM, OBJECTIVE = "model.norm", "objective"
PAIRING = ("wsm", "batch"), ("cross_entropy", "group")  # the two methods that the paper's Table 1 compares


def write_tables(tables: Mapping[str, TextTable], folder: Path) -> None:
    """Write the tables as CSV, Markdown and LaTeX next to the study's own tables."""
    for name, table in tables.items():
        for kind, text in (("csv", table.csv()), ("md", table.markdown()), ("tex", table.latex())):
            write_text(folder / f"published-{name}.{kind}", text)


def published_tables(made: Reproduction) -> dict[str, TextTable]:
    """Return `table`, with a row per cell, and, if there are pairs of objectives, `pairs`, with a row per pair."""
    asked, shortened = made.asked, made.shortened
    table, name = study_table(asked.design, made.cells(), StudyFolder(asked.path)), asked.design.published
    source, said = published_source(name) if name and not shortened else no_published, []
    if shortened:
        said = [
            f"A shorter version of {shortened}: it shows that everything runs, and is never to be set "
            "against published numbers."
        ]
    recipes = made.recipes()
    found = {"table": cells_table(made, table, source, said)}
    pairs = list(pairs_of(table, recipes))
    theirs = {name: source(recipe) for name, recipe in recipes.items()}
    return {**found, "pairs": pairs_table(pairs, table, theirs, said)} if pairs else found


def no_published(recipe: Recipe) -> Published | None:
    """Return None, as the source of a study without published results."""
    return None


def cells_table(made: Reproduction, table: StudyTable, source: Source, said: list[str]) -> TextTable:
    rows = [
        PublishedComparison(row.numbers.get("final_accuracy", []), best(made, table, row.cell, source))
        for row in table.rows
    ]
    known = any(row.published for row in rows)
    texts = [
        [*setting_texts(row), str(row.seeds), *beside.texts()[: None if known else 1], row.trouble]
        for row, beside in zip(table.rows, rows)
    ]
    head = [*setting_headings(table), "seeds", *HEADING[: None if known else 1], "state"]
    if not table.has_trouble:
        head, texts = head[:-1], [line[:-1] for line in texts]
    notes = [*said, *table.notes[:1], "± is the standard deviation over seeds."]
    if known:
        notes.append("Differences are ours less the published ones, with Welch's 95 % interval.")
    return TextTable(head, texts, [*notes, *remarks(rows)], len(table.keys))


def best(made: Reproduction, table: StudyTable, cell: Cell, source: Source) -> Published | None:
    """Return the published result for a cell; if settings were chosen, the best one over their values."""
    recipes = made.recipes()
    if not table.chosen:
        return source(recipes[cell.name])
    mine = group_key(cell.settings, table.chosen)
    alike = [each for each in made.cells() if group_key(each.settings, table.chosen) == mine]
    known = [(source(recipes[each.name]), recipes[each.name]) for each in alike]
    found = [(number, recipe) for number, recipe in known if number is not None]
    if not found:
        return None
    number, there = max(found, key=lambda pair: pair[0].accuracy)
    at = ", ".join(f"{KEY_NAMES.get(key, key)} {setting_text(key, value_of(there, key))}" for key in table.chosen)
    remark = "; ".join(filter(None, [f"published: the best of its values, at {at}", number.remark]))
    return replace(number, remark=remark)


@dataclass(frozen=True)
class Pair:
    """WSM and cross-entropy in one setting, or with the norms that the paper pairs."""

    wsm: StudyRow
    other: StudyRow
    words: str


def pairs_of(table: StudyTable, recipes: Mapping[str, Recipe]) -> Iterator[Pair]:
    """Yield the pairs of WSM and cross-entropy with equal norms, and those with the norms that the paper pairs."""
    for row in table.rows:
        mine = recipes[row.cell.name]
        if value_of(mine, OBJECTIVE) != "wsm":
            continue
        for other in table.rows:
            aside, theirs = [*table.chosen, OBJECTIVE, NORM], recipes[other.cell.name]
            if value_of(theirs, OBJECTIVE) != "cross_entropy":
                continue
            if group_key(row.cell.settings, aside) != group_key(other.cell.settings, aside):
                continue
            norms = value_of(mine, NORM), value_of(theirs, NORM)
            if norms[0] == norms[1]:
                yield Pair(row, other, f"like for like, {norms[0]} norm" if norms[0] else "like for like")
            elif (("wsm", norms[0]), ("cross_entropy", norms[1])) == PAIRING:
                yield Pair(row, other, f"the paper's pairing: WSM with {norms[0]}, FedAvg with {norms[1]} norm")


def pairs_table(
    pairs: Sequence[Pair], table: StudyTable, theirs: Mapping[str, Published | None], said: list[str]
) -> TextTable:
    keys = [key for key in table.keys if key not in (OBJECTIVE, NORM)]
    published = [(theirs[pair.wsm.cell.name], theirs[pair.other.cell.name]) for pair in pairs]
    known = any(first and second for first, second in published)
    rows = []
    for pair, (first, second) in zip(pairs, published):
        settings = dict(zip(table.keys, setting_texts(pair.wsm)))
        both = pair.wsm.runs and pair.other.runs
        found = paired(method_of(pair.wsm), method_of(pair.other)) if both else None
        row = [*(settings[key] for key in keys), pair.words, *paired_texts(found, "-")]
        difference = points(first.accuracy - second.accuracy) if first and second else "-"
        rows.append([*row, *([difference] if known else [])])
    head = [*(KEY_NAMES.get(key, key) for key in keys), "pairing", "WSM less cross-entropy, points"]
    head += [*paired_heading()[1:], *(["published"] if known else [])]
    notes = [
        *said,
        "Differences are paired by seeds, with Student's 95 % interval and p-value; agree: seeds of the same sign.",
    ]
    return TextTable(head, rows, notes, len(keys) + 1)


def method_of(row: StudyRow) -> Method:
    if not row.runs:
        raise InputError(f"the cell {row.cell.name!r} has no finished run")
    return Method(row.runs, [], titles())
