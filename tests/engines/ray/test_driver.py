"""The command on a cluster: killed and resumed on another, data read by the nodes, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray_cluster import start

from fedrecall.api.execute import load_federation
from fedrecall.engines.ray import samples
from fedrecall.recipe.layers import load_recipe

pytestmark = pytest.mark.heavy

SETTINGS = [
    *("algorithm=scaffold", "clients_per_round=18", "rounds=6", "checkpoint.every=1", "local.epochs=1"),
    "forgetting.every=3",
]


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "fedrecall.cli.main", *map(str, words), "--quiet"]


def test_a_killed_driver_is_resumed_on_a_fresh_cluster_with_the_same_bits(cluster, tmp_path) -> None:
    run, serial = tmp_path / "run", tmp_path / "serial"
    place = ["--engine", "ray", "--ray-address"]
    driver = subprocess.Popen(command("run", "demo", *SETTINGS, *place, cluster.address, "--out", run, "--no-report"))
    deadline = time.monotonic() + 120
    while not list((run / "checkpoints").glob("*2.safetensors")) and time.monotonic() < deadline:
        assert driver.poll() is None
        time.sleep(0.05)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert not (run / "summary.json").exists()
    fresh = start(nodes=1)
    try:
        subprocess.run(command("resume", run, *place, fresh.address, "--no-report"), check=True, timeout=120)
    finally:
        fresh.shutdown()
    subprocess.run(command("run", "demo", *SETTINGS, "--engine", "serial", "--out", serial, "--no-report"), check=True)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (run / name).read_bytes() == (serial / name).read_bytes(), name
    assert not list((run / "clients").glob(".seen-*"))


def test_a_ray_of_ones_own_leaves_nothing_running(fedrecall, tmp_path) -> None:
    code = fedrecall("run", "demo", "rounds=1", "--engine", "ray", "--out", tmp_path / "run", "--quiet").code
    assert code == 0
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append((int(path.parent.name), path.read_bytes()))
        except OSError:
            continue
    mine = [found for pid, found in commands if b"ray::RayWorker" in found and pid != os.getpid()]
    assert not mine


def test_a_ray_of_ones_own_has_the_bits_of_serial(tmp_path) -> None:
    # The vectors of two LeNets come with a message: more than Ray does that with by default.
    for engine in ("ray", "serial"):
        words = ("clients_per_round=18", "rounds=2", "local.epochs=1", "--engine", engine, "--no-report")
        subprocess.run(command("run", "demo", *words, "--out", tmp_path / engine), check=True, timeout=120)
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "serial" / name).read_bytes(), name


def test_nodes_read_the_data_themselves_where_the_digest_agrees(monkeypatch) -> None:
    federation = load_federation(load_recipe("demo"))
    monkeypatch.setattr(samples, "seen", lambda path: (0, 0, 0))
    source = samples.SampleSource.of(federation)
    monkeypatch.undo()
    own = source.open()  # as a node does
    assert own is not None
    assert own.digest() == federation.digest()
    assert own.assignment is source.handle.assignment
    other = samples.SampleSource(source.handle, source.files, "0" * 16, source.data)
    assert other.open() is None  # then they are sent


def test_an_address_without_a_cluster_is_one_sentence(fedrecall, tmp_path) -> None:
    done = fedrecall("run", "demo", "--engine", "ray", "--ray-address", "127.0.0.1:1", "--out", tmp_path / "run")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "execution.ray_address is '127.0.0.1:1', which does not answer" in done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", [("demo",), ("run", "demo")])
def test_a_command_that_is_refused_can_be_given_again(fedrecall, tmp_path, what) -> None:
    words = [*what, "rounds=1", "--out", tmp_path / "run", "--quiet", "--no-report"]
    refused = fedrecall(*words, "--engine", "ray", "--workers", "99")
    assert refused.code == 2
    assert "99 workers with 1 CPU each were asked for" in refused.err
    assert fedrecall(*words, "--engine", "serial").code == 0
