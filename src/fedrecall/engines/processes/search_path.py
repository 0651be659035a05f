"""The module search path of worker processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fedrecall

HOME = os.path.realpath(Path(fedrecall.__file__).parents[1])


def libraries_first() -> list[str]:
    """Return `sys.path` of this process with the user's folders, the script's and the working folder, last.

    Workers use it to import fedrecall. For the user's code they use this process's own `sys.path`, so that the
    same names lead to the same modules.
    """
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None) if getattr(main, "__spec__", None) is None else None
    users = {os.path.realpath("."), os.path.realpath(Path(script or "").parent)} - {HOME}
    return sorted(sys.path, key=lambda folder: os.path.realpath(folder) in users)
