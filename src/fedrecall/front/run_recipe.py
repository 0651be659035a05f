"""The recipe in a run's folder, which may be somebody else's: nothing that it names is imported unasked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedrecall.errors import InputError
from fedrecall.recipe.files import Tree, read
from fedrecall.recipe.layers import from_words, layered
from fedrecall.recipe.own_code import consequences, own_code
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs import files
from fedrecall.runs.mark import why_not_own

MOST_SHOWN = 8  # names in a sentence


def load_run_recipe(
    run: Path, words: Sequence[str] = (), extra: Tree | None = None, *, trust: bool, ask: str = "--trust"
) -> Recipe:
    """The recipe of a run, `key=value` over it, and `extra` over both.

    Code that the folder names is imported if this user made the run here, or with `trust`; `ask` is how to say so.
    """
    written = read(str(run / files.RECIPE))
    tree, typed = layered([written], words, extra), own_code(from_words(words)) | own_code(extra or {})
    unasked = {key: part for key, part in own_code(tree).items() if typed.get(key) != part}
    reason = why_not_own(run, own_code(written)) if unasked and not trust else None
    if reason is not None:
        shown = consequences(unasked)
        more = f" and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
        listed = ", ".join(shown[:MOST_SHOWN]).replace(", import ", ", ")
        raise InputError(
            f"the run {str(run)!r} would {listed}{more}, and is not known as made by you in this place: {reason}; "
            f"look at that {'code' if 'import' in shown[0] else 'cluster'}, and say {ask} if you trust it"
        )
    return Recipe(**tree)
