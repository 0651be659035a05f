"""The recipe in a run's folder. The run may be somebody else's, so its code is imported only with consent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedrecall.errors import InputError
from fedrecall.recipe.code_keys import consequences, names_code
from fedrecall.recipe.files import Tree, read_recipe
from fedrecall.recipe.layers import layered
from fedrecall.recipe.recipe import Recipe
from fedrecall.runs import files
from fedrecall.runs.ledger import unknown_reason

MOST_SHOWN = 8  # names listed in a message
LOOK_AT = {"import": "code", "join": "cluster", "send": "tracker"}  # the noun, by the verb of a consequence


def load_run_recipe(
    run: Path, words: Sequence[str] = (), extra: Tree | None = None, *, trust: bool, ask: str = "--trust"
) -> Recipe:
    """Return the recipe of a run, overridden by `key=value` words and then by `extra`.

    Raise an `InputError` if the folder names code, unless the ledger lists the run or `trust` is set; `ask` is how
    the message tells the user to set it.
    """
    written = read_recipe(str(run / files.RECIPE))
    tree, typed = layered([written], words, extra), names_code(layered([], words, extra))
    code = {key: value for key, value in names_code(tree).items() if typed.get(key) != value}
    reason = unknown_reason(run, names_code(written)) if code and not trust else None
    if reason is not None:
        shown = list(dict.fromkeys(words for key in code for words in consequences(key, code[key])))
        more = f" and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
        listed = ", ".join(shown[:MOST_SHOWN]).replace(", import ", ", ")
        kind = next(noun for word, noun in LOOK_AT.items() if shown[0].startswith(word))
        raise InputError(
            f"the run {str(run)!r} would {listed}{more}, and is not known as made by you in this place: {reason}; "
            f"look at that {kind}, and say {ask} if you trust it"
        )
    return Recipe(**tree)
