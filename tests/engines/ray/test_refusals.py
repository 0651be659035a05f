"""What is said where there is no Ray, or no cluster; nothing here starts one."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest
import yaml

from fedrecall.engines import ENGINES
from fedrecall.engines.auto import devices_for, requested_engine
from fedrecall.engines.ray import address as address_module
from fedrecall.engines.ray.address import refuse_silent
from fedrecall.engines.ray.cluster import Cluster, how_often
from fedrecall.errors import InputError
from fedrecall.recipe.settings import Execution


def test_without_ray_it_is_said_how_to_install_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"needs Ray, which is not installed; .* pip install 'fedrecall\[ray\]'"):
        Cluster("127.0.0.1:1")


def test_an_address_that_does_not_answer_is_refused_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(InputError, match=rf"execution.ray_address is '{address}', which does not answer \(Conn"):
        refuse_silent(address)
    assert time.monotonic() - began < 5


@pytest.mark.heavy
def test_a_port_at_which_something_else_listens_is_one_sentence_in_time(monkeypatch) -> None:
    pytest.importorskip("ray", reason="needs fedrecall[ray]")
    assert address_module.ANSWER + address_module.JOIN < 30
    monkeypatch.setattr(address_module, "JOIN", 2.0)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(InputError, match=rf"'{address}', where no Ray cluster could be joined: none has answered"):
            address_module.check_address(address)
    assert time.monotonic() - began < 10


def test_what_ray_makes_of_a_loopback_address_is_said() -> None:
    assert address_module.rewriting("127.0.0.1:6379", "10.0.0.7").startswith(
        " (Ray takes 127.0.0.1:6379 for 10.0.0.7:6379;"
    )
    assert address_module.rewriting("127.0.0.1:6379", "127.0.0.1") == ""
    assert address_module.rewriting("10.0.0.7:6379", "") == ""


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "head", "127.0.0.1:", "127.0.0.1:port"])
def test_what_is_no_address_of_a_head_is_refused(address) -> None:
    with pytest.raises(InputError, match=r"HOST:PORT of the cluster's head was expected, or auto"):
        refuse_silent(address)


def test_an_address_alone_means_the_engine_ray() -> None:
    assert requested_engine(Execution(ray_address="auto")) is ENGINES["ray"]
    assert requested_engine(Execution(engine="serial", ray_address="auto")) is ENGINES["serial"]
    assert requested_engine(Execution(resources={"CPU": 2})) is None


def test_settings_of_a_cluster_that_have_no_effect_are_noted(fedrecall, tmp_path) -> None:
    settings = ["rounds=1", "execution.ray_address=127.0.0.1:1", "execution.resources={CPU: 2}"]
    done = fedrecall("run", "demo", *settings, "--engine", "serial", "--out", tmp_path / "run", "--quiet")
    assert done.code == 0
    events = (tmp_path / "run" / "events.jsonl").read_text()
    for key in ("ray_address", "resources"):
        assert f"execution.{key} has no effect: the engine is 'serial', on this machine" in events


def test_the_room_of_a_node_is_that_of_its_scarcest_resource() -> None:
    node = {"CPU": 8.0, "GPU": 2.0}
    assert how_often({"CPU": 1.0}, node) == 8
    assert how_often({"CPU": 3.0}, node) == 2
    assert how_often({"CPU": 1.0, "GPU": 0.5}, node) == 4
    assert how_often({"CPU": 0.0, "GPU": 0.1}, node) == 20
    assert how_often({"CPU": 1.0, "big": 1.0}, node) == 0


@pytest.mark.parametrize(
    ("execution", "device"),
    [
        ({}, "cpu"),
        ({"resources": {"GPU": 0.25}}, "cuda:0"),
        ({"resources": {"GPU": 0.25}, "device": "cpu"}, "cpu"),
        ({"device": "cuda"}, "cuda:0"),
    ],
)
def test_a_worker_elsewhere_has_the_device_that_it_is_given_there(execution, device) -> None:
    import torch

    assert devices_for(Execution(engine="ray", **execution), 0.0, torch.float32) == [device]


def test_a_cluster_that_somebody_elses_run_names_is_not_joined(fedrecall, tmp_path: Path) -> None:
    run = tmp_path / "theirs"
    assert fedrecall("run", "demo", "rounds=1", "--out", run, "--no-report", "--quiet").code == 0
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["execution"] |= {"engine": "ray", "ray_address": "127.0.0.1:1"}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    asked = fedrecall("resume", run, "rounds=2", "--quiet")
    assert asked.code == 2
    assert "would join the Ray cluster '127.0.0.1:1', and is not known as made by you" in asked.err
    assert "look at that cluster, and say --trust if you trust it" in asked.err
    elsewhere = fedrecall("resume", run, "rounds=2", "--engine", "serial", "--quiet", "--no-report")
    assert elsewhere.code == 0, elsewhere.err  # then nothing is joined
