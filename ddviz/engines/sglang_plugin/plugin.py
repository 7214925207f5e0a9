"""The entry point `ddviz` of the group `sglang.srt.plugins`; SGLang calls `register` in every process.

DDVIZ_TRACE_DIR=DIR   the server can trace, DDTREE and SGLang's own algorithms
DDVIZ_TRACE_ONLY=1    it does nothing else: no DDTREE, no change to SGLang, any version of it

A setting that makes no sense ends the server with a sentence. SGLang only logs a plugin's exceptions and goes
on without it: the user would read `unknown algorithm`, or find no traces.
"""

import logging
import os
import sys

from ddviz.engines.sglang_plugin.requests import LEVEL, level_of_all
from ddviz.engines.sglang_plugin.tracing.rotation import rotation
from ddviz.errors import EngineError

SUPPORTED_SGLANG = "0.5.17"
TRACE_ONLY = "DDVIZ_TRACE_ONLY"

logger = logging.getLogger(__name__)


def register() -> None:
    """What this process's SGLang is to know of ddviz. Calling it again does nothing. May raise SystemExit."""
    try:
        only = _trace_only()
        level = level_of_all()
        rotation()
    except (EngineError, ValueError) as error:
        sys.exit(f"ddviz: {error}")

    from ddviz.engines.sglang_plugin.tracing.tracer import FOLDER, trace_folder

    if level is not None and trace_folder() is None:
        logger.warning("ddviz: %s is set without %s: nothing is traced", LEVEL, FOLDER)
    if only:
        _register_trace_only()
    else:
        _register_ddtree()


def _trace_only() -> bool:
    value = os.environ.get(TRACE_ONLY, "")
    if value not in ("", "0", "1"):
        raise EngineError(f"{TRACE_ONLY} is {value!r}, must be 1 (trace only) or 0")
    return value == "1"


def _register_trace_only() -> None:
    import sglang

    from ddviz.engines.sglang_plugin.hooks import register_tracing
    from ddviz.engines.sglang_plugin.tracing.tracer import FOLDER, trace_folder

    if trace_folder() is None:
        logger.warning("ddviz: %s is set without %s: nothing is traced", TRACE_ONLY, FOLDER)
        return
    if sglang.__version__ != SUPPORTED_SGLANG:
        logger.warning(
            "ddviz: tracing is tested with sglang %s, this is %s: what does not fit is left out",
            SUPPORTED_SGLANG,
            sglang.__version__,
        )
    register_tracing()


def _register_ddtree() -> None:
    """DDTREE, and tracing where there is a folder for it.

    On another version of SGLang the name and the flags are still known, and choosing DDTREE is refused with a
    sentence: an exception here would only be logged, and the user would read `unknown algorithm`.
    """
    import sglang
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.speculative.spec_registry import get_spec, register_algorithm

    from ddviz.engines.sglang_plugin.algorithm import NAME, DDTreeAlgorithm, worker_class
    from ddviz.engines.sglang_plugin.flags import add_flags
    from ddviz.engines.sglang_plugin.hooks import register_hooks, register_tracing
    from ddviz.engines.sglang_plugin.tracing.tracer import trace_folder

    if get_spec(NAME) is not None:
        return
    add_flags(ServerArgs)
    supported = sglang.__version__ == SUPPORTED_SGLANG
    register_algorithm(
        NAME,
        supports_overlap=True,
        spec_class=DDTreeAlgorithm,
        validate_server_args=_check_fault if supported else _refuse_version,
    )(worker_class)
    if supported:
        register_hooks()
    if trace_folder() is None:  # a server that traces nothing is left alone
        return
    if supported:
        register_tracing()
    else:
        logger.warning("ddviz: to trace on sglang %s, set %s=1", sglang.__version__, TRACE_ONLY)


def _check_fault(server_args: object) -> None:
    """So that a fault that can't be is told before anything is loaded."""
    from ddviz.engines.sglang_plugin import faults

    faults.chosen()


def _refuse_version(server_args: object) -> None:
    import sglang

    raise EngineError(
        f"DDTREE supports sglang {SUPPORTED_SGLANG}, this is {sglang.__version__}; "
        f"install it with: pip install 'ddviz[sglang]'"
    )
