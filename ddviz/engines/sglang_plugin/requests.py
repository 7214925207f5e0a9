"""What one request may ask of DDTREE: its own budget and cap, a trace; what is refused rather than ignored.

    {"text": ..., "sampling_params": {"custom_params": {"ddtree": {"budget": 8, "topk_cap": 2},
                                                        "ddviz": {"level": "standard"}}}}

In:  the request's sampling parameters, the server's budget and cap.
Out: budget and cap of this request, or the sentence that it is refused with.
"""

import os
from typing import Any, cast

from ddviz.errors import EngineError
from ddviz.trace import schema

KEY, TRACE_KEY = "ddtree", "ddviz"  # in custom_params
LEVEL = "DDVIZ_TRACE"  # environment: the level of all requests that do not say their own
LEVELS = ("light", "standard", OFF := "off")  # at which a request may be traced
_FIELDS = ("budget", "topk_cap")


def tree_limits(custom_params: dict[str, Any] | None, budget: int, topk_cap: int) -> tuple[int, int]:
    """Budget and cap of a request that `refusal` let pass; the cap is at least 1: 0 asks for the server's."""
    asked = (custom_params or {}).get(KEY) or {}
    return asked.get("budget", budget), asked.get("topk_cap", topk_cap) or topk_cap


def refusal(params: Any, budget: int, topk_cap: int, deterministic: bool) -> str | None:
    """The sentence that a request is refused with, None = welcome.

    params         sglang SamplingParams
    deterministic  the server runs with --enable-deterministic-inference
    """
    if params.min_p > 0:
        return f"DDTREE does not support min_p, got {params.min_p}: SGLang's tree verify has no such filter"
    if params.sampling_seed is not None and not deterministic:
        return (
            "DDTREE cannot honour sampling_seed on this server: start it with "
            "--enable-deterministic-inference --sampling-backend pytorch"
        )
    custom = params.custom_params or {}
    asked, traced = custom.get(KEY), custom.get(TRACE_KEY)
    return (None if asked is None else _limits_refusal(asked, budget, topk_cap)) or _level_refusal(traced)


def level_of_all() -> schema.CaptureLevel | None:
    """At which every request is traced that does not say otherwise, None = none. EngineError for no level."""
    level = os.environ.get(LEVEL) or OFF
    if level not in LEVELS:
        raise EngineError(f"{LEVEL} is {level!r}, must be one of {', '.join(LEVELS)}")
    return None if level == OFF else cast(schema.CaptureLevel, level)


def _level_refusal(asked: Any) -> str | None:
    if asked is None:
        return None
    if not isinstance(asked, dict):
        return f"custom_params[{TRACE_KEY!r}] is {asked!r}, must be an object with a level"
    level = asked.get("level", LEVELS[0])
    if level in LEVELS:
        return None
    return f"custom_params[{TRACE_KEY!r}]['level'] is {level!r}, must be one of {', '.join(LEVELS)}"


def _limits_refusal(asked: Any, budget: int, topk_cap: int) -> str | None:
    where = f"custom_params[{KEY!r}]"
    if not isinstance(asked, dict):
        return f"{where} is {asked!r}, must be an object with any of {', '.join(_FIELDS)}"
    unknown = sorted(set(asked) - set(_FIELDS))
    if unknown:
        return f"{where} has no field {unknown[0]!r}, only {', '.join(_FIELDS)}"
    for field, least, most in (("budget", 1, budget), ("topk_cap", 0, topk_cap)):
        value = asked.get(field, least)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            return (
                f"{where}[{field!r}] is {value!r}, must be an integer in [{least}, {most}]: "
                f"the server was started with {most}"
            )
    return None
