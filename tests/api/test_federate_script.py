"""`federate` as people call it: in a plain script, from standard input, with and without a folder."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedrecall import FedAvg, Federation, Iid, InputError, Run, federate

# No main guard. The class is the script's own, so that it can only be found where the script runs.
SCRIPT = """
import numpy as np
import torch

from fedrecall import Federation, Iid, federate


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))

    def forward(self, x):
        return self.layers(x)


print("started")
random = np.random.default_rng(0)
x = random.normal(size=(120, 4)).astype("float32")
y = (x[:, 0] > 0).astype(int)
federation = Federation.from_arrays(x, y, test=(x, y), partition=Iid(clients=4, validation=0.2))
for _ in range(2):
    run = federate(Net(), federation, rounds=2, participation=0.5, forgetting={"every": 2})
    print(run.path, len(run.metrics))
"""


def run_script(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT)
    (folder / "temporary").mkdir()
    command = [sys.executable, "script.py"] if how == "file" else [sys.executable, "-"]
    return subprocess.run(
        command,
        input=SCRIPT if how == "standard input" else None,
        env={**os.environ, "TMPDIR": str(folder / "temporary")},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("how", [pytest.param("file", marks=pytest.mark.slow), "standard input"])
def test_a_script_without_a_main_guard_makes_its_runs(how: str, tmp_path: Path) -> None:
    done = run_script(tmp_path, how)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["started", "runs/run", "2", "runs/run-2", "2"]
    for name in ("run", "run-2"):
        assert json.loads((tmp_path / "runs" / name / "summary.json").read_text())["status"] == "finished"
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    return Federation.from_arrays(x, y, test=(x[:50], y[:50]), partition=Iid(clients=4, validation=0.2))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def start(federation: Federation, net: object = None, **settings) -> Run:
    return federate(net or model(), federation, **{"rounds": 3, "participation": 0.5, **settings})


def test_the_given_model_is_not_changed(federation: Federation) -> None:
    net = model().eval()
    before = copy.deepcopy(net.state_dict())
    start(federation, net)
    assert not net.training
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_training_starts_from_the_weights_of_the_given_model(federation: Federation) -> None:
    net = model()
    trained = start(federation, net, local={"lr": 0.0}).model().state_dict()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in net.named_parameters())


def test_the_trained_model_has_the_accuracy_of_the_last_line(federation: Federation) -> None:
    run = start(federation, local={"lr": 0.3})
    x, y = federation.test.gather(torch.arange(50))
    trained = run.model()
    assert not trained.training
    with torch.no_grad():
        assert run.metrics[-1]["test_accuracy"] == pytest.approx((trained(x).argmax(1) == y).double().mean().item())
    assert not torch.equal(trained[0].weight, model()[0].weight)


def test_a_function_that_makes_the_model_is_called_with_the_seeds_generator(federation: Federation) -> None:
    def net() -> nn.Module:
        return nn.Linear(4, 2)

    files = []
    for noise in (1, 7):
        torch.rand(noise)
        files.append((start(federation, net).path / "model.safetensors").read_bytes())
    assert files[0] == files[1]
    assert files[0] != (start(federation, net, seed=1).path / "model.safetensors").read_bytes()


def test_torchs_threads_and_generator_are_given_back(federation: Federation) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.manual_seed(3)
        expected = torch.rand(2)
        net = model()
        torch.manual_seed(3)
        start(federation, net, local={"threads": 1})
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.rand(2), expected)
    finally:
        torch.set_num_threads(before)


def test_without_a_folder_each_call_makes_a_new_one(federation: Federation) -> None:
    assert [str(start(federation, rounds=1).path) for _ in range(3)] == ["runs/run", "runs/run-2", "runs/run-3"]


def test_a_folder_that_holds_something_is_not_touched(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all of it")
    with pytest.raises(InputError, match="is not empty"):
        start(federation, out=tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_every_line_is_shown_to_the_one_who_watches(federation: Federation) -> None:
    seen: list[dict] = []
    assert start(federation, watch=seen.append).metrics == seen


@pytest.mark.parametrize(("key", "reason"), [("participaton", "did you mean 'participation'"), ("epochs", "epochs")])
def test_a_key_that_does_not_exist_is_refused(federation: Federation, key: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        start(federation, **{key: 1})
    assert not Path("runs").exists()


@pytest.mark.parametrize("where", ["page.html", None])
def test_the_report_is_one_page(federation: Federation, tmp_path: Path, where: str | None) -> None:
    run = start(federation, forgetting={"every": 1})
    path = run.report(tmp_path / where if where else None)
    assert path == (tmp_path / where if where else run.path / "report.html")
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert 'src="http' not in page


def test_a_model_of_another_float_dtype_trains(federation: Federation) -> None:
    run = start(federation, model().double())
    assert run.model()[0].weight.dtype == torch.float64


@dataclass(frozen=True)
class Renamed(FedAvg):
    name: str = "mine"


def test_an_own_algorithm_may_have_a_field_called_name(federation: Federation) -> None:
    assert len(start(federation, algorithm=Renamed()).metrics) == 3


class Buffering(FedAvg):
    def finish(self, y, server, client, local, extra):
        return {"w": y, "buffers": torch.ones(7)}, {}


def test_an_own_algorithm_may_send_a_tensor_called_buffers(federation: Federation) -> None:
    assert len(start(federation, algorithm=Buffering()).metrics) == 3


def test_a_given_lazy_model_gets_its_shapes(federation: Federation) -> None:
    net = nn.LazyLinear(2)
    start(federation, net)
    assert net.weight.shape == (2, 4)


@pytest.mark.parametrize("key", ["data", "partition"])
def test_a_section_that_the_arguments_decide_is_refused(federation: Federation, key: str) -> None:
    with pytest.raises(InputError, match=f"{key} is given"):
        start(federation, **{key: {"name": "iid"}})


def test_execution_may_be_a_keyword_like_the_other_sections(federation: Federation) -> None:
    with pytest.raises(InputError, match=r"execution\.engine is 'procs'"):
        start(federation, execution={"engine": "procs"})


def test_a_model_with_another_number_of_outputs_is_refused(federation: Federation) -> None:
    with pytest.raises(InputError, match=r"answers two samples with \(2, 7\); two rows of 2 class"):
        start(federation, nn.Sequential(nn.Flatten(), nn.LazyLinear(7)))


def test_a_model_with_nothing_to_train_is_refused(federation: Federation) -> None:
    with pytest.raises(InputError, match="no parameters to train"):
        start(federation, model().requires_grad_(False))
