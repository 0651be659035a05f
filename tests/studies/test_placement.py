"""Which studies are spread over a cluster, and what is refused of them; nothing here starts Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrecall.errors import InputError
from fedrecall.studies.cells import PlannedRun, cells_of, plan
from fedrecall.studies.design import load_design
from fedrecall.studies.placement import Placement, in_one_process, refuse_workers


def planned(execution: dict, **given: object) -> list[PlannedRun]:
    design = load_design("demo", **given)
    return plan(design, cells_of(design), execution)


def test_runs_of_other_engines_stay_on_this_machine() -> None:
    assert Placement.of(planned({"engine": "processes"})) is None


def test_a_run_takes_a_cpu_for_each_thread_of_the_widest() -> None:
    runs = planned({"engine": "ray", "ray_address": "head:1"}, grid={"local.threads": [1, 3]})
    assert Placement.of(runs) == Placement("head:1", {"CPU": 3.0})


def test_a_run_takes_the_resources_that_are_asked_for() -> None:
    runs = planned({"engine": "ray", "device": "cuda", "resources": {"CPU": 2, "GPU": 0.5, "fast": 1}})
    assert Placement.of(runs) == Placement(None, {"CPU": 2.0, "GPU": 0.5, "fast": 1.0})


def test_a_run_on_a_gpu_takes_its_share_of_one() -> None:
    runs = planned({"engine": "ray", "device": "cuda", "workers_per_device": 4})
    assert Placement.of(runs) == Placement(None, {"CPU": 1.0, "GPU": 0.25})


def test_the_recipe_of_a_spread_run_is_that_of_a_serial_one() -> None:
    (spread,) = planned({"engine": "ray", "ray_address": "head:1", "resources": {"CPU": 2}})
    (serial,) = planned({"engine": "serial", "workers": 1})
    assert in_one_process(spread).recipe.yaml() == serial.recipe.yaml()


def test_recipes_of_one_study_with_other_engines_are_refused(tmp_path: Path) -> None:
    for engine in ("ray", "serial"):
        (tmp_path / f"{engine}.yaml").write_text(f"base: demo\nexecution: {{engine: {engine}}}\n")
    cases = [{"recipe": str(tmp_path / f"{engine}.yaml")} for engine in ("ray", "serial")]
    with pytest.raises(InputError, match=r'execution.engine is "ray" and "serial" in runs of the'):
        Placement.of(planned({}, cases=cases))


def test_settings_of_workers_are_refused_where_a_run_is_one_process() -> None:
    (run,) = planned({"engine": "ray", "client_timeout": 5})
    with pytest.raises(InputError, match=r"execution.client_timeout is 5.0, but the engine 'ray' carries out"):
        in_one_process(run)
    with pytest.raises(InputError, match=r"execution.workers is 4, but the engine 'ray' carries out each run"):
        refuse_workers({"workers": "4"})
    refuse_workers({"workers": "auto"})
