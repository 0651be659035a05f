"""The engines by name. To add one, write a module in this package and list its class in `ENGINES`."""

from __future__ import annotations

from fedrecall.engines.engine import Engine
from fedrecall.engines.processes.engine import Processes
from fedrecall.engines.ray.engine import Ray
from fedrecall.engines.serial import Serial
from fedrecall.engines.vectorised import Vectorised

ENGINES: dict[str, type[Engine]] = {kind.name: kind for kind in (Serial, Processes, Vectorised, Ray)}

__all__ = ["ENGINES", "Engine", "Processes", "Ray", "Serial", "Vectorised"]
