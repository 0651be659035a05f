"""Where a worker looks for modules."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fedrecall

HOME = os.path.realpath(Path(fedrecall.__file__).parents[1])


def libraries_first() -> list[str]:
    """`sys.path` of this process with the user's folders last: that of the script, and the working folder.

    Workers import what is ours by it. What is the user's they import by `sys.path` as it is here: the same names
    must lead to the same modules.
    """
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None) if getattr(main, "__spec__", None) is None else None
    users = {os.path.realpath("."), os.path.realpath(Path(script or "").parent)} - {HOME}
    return sorted(sys.path, key=lambda folder: os.path.realpath(folder) in users)
