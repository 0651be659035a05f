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
from flower_federation import BIN, HERE, RealFederation, end_group, free_port, real_federation
from flower_grid import app_config, lines, model, serial

from fedrecall.runs import files
from fedrecall.runs.reader import RunRecord

METHOD = ["partition.clients=3", "clients_per_round=3", "algorithm=scaffold", "evaluation.test_last=1"]
TIMEOUT = "execution.client_timeout=60"
METHOD += ["evaluation.every=3", "forgetting.rounds=[3]"]


def command(*words: object) -> None:
    done = subprocess.run([str(BIN / "fedrecall"), *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def config(folder: Path, client: int) -> str:
    return (
        f'partition-id={client} data="{folder}/nodes/client-{client}.npz" state-dir="{folder}/state/{client}" '
        "forgetting=true"
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, RealFederation]]:
    """Three nodes with keys that are registered, one with a key that is not, one without TLS. Two rounds; then a
    third as a run that is resumed; then a node is killed, and there is a fourth."""
    folder = tmp_path_factory.mktemp("real")
    command("partition", "demo", *METHOD, "--export", folder / "nodes", "--out", folder / "card")
    command(
        "flower", "init", folder / "app", "--recipe", "demo", *METHOD, "rounds=2", "execution.client_timeout=60"
    )
    with real_federation(folder / "federation") as federation:
        for client in (0, 1, 2):
            federation.node(client, config(folder, client))
        federation.node(0, config(folder, 0), registered=False, name="stranger")
        federation.plain_node(config(folder, 1))
        federation.nodes[0] = federation.processes[1]
        federation.flwr("run", str(folder / "app"), "real", "--stream")
        federation.flwr("run", str(folder / "app"), "real", "--stream", "--run-config", resumed(3))
        shutil.copytree(folder / "app" / "run", folder / "after-three")
        os.killpg(federation.nodes[2].pid, signal.SIGKILL)
        federation.flwr("run", str(folder / "app"), "real", "--stream", "--run-config", resumed(4))
        yield folder, federation


def resumed(rounds: int) -> str:
    return f'resume=true wait=0 settings="rounds={rounds}"'


def test_a_real_federation_has_the_bits_of_serial_also_over_two_runs(
    tmp_path: Path, played: tuple[Path, RealFederation]
) -> None:
    folder, _ = played
    here = serial(tmp_path / "serial", "demo", *METHOD, "rounds=3")
    assert model(folder / "after-three") == model(here)


def test_a_node_with_an_unknown_key_takes_no_part(played: tuple[Path, RealFederation]) -> None:
    folder, federation = played
    assert (folder / "federation" / "stranger").exists()
    assert "Start `flwr-clientapp` process" not in federation.log("stranger-log")
    assert federation.log("stranger-log")  # it tried
    listed = json.loads(federation.flwr("supernode", "list", "real", "--format", "json"))
    online = [node for node in listed["nodes"] if node["status"] == "online"]
    assert len(listed["nodes"]) == 4  # three, and the key of the node without TLS, which was never used
    assert len(online) == 2  # one was killed


def test_a_node_without_tls_takes_no_part(played: tuple[Path, RealFederation]) -> None:
    _, federation = played
    assert federation.log("plain-log")
    assert "Start `flwr-clientapp` process" not in federation.log("plain-log")


def test_the_nodes_that_belong_to_it_did_the_work(played: tuple[Path, RealFederation]) -> None:
    _, federation = played
    for client in (0, 1, 2):
        assert "flwr-clientapp" in federation.log(f"node{client}-log")


def test_the_server_has_neither_data_nor_states_of_the_clients(played: tuple[Path, RealFederation]) -> None:
    folder, _ = played
    run = RunRecord(folder / "app" / "run")
    assert run.class_counts is None
    assert "label_skew" not in run.card
    assert not list((folder / "app" / "run").rglob("client-0*"))
    states = [path.name for path in (folder / "state").rglob("*.safetensors")]
    assert len(states) == 6


def test_forgetting_is_measured_on_real_nodes(played: tuple[Path, RealFederation]) -> None:
    folder, _ = played
    (probed,) = [line for line in lines(folder / "app" / "run", files.METRICS) if "forgetting" in line]
    assert probed["round"] == 3


def test_a_node_that_was_killed_is_left_out_and_named(played: tuple[Path, RealFederation]) -> None:
    folder, _ = played
    run = folder / "app" / "run"
    assert sorted(lines(run, files.METRICS)[3]["clients"]) == [0, 1]
    left_out = [event["message"] for event in lines(run, files.EVENTS) if event["event"] == "missing"]
    assert len(left_out) == 1
    assert left_out[0].startswith("client 2 is left out of round 4: ")


def test_it_ends_with_a_report(played: tuple[Path, RealFederation]) -> None:
    folder, _ = played
    page = (folder / "app" / "run" / files.REPORT).read_text()
    assert "SCAFFOLD" in page
    assert "round 4, missing: client 2 is left out of round 4" in page


@contextmanager
def simulating(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of Flower's local simulation, which leaves a SuperLink running: it is ended here. So that no
    other Ray of this machine is taken for its own, Ray has a folder of its own too, with a short name."""
    ray = tempfile.mkdtemp(prefix="ray")
    environment = {
        **os.environ,
        "FLWR_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "RAY_TMPDIR": ray,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
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


def simulated(environment: dict[str, str], app: Path, *words: str) -> str:
    """What `flwr run` in simulation prints, which must succeed."""
    nodes = ["--federation-config", "num-supernodes=3"]
    done = subprocess.run(
        [str(BIN / "flwr"), "run", str(app), "local", "--stream", *nodes, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_generated_app_runs_in_flowers_simulation_with_the_bits_of_serial(tmp_path: Path) -> None:
    words = [
        "partition.clients=3",
        "clients_per_round=2",
        "rounds=3",
        "forgetting.every=0",
        "evaluation.test_last=1",
    ]
    command("flower", "init", tmp_path / "app", "--recipe", "demo", *words)
    with simulating(tmp_path) as environment:
        simulated(environment, tmp_path / "app")
    assert model(tmp_path / "app" / "run") == model(serial(tmp_path / "serial", "demo", *words))
    assert app_config(tmp_path / "app")["clients"] == 3


def test_the_example_with_our_loss_runs_and_logs_forgetting(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "flower-wsm"
    with simulating(tmp_path) as environment:
        printed = simulated(environment, example, "--run-config", f'out="{tmp_path}/accuracy.json"')
    measured = json.loads((tmp_path / "accuracy.json").read_text())
    assert list(measured) == ["1", "2", "3"]
    assert measured["1"]["forgetting"] == 0.0
    lost = measured["2"]["accuracy"] - measured["3"]["accuracy"]
    assert measured["3"]["forgetting"] == pytest.approx(lost, abs=1e-9)
    assert measured["3"]["accuracy"] > 0.4
    assert "since the last evaluation" in printed
