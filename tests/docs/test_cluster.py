"""docs/cluster.md and the files for clusters: its numbers were measured, its keys exist, the script runs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from fedrecall.client.sums import LEAF
from fedrecall.engines.pool import START
from fedrecall.recipe.layers import from_layers
from fedrecall.recipe.settings import Execution

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
FILES = ROOT / "examples" / "cluster"
COSTS = json.loads((ROOT / "results" / "cluster" / "costs.json").read_text(encoding="utf-8"))


def model():
    spec = importlib.util.spec_from_file_location("cluster_model", ROOT / "benchmarks" / "cluster_model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["cluster_model"] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_the_recipe_of_the_page_is_one() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert from_layers([yaml.safe_load(block)]).execution.resources == {"CPU": 1, "GPU": 0.25}
    for key in set(re.findall(r"`execution\.(\w+)", PAGE)):
        assert key in Execution.model_fields
    assert LEAF == 16
    assert "sixteen clients in task order are a leaf" in PAGE
    assert f"if nobody has after {START:.0f} s" in PAGE


def test_the_costs_are_those_that_were_measured() -> None:
    shown = {
        "driver_seconds_a_round": (1e3, "11 ms"),
        "driver_seconds_a_client_alone": (1e3, "0.6 ms"),
        "driver_seconds_a_client_summed_on_nodes": (1e3, "0.05 ms"),
        "driver_seconds_a_byte_summed_here": (1e9, "0.84 ns"),
        "driver_seconds_a_byte_published_and_fetched": (1e9, "6.6 ns"),
    }
    for key, (scale, words) in shown.items():
        number = words.split()[0]
        decimals = len(number.partition(".")[2])
        assert f"{COSTS[key] * scale:.{decimals}f}" == number, key
        assert f"| {words}" in PAGE


def test_the_seconds_of_a_round_are_those_of_the_simulation() -> None:
    simulation = model()
    rows = re.findall(
        r"\| (LeNet|ResNet-18), ([\d.]+) s \| ([\d,]+) \| ([\d,]+) \| [\d,]+ \| ([\d.,]+) \| ([\d.,]+) \|", PAGE
    )
    assert len(rows) == 6
    for name, seconds, clients, workers, here, nodes in rows:
        for shown, on_nodes in ((here, False), (nodes, True)):
            counts = int(clients.replace(",", "")), int(workers.replace(",", ""))
            round = simulation.Round(*counts, float(seconds), simulation.MODELS[name], on_nodes)
            found, _ = simulation.simulate(round, COSTS)
            assert float(shown.replace(",", "")) == pytest.approx(found, rel=0.01)


def test_the_files_are_what_ray_and_kubernetes_read() -> None:
    up = yaml.safe_load((FILES / "ray-up.yaml").read_text())
    assert {"cluster_name", "provider", "auth", "head_start_ray_commands", "worker_start_ray_commands"} <= set(up)
    job = yaml.safe_load((FILES / "rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    words = job["spec"]["entrypoint"].split()
    assert words[:3] == ["fedrecall", "run", "lenet-cifar10"]
    pinned = re.search(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == pinned[1]
    assert f"rayproject/ray:{pinned[1]}-" in (FILES / "Dockerfile").read_text()
    for name in ("ray-up.yaml", "rayjob.yaml", "Dockerfile", "slurm.sh"):
        assert f"(../examples/cluster/{name})" in PAGE


def test_what_is_copied_to_nodes_is_all_that_the_package_is_built_from_and_no_more() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel, version = project["tool"]["hatch"]["build"]["targets"]["wheel"], project["tool"]["hatch"]["version"]
    needed = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"], "constraints.txt"}
    assert {path.split("/")[0] for path in [*wheel["packages"], version["path"]]} == {"src"}
    needed.add("src")
    mounts = yaml.safe_load((FILES / "ray-up.yaml").read_text())["file_mounts"]
    assert mounts == {f"~/fedrecall/{name}": name for name in needed}
    assert all((ROOT / name).exists() for name in needed)
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line[0] == "!"} == needed


def test_no_path_with_a_tilde_is_in_quotes_in_which_no_shell_replaces_it() -> None:
    for path in FILES.iterdir():
        assert not re.search(r"""['"]~""", path.read_text()), path.name


def test_the_pods_fit_their_node_type() -> None:
    job = yaml.safe_load((FILES / "rayjob.yaml").read_text())["spec"]["rayClusterSpec"]
    groups = [job["headGroupSpec"], *job["workerGroupSpecs"]]
    for pod in (group["template"]["spec"] for group in groups):
        assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "m6i.2xlarge"}  # 8 vCPUs, 32 GiB
        for asked in pod["containers"][0]["resources"].values():
            assert int(asked["cpu"]) < 8
            assert int(asked["memory"].removesuffix("Gi")) < 30  # some GiB are the system's


@pytest.mark.heavy
def test_ray_takes_the_file_of_ray_up_and_its_head_starts_the_workers() -> None:
    util = pytest.importorskip("ray.autoscaler._private.util", reason="needs fedrecall[ray]")
    up = yaml.safe_load((FILES / "ray-up.yaml").read_text())
    config = util.prepare_config(up)
    util.validate_config(config)  # by Ray's own schema
    (kind,) = config["available_node_types"].values()
    assert kind["min_workers"] == len(up["provider"]["worker_ips"])
    # As in Ray's own defaults for such clusters: without the file, the head starts no workers.
    started = [line for line in up["head_start_ray_commands"] if "--head" in line]
    assert all("--autoscaling-config=~/ray_bootstrap_config.yaml" in line for line in started)


STAND_INS = {
    "scontrol": "echo one",
    "hostname": "echo 127.0.0.1",
    # Without its own options, what srun runs on a node is run here.
    "srun": 'while [[ $1 == -* ]]; do case $1 in -w) shift 2;; *) shift;; esac; done; exec "$@"',
}


@pytest.mark.heavy
def test_the_slurm_script_makes_a_cluster_and_runs_on_it(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="needs fedrecall[ray]")
    assert ray
    token = secrets.token_hex(16)
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    own = {
        "PATH": os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "SLURM_JOB_NODELIST": "one", "SLURM_CPUS_PER_TASK": "2", "RAY_PORT": "26379",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "OWNER_OF_THESE": token,
    }  # fmt: skip
    words = ["run", "demo", "rounds=1", "--out", tmp_path / "run", "--quiet", "--no-report"]
    script = subprocess.Popen(["bash", FILES / "slurm.sh", *words], env={**os.environ, **own})
    try:
        assert script.wait(180) == 0
    finally:
        end_all(token)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["workers"] == 2


@pytest.mark.parametrize(
    ("ray", "sentence"),
    [
        ("[[ $1 != status ]]", "the head one has not answered within 2 s"),
        ("true", "of 2 nodes, not all have joined within 2 s"),
    ],
)
def test_the_slurm_script_does_not_wait_for_ever(tmp_path: Path, ray: str, sentence: str) -> None:
    """`ray` is a stand-in that never becomes a cluster, and `python` one that sees a single node."""
    stand_ins = {**STAND_INS, "scontrol": "printf 'one\\ntwo\\n'", "ray": ray, "python": "echo 1"}
    for name, body in stand_ins.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    own = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_NODELIST": "one,two"}
    own |= {"SLURM_CPUS_PER_TASK": "2", "RAY_PATIENCE": "2"}
    done = subprocess.run(
        ["bash", FILES / "slurm.sh", "run", "demo"],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert sentence in done.stderr


def test_the_slurm_script_asks_for_a_time_and_is_well_formed() -> None:
    text = (FILES / "slurm.sh").read_text()
    assert re.search(r"^#SBATCH --time=\d\d:\d\d:\d\d$", text, re.MULTILINE)
    subprocess.run(["bash", "-n", FILES / "slurm.sh"], check=True)


def end_all(token: str) -> None:
    """Kill every process that has this in its environment: those of the script, and of nobody else."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if token.encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
