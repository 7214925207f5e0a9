"""Defects that the server really commits when DDVIZ_FAULT names one and DDVIZ_DEBUG is 1: to try checks on.

In:  the environment.
Out: the name of a fault, one of `ddviz.engines.faults.FAULTS`. The trace then holds what it did, and its
     header the name.
Not here: the workers that commit them (faulty_workers.py), for which SGLang must be loaded; the same defects
of the embedded engine (torch_engine/faults.py); finding them (check/).
"""

import os

from ddviz.engines.faults import FAULT, asked_fault
from ddviz.errors import RefusedError

DEBUG = "DDVIZ_DEBUG"  # environment


def chosen() -> str | None:
    """The fault to commit, None = none. RefusedError for an unknown name, and where nobody said DEBUG."""
    name = asked_fault()
    if name is not None and os.environ.get(DEBUG) != "1":
        raise RefusedError(f"{FAULT}={name} makes this server do wrong: set {DEBUG}=1 too, or unset it")
    return name


def told() -> dict[str, str]:
    """What a trace's header says of it."""
    name = chosen()
    return {} if name is None else {"fault": name}
