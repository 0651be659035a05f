"""Reproduce a published table or figure: run a study or a part of it, and compare it with published results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedrecall.api.execute import load_federation
from fedrecall.data.card import federation_card
from fedrecall.display import count_of
from fedrecall.errors import InputError, nearest
from fedrecall.recipe.display_titles import titles
from fedrecall.recipe.files import Tree
from fedrecall.recipe.recipe import Recipe
from fedrecall.report.comparison import differing_words, flatten, group_methods
from fedrecall.runs import files
from fedrecall.runs.folder import RunFolder
from fedrecall.runs.reader import RunRecord
from fedrecall.storage.safe_parsing import yaml_value
from fedrecall.studies.cells import Cell, PlannedRun, RunSlot, cells_of
from fedrecall.studies.design import Design, load_design, shipped_studies
from fedrecall.studies.estimate import Cost, Told, costs, kind_of, planned_seconds_left
from fedrecall.studies.folder import OVER, State, StudyFolder
from fedrecall.studies.selection import select_runs
from fedrecall.studies.sweep import PlannedStudy, Study, run_study

FOLDER = Path("runs") / "reproduce"
UNTRAINED = "class-shares"  # the figure that needs partitions only
HEATMAPS = "heatmaps"
NAMED = ("model.name", "data.name", "rounds")  # in the name of every kind of run
DRAWN = (0.3, 0.9)  # the fractions of the rounds at which heatmaps are drawn: 1200 and 3600 of the paper's 4000


@dataclass(frozen=True)
class Reproduction:
    """A planned reproduction; nothing is written yet."""

    name: str
    asked: PlannedStudy
    shortened: str = ""  # what a shorter version has less of, in words

    @classmethod
    def of(
        cls,
        name: str,
        words: Iterable[str] = (),
        *,
        rounds: int | None = None,
        shrink: Iterable[str] = (),
        out: Path | None = None,
        jobs: int | None = None,
        execution: Tree | None = None,
    ) -> Reproduction:
        """Plan the runs of a study, by name or file, that words select: `dataset=cifar10 lr=0.05 seeds=1`.

        `rounds` and `shrink`, settings as `partition.clients=10`, make it a shorter version.
        """
        if name not in shipped_studies() and not Path(name).is_file():
            raise InputError(f"there is nothing called {name!r} to reproduce; {nearest(name, shipped_studies())}")
        design = load_design(name)
        smaller = [f"{rounds} rounds"] * (rounds is not None) + list(shrink)
        if smaller:
            settings = shorter_settings(rounds, design.figures) | shrunken_settings(shrink, design)
            design = load_design(name, settings={**design.settings, **settings})
        title = "-".join([Path(name).stem, *(re.sub(r"[^\w.=]+", "-", words) for words in smaller)])
        asked = PlannedStudy.of(name, design, out or FOLDER / title, jobs, execution)
        runs = select_runs(asked.runs, words)
        return cls(Path(name).stem, replace(asked, runs=runs, jobs=min(asked.jobs, len(runs))), ", ".join(smaller))

    @property
    def trains(self) -> bool:
        return self.asked.design.figures != [UNTRAINED]

    def plan(self, told: Told | None = None) -> ReproductionPlan:
        """Return the states of the runs and the costs of the remaining ones, including runs yet to be adopted."""
        folder = StudyFolder(self.asked.path)
        states = self.asked.states()
        left = [run for run in self.asked.runs if states[run.slot].kind not in OVER] if self.trains else []
        return ReproductionPlan(self, states, costs(left, told), folder)

    def cells(self) -> list[Cell]:
        """Return the cells with selected runs, reduced to the selected seeds."""
        wanted = {(run.slot.cell, run.slot.seed) for run in self.asked.runs}
        cells = [
            replace(cell, slots=tuple(slot for slot in cell.slots if (slot.cell, slot.seed) in wanted))
            for cell in cells_of(self.asked.design)
        ]
        return [cell for cell in cells if cell.slots]

    def recipes(self) -> dict[str, Recipe]:
        """Return the recipe of each cell's first run, by cell name."""
        return {run.slot.cell: run.recipe for run in reversed(self.asked.runs)}

    def execute(self, *, quiet: bool) -> Study:
        """Adopt or execute the runs that are not done; for a figure of class shares, write partitions only."""
        if not self.trains:
            folder = StudyFolder.of(self.asked.path, self.asked.design)
            for run in self.asked.runs:
                write_partition(folder.run(run.slot), run.recipe)
            return Study(self.asked.path)
        return run_study(self.asked, quiet=quiet, report=True)

    def draw(self, study: Study) -> list[Path]:
        """Draw the study's figures from the runs that have results; return their paths."""
        from fedrecall.report.figures.write import write_figures

        wanted = self.asked.design.figures
        runs = [RunRecord(study.folder.run(run.slot)) for run in self.asked.runs]
        runs = [run for run in runs if (run.path / files.RECIPE).is_file() and (run.metrics or not self.trains)]
        if not wanted or not runs:
            return []
        drawn = self.heatmap_rounds(runs) if HEATMAPS in wanted else ()
        names = [name for name in wanted if name != HEATMAPS] + [f"forgetting-round-{t:05d}" for t in drawn]
        return write_figures(group_methods(runs, titles()), study.path / "figures", drawn, names)

    def heatmap_rounds(self, runs: Sequence[RunRecord]) -> tuple[int, ...]:
        """Return the probed rounds nearest to the paper's."""
        total = self.asked.runs[0].recipe.rounds
        probed = sorted(set.intersection(*(set(run.probes) for run in runs)))
        return tuple(sorted({min(probed, key=lambda t: abs(t - share * total)) for share in DRAWN})) if probed else ()


@dataclass(frozen=True)
class ReproductionPlan:
    """The states of a reproduction's runs, and the cost of the remaining ones."""

    reproduction: Reproduction
    states: dict[RunSlot, State]
    costs: Mapping[PlannedRun, Cost]
    folder: StudyFolder

    @property
    def done(self) -> int:
        return len(self.states) - len(self.costs) if self.reproduction.trains else len(self.states)

    def kinds(self) -> list[tuple[int, str, float]]:
        """Return the number of runs, the name and the seconds of each kind of run that is left.

        Names have the settings in which the kinds differ.
        """
        groups: dict[str, list[PlannedRun]] = {}
        for run in self.costs:
            groups.setdefault(kind_of(run.recipe), []).append(run)
        flats = [flatten(json.loads(kind)) for kind in groups]
        shared = set.intersection(*map(set, flats)) - set(NAMED) if flats else set()
        flats = [{key: value for key, value in flat.items() if key in shared} for flat in flats]
        found = []
        for flat, (first, *others) in zip(flats, groups.values()):
            recipe = first.recipe
            words = [f"{recipe.model['name']} on {recipe.data['name']}", *differing_words(flat, flats)]
            words.append(count_of(recipe.rounds, "round"))
            found.append((1 + len(others), ", ".join(words), self.costs[first].seconds))
        return found

    @property
    def seconds(self) -> float:
        """Return the seconds until all runs are done, several at once; rounds that are done do not count."""
        return planned_seconds_left(self.costs, self.states, self.reproduction.asked.jobs)

    @property
    def bytes(self) -> float:
        return sum(cost.bytes for cost in self.costs.values())


def shrunken_settings(words: Iterable[str], design: Design) -> Tree:
    """Return settings given as KEY=VALUE; raise an `InputError` for a key that the study itself varies."""
    found: Tree = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (key and equals and text):
            raise InputError(f"--shrink is {word!r}; KEY=VALUE was expected, such as partition.clients=10")
        if any(key in settings for settings in design.combinations()):
            raise InputError(
                f"--shrink is {word!r}, but the study varies {key}; {key}=VALUE alone selects a part of it"
            )
        found[key] = yaml_value(text)
    return found


def shorter_settings(rounds: int | None, figures: Sequence[str]) -> Tree:
    """Return the settings of a shorter version; for heatmaps, forgetting is still measured ten times."""
    if rounds is None:
        return {}
    if rounds < 1:
        raise InputError(f"--rounds is {rounds}; at least 1 was expected")
    return {"rounds": rounds, **({"forgetting.every": max(1, rounds // 10)} if HEATMAPS in figures else {})}


def write_partition(path: Path, recipe: Recipe) -> None:
    """Write the recipe and the partition, from which figures of class shares are drawn."""
    if (path / files.PARTITION).is_file():
        return
    federation, folder = load_federation(recipe), RunFolder.create(path)
    folder.write_text(files.RECIPE, recipe.yaml())
    federation.assignment.save(folder.path, federation.training_counts())
    described = federation_card(federation)
    folder.write_json(files.CARD, described)
