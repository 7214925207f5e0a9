"""The entry point `ddviz` of the group `sglang.srt.plugins`; SGLang calls `register` in every process."""

from ddviz.errors import EngineError

SUPPORTED_SGLANG = "0.5.17"


def register() -> None:
    """Make DDTREE known to this process's SGLang. Calling it again does nothing.

    On another version of SGLang the name and the flags are still known, and choosing DDTREE is refused with a
    sentence: an exception here would only be logged, and the user would read `unknown algorithm`.
    """
    import sglang
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.speculative.spec_registry import get_spec, register_algorithm

    from ddviz.engines.sglang_plugin.algorithm import NAME, DDTreeAlgorithm, worker_class
    from ddviz.engines.sglang_plugin.flags import add_flags
    from ddviz.engines.sglang_plugin.hooks import register_hooks

    if get_spec(NAME) is not None:
        return
    add_flags(ServerArgs)
    supported = sglang.__version__ == SUPPORTED_SGLANG
    register_algorithm(
        NAME,
        supports_overlap=True,
        spec_class=DDTreeAlgorithm,
        validate_server_args=None if supported else _refuse_version,
    )(worker_class)
    if supported:
        register_hooks()


def _refuse_version(server_args: object) -> None:
    import sglang

    raise EngineError(
        f"DDTREE supports sglang {SUPPORTED_SGLANG}, this is {sglang.__version__}; "
        f"install it with: pip install 'ddviz[sglang]'"
    )
