"""A cluster that goes away in mid-run: one sentence with the way to go on, and the rounds before are kept."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray_cluster import start

pytestmark = pytest.mark.heavy

SETTINGS = ["demo", "rounds=300", "clients_per_round=18", "local.epochs=1", "checkpoint.every=1"]
# The command line, with less patience for a head that does not answer.
DRIVER = "from fedrecall.engines.ray import cluster; cluster.LOST = 4.0; from fedrecall.cli.main import main; main()"


@pytest.mark.parametrize("what", ["everything", "the driver's node"])
def test_a_cluster_that_goes_away_is_said_with_the_way_to_go_on(tmp_path: Path, what: str) -> None:
    cluster, run = start(nodes=1), tmp_path / "run"
    address = cluster.address
    place = ["--ray-address", address, "--out", str(run), "--quiet", "--no-report"]
    words = [sys.executable, "-c", DRIVER, "run", *SETTINGS, *place]
    driver = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 90
        while not list((run / "checkpoints").glob("*2.safetensors")) and time.monotonic() < deadline:
            assert driver.poll() is None
            time.sleep(0.05)
        for node in [*cluster.worker_nodes, cluster.head_node] if what == "everything" else [cluster.head_node]:
            for kind, processes in node.all_processes.items():
                for each in processes if what == "everything" or kind == "raylet" else ():
                    os.kill(each.process.pid, signal.SIGKILL)
        driver.wait(50)
        time.sleep(1)
        out, err = driver.communicate(timeout=10)
    finally:
        driver.kill()
        cluster.shutdown()
    assert driver.returncode == 1, err
    (sentence,) = [line for line in err.splitlines() if line.startswith("fedrecall: ")]
    by_ray = "this process was ended by Ray, which has lost its node on this machine"  # which of them, Ray decides
    gone = f"the Ray cluster at '{address}' is gone: its "
    assert gone in sentence or by_ray in sentence
    assert "Traceback" not in err
    assert "Raylet is terminated" not in out + err
    (again,) = re.findall(r"go on with: fedrecall (resume \S+)", sentence)
    done = len((run / "metrics.jsonl").read_text().splitlines())
    words = [*shlex.split(again), f"rounds={done + 1}", "--engine", "serial", "--quiet", "--no-report"]
    subprocess.run([sys.executable, "-m", "fedrecall.cli.main", *words], check=True, timeout=100)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == done + 1
