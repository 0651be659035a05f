"""Real clients: a recipe on a federation of Flower, with the bits of `serial`. Needs the extra `flower`.

The server's side is the round loop with an engine that sends messages (`engine`), the client's side is the worker
of every engine on the node's own data (`client`). Transport, encryption and who may join are Flower's.
"""
