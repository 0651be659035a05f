"""Runs a recipe on the real clients of a Flower federation, with the bits of `serial`. Needs the extra `flower`.

The server runs the usual round loop with an engine that sends messages (`engine`); a client runs the usual worker
on the node's own data (`client`). Flower provides transport, encryption and admission.
"""
