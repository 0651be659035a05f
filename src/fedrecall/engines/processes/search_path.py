"""The module search path of worker processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fedrecall

HOME = os.path.realpath(Path(fedrecall.__file__).parents[1])


def libraries_first() -> list[str]:
    """Return `sys.path` with the user's folders (the script's and the working folder) moved to the end.

    Workers use it to import fedrecall. For user code they use the unchanged `sys.path` of this process, so that
    names resolve to the same modules.
    """
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None) if getattr(main, "__spec__", None) is None else None
    users = {os.path.realpath("."), os.path.realpath(Path(script or "").parent)} - {HOME}
    return sorted(sys.path, key=lambda folder: os.path.realpath(folder) in users)
