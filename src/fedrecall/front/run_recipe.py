"""The recipe in a run's folder, which may be somebody else's: nothing that it names is imported unasked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedrecall.errors import InputError, short_repr
from fedrecall.recipe.files import Tree, read
from fedrecall.recipe.layers import from_words, layered
from fedrecall.recipe.own_code import names, own_code
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
    tree, typed = layered([written], words, extra), own_code(from_words(words))
    unasked = {key: part for key, part in own_code(tree).items() if typed.get(key) != part}
    reason = why_not_own(run, own_code(written)) if unasked and not trust else None
    if reason is not None:
        shown = [short_repr(name) for name in names(unasked)]
        more = f" and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
        raise InputError(
            f"the run {str(run)!r} would import {', '.join(shown[:MOST_SHOWN])}{more}, and is not known as made "
            f"by you in this place: {reason}; look at that code, and say {ask} if you trust it"
        )
    return Recipe(**tree)
