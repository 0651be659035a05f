"""Modules of an extra are not looked through for examples where the extra is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["src/fedrecall/flower/*.py"]
