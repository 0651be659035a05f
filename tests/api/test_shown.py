"""What a Python user sees: progress, the summary, readable runs, federations and diagnoses, pages when wanted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedrecall import Federation, Iid, InputError, Run, diagnose, federate


def federation(**options: object) -> Federation:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    return Federation.from_arrays(
        x, np.arange(60) % 3, test=(x[:9], np.arange(9) % 3), partition=Iid(clients=6, validation=0.2), **options
    )  # type: ignore[arg-type]


def run(out: Path, **options: object) -> Run:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)
    return federate(model, federation(), rounds=3, clients_per_round=2, out=out, **options)  # type: ignore[arg-type]


def test_progress_is_shown_when_asked_for_and_a_script_is_quiet_by_itself(tmp_path, capsys) -> None:
    run(tmp_path / "a")
    run(tmp_path / "b", progress=False)
    assert capsys.readouterr() == ("", "")
    run(tmp_path / "c", progress=True, evaluation={"every": 1})
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split("  ")[:2] for line in err.splitlines()] == [["FedAvg + WSM", f"round {t}/3"] for t in (1, 2, 3)]


def test_progress_changes_nothing(tmp_path) -> None:
    plain, shown = run(tmp_path / "a"), run(tmp_path / "b", progress=True)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (plain.path / name).read_bytes() == (shown.path / name).read_bytes()


def test_the_summary_is_that_of_the_file(tmp_path) -> None:
    made = run(tmp_path / "a")
    assert made.summary == json.loads((made.path / "summary.json").read_text())
    assert made.summary["status"] == "finished"


def test_a_page_is_written_when_asked_for_and_else_not(tmp_path) -> None:
    assert not (run(tmp_path / "a").path / "report.html").exists()
    assert (run(tmp_path / "b", report=True).path / "report.html").exists()
    assert (run(tmp_path / "a", report=True, resume=True).path / "report.html").exists()  # finished already


def test_a_run_says_what_it_is(tmp_path) -> None:
    made = run(tmp_path / "a")
    accuracy = f"{100 * made.summary['final_accuracy']:.1f} %"
    folder = tmp_path / "a"
    assert repr(made) == (
        f"Run(folder: {folder}; method: FedAvg + WSM; rounds: 3 of 3, finished; final accuracy: {accuracy})"
    )
    assert f"<td>{accuracy}</td>" in made._repr_html_()


def test_a_run_that_is_no_run_says_so_and_its_name_is_text(tmp_path) -> None:
    shown = Run(tmp_path / "<script>")
    assert "recipe.yaml is missing" in repr(shown)
    assert "<script>" not in shown._repr_html_()
    assert "&lt;script&gt;" in shown._repr_html_()


def test_a_federation_says_what_it_is() -> None:
    assert repr(federation()) == (
        "Federation(clients: 6; samples: 60 at the clients, 12 of them for validation; test samples: 9; "
        "classes: 3; a sample: float32, 3)"
    )
    assert "<th>clients</th><td>6</td>" in federation()._repr_html_()


def test_held_out_clients_and_a_missing_test_set_are_named() -> None:
    images = np.zeros((40, 8, 8, 3), np.uint8)
    shown = repr(Federation.from_arrays(images, np.arange(40) % 2, partition=Iid(clients=4, held_out=1)))
    assert "clients: 4, 1 of them held out;" in shown
    assert "test samples: none;" in shown
    assert "a sample: uint8, 3 x 8 x 8" in shown


def test_a_diagnosis_shows_its_sentences_and_numbers_as_text(tmp_path) -> None:
    names = ("<i>a</i>", "b", "c")
    found = diagnose(torch.nn.Linear(3, 3), federation(class_names=names), out=tmp_path / "d", local={"lr": 0.5})
    assert repr(found).startswith(f"Diagnosis(runs in '{tmp_path / 'd'}': ")
    shown = found._repr_html_()
    assert "<i>" not in shown
    assert shown.count("<p>") == len(found.sentences) + len(found.notes)
    assert "<td>learned on its own data</td>" in shown


# --- the command line ---

SMALL = ["rounds=2", "model=mlp", "model.hidden=[4]", "local.steps=2", "--engine", "serial"]


@pytest.mark.parametrize("command", ["run", "demo"])
def test_no_report_writes_no_page_and_names_none(fedrecall, tmp_path, command) -> None:
    words = [command, *(["demo"] if command == "run" else []), *SMALL, "--quiet", "--no-report"]
    done = fedrecall(*words, "--out", tmp_path / "a")
    assert (done.code, done.err) == (0, "")
    assert "report" not in done.out
    assert list(tmp_path.rglob("*.html")) == []
    done = fedrecall(*words, "--json", "--out", tmp_path / "b")
    assert json.loads(done.out)["report"] is None
    assert list(tmp_path.rglob("*.html")) == []


def test_a_resumed_run_may_go_without_a_page_too(fedrecall, tmp_path) -> None:
    out = tmp_path / "a"
    assert fedrecall("run", "demo", *SMALL, "--no-report", "--quiet", "--out", out).code == 0
    done = fedrecall("resume", out, "rounds=3", "--no-report", "--json", "--engine", "serial")
    assert done.code == 0, done.err
    assert json.loads(done.out)["report"] is None
    assert not (out / "report.html").exists()
    done = fedrecall("resume", out, "rounds=4", "--json", "--engine", "serial")
    assert json.loads(done.out)["report"] == str(out / "report.html")
    assert (out / "report.html").exists()


def test_a_run_that_cannot_be_read_says_so_when_it_is_asked(tmp_path) -> None:
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        _ = Run(tmp_path).summary
