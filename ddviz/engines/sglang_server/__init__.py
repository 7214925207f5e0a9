"""An SGLang server as the app's engine: one of its own, or one that was started elsewhere.

    engine.py       requests, their traces, where they stand: what both have in common
    own.py          a server that the app starts, pauses, steps, restarts and ends
    attached.py     somebody else's server, which it only asks and watches
    api.py          SGLang's HTTP API       asking.py   what can be asked, and how
    copying.py      a trace, from the server's folder to the app's
    child.py        the process and its log     keeper.py   what ends it when the app ends
    gatekeeper.py   single steps

The plugin inside the server (engines/sglang_plugin) writes the traces; nothing of it is imported here.
"""

from ddviz.engines.sglang_server.attached import AttachedServer
from ddviz.engines.sglang_server.own import OwnServer

__all__ = ["AttachedServer", "OwnServer"]
