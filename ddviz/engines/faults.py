"""Defects that an engine really commits when DDVIZ_FAULT names one: to try the checks on.

In:  the environment; the classes of an engine that commit them, each with its name as `fault`.
Out: the name that was asked for; those classes by name.
Not here: the classes themselves (torch_engine/faults.py, sglang_plugin/faulty_workers.py); finding what they
did (check/).
"""

import os
from typing import Protocol, TypeVar

from ddviz.errors import RefusedError

FAULT = "DDVIZ_FAULT"  # environment
FAULTS = (
    "chain_mask",
    "position_by_index",
    "kv_not_packed",
    "flat_off_by_one",
    "wrong_feature_layer",
    "biased_coin",
    "greedy_kernel_at_temperature",
)


class Faulty(Protocol):
    fault: str


Class = TypeVar("Class", bound=type[Faulty])


def asked_fault() -> str | None:
    """None = none. Raises RefusedError for an unknown name."""
    name = os.environ.get(FAULT) or None
    if name is not None and name not in FAULTS:
        raise RefusedError(f"{FAULT} is {name!r}, must be one of: {', '.join(FAULTS)}; unset it to run sound")
    return name


def by_fault(*classes: Class) -> dict[str, Class]:
    """One of each name: an engine commits all faults."""
    found = {one.fault: one for one in classes}
    assert set(found) == set(FAULTS), f"{set(found) ^ set(FAULTS) = }"
    return found
