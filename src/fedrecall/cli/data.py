"""The commands `fedrecall data`: list, download and check data sets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedrecall.cli.options import json_option, print_escaped, quiet_option
from fedrecall.errors import InputError

if TYPE_CHECKING:
    from fedrecall.data.catalogue import Entry

# The commands import the catalogue themselves: it imports torch, which would delay --help by a second.

data_option = click.option(
    "--data",
    "folder",
    metavar="DIR",
    help="Where data sets lie (default: the variable FEDRECALL_DATA, or our cache folder).",
)


@click.group(epilog="Example: fedrecall data fetch cifar10")
def data() -> None:
    """List, download and check data sets."""


@data.command("list", epilog="Example: fedrecall data list --json")
@data_option
@json_option
def list_data(folder: str | None, as_json: bool) -> None:
    """List each data set with its source, size and terms, and whether it is present and intact."""
    from fedrecall.data.catalogue import CATALOGUE
    from fedrecall.data.places import data_root

    described = [described_entry(entry, folder) for entry in CATALOGUE.values()]
    if as_json:
        click.echo(json.dumps({"folder": str(data_root(folder)), "data": described}))
        return
    Console().print(data_table(described))
    print_escaped(f"folder: {data_root(folder)}")
    for line in described:
        if line["state"].startswith("damaged"):
            print_escaped(f"{line['name']} is {line['state']}")


@data.command("fetch", epilog="Example: fedrecall data fetch cifar10 --to ~/data")
@click.argument("name")
@click.option(
    "--to",
    metavar="DIR",
    help="The folder to put it in (default: the variable FEDRECALL_DATA, or our cache folder).",
)
@quiet_option
@json_option
def fetch_data(name: str, to: str | None, quiet: bool, as_json: bool) -> None:
    """Download and unpack the data set NAME, unless it is already present and intact."""
    from fedrecall.data.catalogue import find, obtain

    place = obtain(find(name), to, progress=not (quiet or as_json))
    print_escaped(json.dumps({"name": name, "folder": str(place), "state": "here"}) if as_json else str(place))


@data.command("verify", epilog="Example: fedrecall data verify cifar10")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@data_option
@json_option
def verify_data(names: tuple[str, ...], folder: str | None, as_json: bool) -> None:
    """Read every file of the data sets NAME (default: all that are present) and report whether they are intact."""
    from fedrecall.data.catalogue import CATALOGUE, find, state
    from fedrecall.data.places import data_root

    entries = [find(name) for name in names] or list(CATALOGUE.values())
    states = {entry.name: state(entry, folder) for entry in entries}
    if as_json:
        click.echo(json.dumps(states))
    else:
        for name, found in states.items():
            print_escaped(f"{name:14} {found.partition(':')[0]}")
    wrong = [f"{name} is {found}" for name, found in states.items() if found.startswith("damaged")]
    # Without names, a missing data set is no error: nobody requested it.
    wrong += [f"{name} is not in {data_root(folder)}." for name in names if states[name] == "missing"]
    if wrong:
        raise InputError(" ".join(wrong))


def described_entry(entry: Entry, folder: str | None) -> dict[str, Any]:
    from fedrecall.data.catalogue import state

    return {
        "name": entry.name,
        "content": entry.content,
        "state": state(entry, folder),
        "from": [download.url for download in entry.downloads] or [entry.otherwise],
        "download_bytes": entry.download_size,
        "unpacked_bytes": entry.unpacked_size,
        "terms": entry.terms,
        "terms_from": entry.terms_from,
    }


def data_table(described: list[dict[str, Any]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in described:
        facts = f"{line['content']}\n{sizes(line)}{line['terms']}\n{origin(line['from'])}"
        table.add_row(Text(line["name"]), Text(line["state"].partition(":")[0]), Text(facts))
    return table


def sizes(line: dict[str, Any]) -> str:
    known = {"to download": line["download_bytes"], "unpacked": line["unpacked_bytes"]}
    return "".join(f"{size / 1e6:.0f} MB {what}, " for what, size in known.items() if size)


def origin(addresses: list[str]) -> str:
    """Return the address, or the parent folder of the first of several."""
    return addresses[0] if len(addresses) == 1 else f"{addresses[0].rpartition('/')[0]}/"
