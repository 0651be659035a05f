"""No command or option is printed that no test follows: the list of all of them, and of the tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import fedrecall as package

PRINTED = re.compile(
    r"fedrecall (?:demo|run|resume|report|diagnose|replay|partition|recipes|sweep|reproduce|compare|data \w+)\b"
    r"|fedrecall flower init|--[a-z]+(?:-[a-z]+)*|rounds=N"
)
EXAMPLE = "test_the_example_of_a_commands_help_works"
FETCH = "test_the_advice_about_data_that_are_not_here_is_followed"
CODE = "test_a_client_that_fails_can_be_replayed_mended_and_resumed"
WORKER = "test_evaluation_that_fails_in_a_worker_comes_with_the_way_to_the_main_process"
FORCE = "test_force_does_what_is_said_of_it"
VECTORISED = "test_a_run_of_vectorised_goes_on_with_it_or_by_force"
WEIGHTS = "test_weights_are_given_to_a_diagnosis"
FIGURES = "test_rounds_of_figures_want_figures"
DATA = "test_the_folder_of_data_is_named_with_data"
DEVICE = "test_another_device_needs_a_word"
TOO_SMALL = "test_a_figure_that_does_not_fit_is_a_sentence"
TABLE = "test_several_studies_are_one_table_with_any_baseline"
OTHER = "test_another_study_in_the_folder_is_refused_with_the_difference"
STUDY = "test_the_options_of_a_study_are_followed"
SIMULATED = "test_the_generated_app_runs_in_flowers_simulation_with_the_bits_of_serial"
RESUMED = "test_a_real_federation_has_the_bits_of_serial_also_over_two_runs"
SHRUNK = "test_figures_are_shrunk_by_clients_and_probes_too"
WITHOUT_FLOWER = "test_its_recipe_is_the_one_that_was_named_and_runs_without_flower"
REPRODUCED = "test_the_example_of_the_help_is_planned_on_real_cifar10"
COVERED: dict[str, list[tuple[str, str]]] = {  # by module: each command and option in its text, and who follows it
    "cli/compare.py": [("fedrecall compare", EXAMPLE), ("--accuracy", EXAMPLE), ("--out", TABLE)],
    "cli/reproduce.py": [("fedrecall reproduce", REPRODUCED), ("--dry-run", REPRODUCED)],
    "cli/sweep.py": [
        *[("fedrecall sweep", EXAMPLE), ("--seeds", EXAMPLE)],
        *[("--dry-run", STUDY), ("--dry-run", STUDY), ("--time", STUDY)],
    ],
    "studies/compare.py": [("--accuracy", STUDY)],
    "studies/design.py": [("--seeds", STUDY), ("--baseline", STUDY)],
    "studies/growth.py": [("--out", OTHER)] * 2,
    "studies/reproduce.py": [
        ("--rounds", STUDY),
        *[("--shrink", "test_figures_are_shrunk_by_clients_and_probes_too")] * 2,
    ],
    "studies/placement.py": [("--jobs", "test_as_many_runs_go_at_once_as_there_is_room_for_or_jobs_says")],
    "cli/data.py": [
        *[("fedrecall data fetch", "test_an_example_of_help_works")] * 2,
        ("fedrecall data list", "test_an_example_of_help_works"),
        ("fedrecall data verify", "test_an_example_of_help_works"),
        *[("--to", "test_an_example_of_help_works"), ("--json", "test_an_example_of_help_works")],
    ],
    "cli/demo.py": [("fedrecall demo", EXAMPLE), ("fedrecall run", "test_another_objective_than_the_demos_is_run")],
    "cli/diagnose.py": [("fedrecall diagnose", EXAMPLE), ("--weights", EXAMPLE), ("--weights", WEIGHTS)],
    "cli/flower.py": [
        *[("fedrecall flower init", "test_the_example_of_its_help_works"), ("--recipe", SIMULATED)],
        *[("--stream", SIMULATED), ("--federation-config", SIMULATED), ("--stream", RESUMED)],
        *[("fedrecall run", WITHOUT_FLOWER), ("--engine", WITHOUT_FLOWER)],
    ],
    "flower/engine.py": [("fedrecall flower init", SIMULATED), ("--run-config", RESUMED)],
    "flower/server.py": [("--run-config", RESUMED)],
    "cli/main.py": [("fedrecall demo", EXAMPLE), ("--help", "test_a_wrong_command_line_leads_to_help")],
    "cli/partition.py": [("fedrecall partition", EXAMPLE), ("--out", EXAMPLE)],
    "cli/replay.py": [("fedrecall replay", EXAMPLE), ("--round", EXAMPLE), ("--client", EXAMPLE)],
    "cli/report.py": [
        *[("fedrecall report", EXAMPLE), ("--out", EXAMPLE), ("--figures", EXAMPLE)],
        *[("--figures", FIGURES), ("--rounds", FIGURES), ("--rounds", FIGURES)],
        ("--figures", FIGURES),
    ],
    "cli/resume.py": [("fedrecall resume", EXAMPLE)],
    "cli/run.py": [("fedrecall run", EXAMPLE), ("--seed", EXAMPLE), ("--out", EXAMPLE)],
    "data/download.py": [("--data", FETCH), ("--to", FETCH)],
    "data/split_file.py": [("--data", "test_a_recipe_finds_the_file_below_the_data_folder")],
    "data/places.py": [("fedrecall data fetch", FETCH), ("--data", FETCH), ("--data", FETCH)],
    "data/files/femnist.py": [("--data", DATA)],
    "data/sources/image_folder.py": [("--data", DATA)],
    "data/sources/own_files.py": [("--data", DATA)],
    "api/diagnose.py": [
        *[("--clients", "test_the_number_of_clients_of_a_diagnosis_is_an_option")] * 2,
        ("--weights", "test_weights_with_statistics_are_given_to_a_diagnosis"),
    ],
    "api/execute.py": [
        ("fedrecall report", "test_a_page_that_does_not_fit_leaves_a_complete_run_and_the_command_that_makes_it")
    ],
    "report/diagnosis.py": [("--weights", WEIGHTS)],
    "report/page/page.py": [("fedrecall run", "test_what_a_page_says_repeats_the_run_and_the_page")],
    "runs/folder.py": [
        ("fedrecall resume", "test_an_unfinished_run_in_the_folder_goes_on"),
        ("--out", "test_another_folder_is_chosen_with_out"),
    ],
    "report/figures/write.py": [("--size", TOO_SMALL), ("--font-size", TOO_SMALL)],
    "runs/records.py": [("--force", FORCE)],
    "simulation/failure_advice.py": [
        ("fedrecall resume", "test_an_interrupted_run_goes_on"),
        *[("fedrecall resume", WORKER), ("--engine", WORKER)],
        *[("fedrecall replay", CODE), ("--round", CODE), ("--client", CODE)],
    ],
    "simulation/loop.py": [("--ray-address", "test_a_killed_driver_is_resumed_on_a_fresh_cluster_with_the_same_bits")],
    "simulation/replay.py": [("--force", FORCE)] * 2,
    "simulation/resume.py": [
        ("--run-config", RESUMED),
        ("rounds=N", "test_rounds_make_a_run_longer"),
        *[("--force", FORCE)] * 4,
        *[("--force", VECTORISED), ("--engine", VECTORISED)],
        *[("--device", DEVICE), ("--other-device", DEVICE)],
    ],
}


def strings_of(path: Path) -> Iterator[str]:
    """All text of a module but docstrings and the names of options."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in alone else None
        if isinstance(text, str) and not re.fullmatch(r"--[\w/-]+", text):
            yield text


def test_every_command_and_option_that_is_printed_has_a_test_that_follows_it() -> None:
    root = Path(package.__file__).parent
    found = {
        str(path.relative_to(root)): sorted(PRINTED.findall("\n".join(strings_of(path)))) for path in root.rglob("*.py")
    }
    assert {name: words for name, words in found.items() if words} == {
        name: sorted(word for word, _ in pairs) for name, pairs in COVERED.items()
    }
    tests = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    for pairs in COVERED.values():
        for _, test in pairs:
            assert f"def {test}(" in tests, test
