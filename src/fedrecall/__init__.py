"""Federated learning on clients whose labels differ, without the forgetting.

The public names are listed in `__init__.pyi` and imported on first access, so that help does not wait for torch.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
