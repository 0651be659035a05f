"""The command `fedrecall partition`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedrecall.cli.options import (
    OPEN,
    data_option,
    json_option,
    out_option,
    print_escaped,
    recipe_argument,
    settings_argument,
    words_of,
)
from fedrecall.recipe.files import Tree
from fedrecall.runs import files

if TYPE_CHECKING:
    from fedrecall.recipe.recipe import Recipe


@click.command(context_settings=OPEN, epilog="Example: fedrecall partition demo partition.alpha=0.5 --out my-partition")
@recipe_argument
@settings_argument
@out_option
@click.option("--export", type=click.Path(path_type=Path), metavar="DIR", help="Also write one file per client.")
@data_option
@json_option
def partition(
    recipe: str, settings: tuple[str, ...], out: Path | None, export: Path | None, execution: Tree, as_json: bool
) -> None:
    """Show how RECIPE partitions the data: the card and a picture of class shares.

    --out writes partition.npz, partition.json and partition.png. --export writes the samples and labels of each
    client as client-N.npz, for the nodes of a deployment.
    """
    from rich.console import Console

    from fedrecall.api.execute import load_federation
    from fedrecall.cli.output import card_table, share_bars
    from fedrecall.data.card import federation_card
    from fedrecall.data.export import export_clients
    from fedrecall.recipe.layers import load_recipe
    from fedrecall.report.figures.partition_picture import draw_partition
    from fedrecall.runs.folder import RunFolder, explain_folder_errors

    loaded = load_recipe(recipe, words_of(settings), {"execution": execution})
    federation = load_federation(loaded)
    described = federation_card(federation)
    counts = federation.training_counts()
    if out:
        folder = RunFolder.create(out)
        federation.assignment.save(folder.path, counts)
        folder.write_json(files.CARD, described)
        picture = folder.path / "partition.png"
    else:
        picture = Path("runs") / f"partition-{Path(recipe).stem}.png"
        with explain_folder_errors(picture.parent):
            picture.parent.mkdir(exist_ok=True)
    alpha = f", alpha {loaded.partition['alpha']:g}" if "alpha" in loaded.partition else ""
    title = f"{loaded.data['name']}: {loaded.partition['name']}{alpha}"
    draw_partition(counts, list(federation.class_names), picture, title, client_names=federation.client_names)
    if export:
        export_clients(federation, RunFolder.create(export).path)
    if as_json:
        notes = notes_on_sharing(loaded, described)
        click.echo(json.dumps({"picture": str(picture), **described, "notes": notes}))
        return
    console = Console()
    console.print(card_table(described))
    console.print(share_bars(counts, federation.class_names, federation.client_names))
    for note in notes_on_sharing(loaded, described):
        print_escaped(f"note: {note}")
    print_escaped(str(picture))


def notes_on_sharing(recipe: Recipe, card: Mapping[str, Any]) -> list[str]:
    """Return what the recipe's objective says of the way that classes share clients."""
    from fedrecall.core.class_sharing import ClassSharing
    from fedrecall.objectives import Objective

    objective, sharing = recipe.create("objective"), ClassSharing.from_card(card)
    if sharing is None or not isinstance(objective, Objective):
        return []
    return list(objective.note_on_sharing(sharing, card["clients"] - card["held_out"]))
