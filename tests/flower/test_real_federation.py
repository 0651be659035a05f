"""Real processes: SuperLink and SuperNodes with TLS and keys, and Flower's own simulation. They take minutes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from flower_federation import (
    BIN,
    HERE,
    PATH,
    QUIET,
    RESUME,
    RUN,
    RealFederation,
    end_group,
    free_port,
    real_federation,
)
from flower_grid import events, lines, model, serial

from fedrecall.runs import files
from fedrecall.runs.reader import RunRecord

METHOD = ["partition.clients=3", "clients_per_round=3", "algorithm=scaffold", "forgetting.every=3"]  # of the page


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, RealFederation]]:
    """docs/deploy.md, followed: two rounds, then a third as a run that is resumed. Besides the page's nodes there
    are one with a key that is not registered and one without TLS. At last a node is killed, and there is a fourth
    round."""
    folder = tmp_path_factory.mktemp("real")
    with real_federation(folder) as federation:
        federation.node(0, "stranger", registered=False)
        federation.node(1, "plain", tls=False)
        for client in (0, 1, 2):
            federation.node(client, f"node{client}")
        federation.do(RUN)
        federation.do(RESUME)
        shutil.copytree(folder / "my-app" / "run", folder / "after-three")
        os.killpg(federation.nodes[2].pid, signal.SIGKILL)
        more = 'settings="rounds=4 execution.client_timeout=60" wait=0'
        federation.do(RESUME.replace('settings="rounds=3"', more))
        yield folder, federation


def test_a_real_federation_has_the_bits_of_serial_also_over_two_runs(
    tmp_path: Path, played: tuple[Path, RealFederation]
) -> None:
    folder, _ = played
    here = serial(tmp_path / "serial", "demo", *METHOD, "rounds=3")
    assert model(folder / "after-three") == model(here)


def test_a_node_with_an_unknown_key_takes_no_part(played: tuple[Path, RealFederation]) -> None:
    folder, federation = played
    assert (folder / "stranger.pub").exists()
    assert "Failed to activate SuperNode" in federation.log("stranger")
    assert "flwr-clientapp" not in federation.log("stranger")
    listed = json.loads(federation.do("flwr supernode list real --format json"))
    online = [node for node in listed["nodes"] if node["status"] == "online"]
    assert len(listed["nodes"]) == 4  # three, and the key of the node without TLS, which was never used
    assert len(online) == 2  # one was killed


def test_a_node_without_tls_takes_no_part(played: tuple[Path, RealFederation]) -> None:
    _, federation = played
    assert "Starting Flower SuperNode" in federation.log("plain")
    assert "flwr-clientapp" not in federation.log("plain")


def test_the_nodes_that_belong_to_it_did_the_work(played: tuple[Path, RealFederation]) -> None:
    _, federation = played
    for client in (0, 1, 2):
        assert "flwr-clientapp" in federation.log(f"node{client}")


def test_the_server_has_neither_data_nor_states_of_the_clients(played: tuple[Path, RealFederation]) -> None:
    folder, _ = played
    run = RunRecord(folder / "my-app" / "run")
    assert run.class_counts is None
    assert "label_skew" not in run.card
    assert not list((folder / "my-app" / "run").rglob("client-0*"))
    states = [path.name for path in (folder / "state").rglob("*.safetensors")]
    assert len(states) == 6


def test_forgetting_is_measured_on_real_nodes(played: tuple[Path, RealFederation]) -> None:
    folder, _ = played
    (probed,) = [line for line in lines(folder / "my-app" / "run", files.METRICS) if "forgetting" in line]
    assert probed["round"] == 3


def test_a_node_that_was_killed_is_left_out_and_named(played: tuple[Path, RealFederation]) -> None:
    folder, _ = played
    run = folder / "my-app" / "run"
    assert sorted(lines(run, files.METRICS)[3]["clients"]) == [0, 1]
    left_out = [event["message"] for event in events(run) if event["event"] == "missing"]
    assert len(left_out) == 1
    assert left_out[0].startswith("client 2 is left out of round 4: ")


def test_it_ends_with_a_report(played: tuple[Path, RealFederation]) -> None:
    folder, _ = played
    page = (folder / "my-app" / "run" / files.REPORT).read_text()
    assert "SCAFFOLD" in page
    assert "round 4, missing: client 2 is left out of round 4" in page


@contextmanager
def simulating(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of Flower's local simulation, which leaves a SuperLink running: it is ended here. So that no
    other Ray of this machine is taken for its own, Ray has a folder of its own too, with a short name."""
    ray = tempfile.mkdtemp(prefix="ray")
    environment = {
        **os.environ,
        **QUIET,
        "FLWR_HOME": str(folder / "home"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "RAY_TMPDIR": ray,
        "PATH": PATH,
    }
    port = environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"]
    link = subprocess.Popen(
        [str(BIN / "flower-superlink"), "--insecure", "--simulation", "--host", HERE, "--port", port],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _ in range(150):
            try:
                httpx.get(f"http://{HERE}:{port}/health")
                break
            except httpx.HTTPError:
                time.sleep(0.2)
        yield environment
    finally:
        end_group(link)
        shutil.rmtree(ray, ignore_errors=True)


def done(environment: dict[str, str], line: str) -> str:
    """What a command prints, which must succeed."""
    found = subprocess.run(line, shell=True, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout + found.stderr


def test_the_generated_app_runs_in_flowers_simulation_with_the_bits_of_serial(tmp_path: Path) -> None:
    words = [
        "partition.clients=3",
        "clients_per_round=2",
        "rounds=3",
        "forgetting.every=0",
        "evaluation.test_last=1",
    ]
    with simulating(tmp_path) as environment:
        printed = done(environment, f"fedrecall flower init {tmp_path}/app --recipe demo {' '.join(words)}")
        (line,) = (line for line in printed.splitlines() if "flwr run" in line and "local" in line)
        done(environment, line)
    assert model(tmp_path / "app" / "run") == model(serial(tmp_path / "serial", "demo", *words))


def test_the_example_with_our_loss_runs_and_logs_forgetting(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "flower-wsm"
    with simulating(tmp_path) as environment:
        out = f"--run-config 'out=\"{tmp_path}/accuracy.json\"'"
        nodes = "--federation-config 'num-supernodes=3'"
        printed = done(environment, f"flwr run {example} local --stream {nodes} {out}")
    measured = json.loads((tmp_path / "accuracy.json").read_text())
    assert list(measured) == ["1", "2", "3"]
    assert measured["1"]["forgetting"] == 0.0
    lost = measured["2"]["accuracy"] - measured["3"]["accuracy"]
    assert measured["3"]["forgetting"] == pytest.approx(lost, abs=1e-9)
    assert measured["3"]["accuracy"] > 0.4
    assert "since the last evaluation" in printed
