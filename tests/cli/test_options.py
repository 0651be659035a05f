"""The options of the section `execution` arrive at a command as one dict."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from fedrecall.cli.options import OPEN, data_option, execution_options, settings_argument


@click.command(context_settings=OPEN)
@settings_argument
@execution_options
def everything(settings: tuple[str, ...], execution: dict[str, str]) -> None:
    click.echo(json.dumps(execution))


@click.command(context_settings=OPEN)
@settings_argument
@data_option
def only_data(settings: tuple[str, ...], execution: dict[str, str]) -> None:
    click.echo(json.dumps([execution, settings]))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (["--workers", "2", "x=1", "--engine=serial"], {"workers": "2", "engine": "serial"}),
        (
            ["--ray-address", "h:1", "--device", "cpu", "--data", "d"],
            {"ray_address": "h:1", "device": "cpu", "data": "d"},
        ),
    ],
    ids=["none", "some", "others"],
)
def test_only_what_is_given_is_in_the_dict(words: list[str], expected: dict[str, str]) -> None:
    assert json.loads(CliRunner().invoke(everything, words).output) == expected


def test_a_command_may_have_some_of_the_options() -> None:
    output = CliRunner().invoke(only_data, ["--data", "d", "--engine", "serial"]).output
    assert json.loads(output) == [{"data": "d"}, ["--engine", "serial"]]
