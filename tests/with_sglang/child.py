"""A process as SGLang starts them.

`child.py STUB` unpickles ServerArgs from stdin, names the worker's class and counts the hooks, DDTREE's and
the tracer's;
`child.py STUB only [VERSION]` counts the hooks of a server that only traces; with another version, of an
SGLang that lacks a function;
`child.py STUB VERSION TARGET DRAFT` pretends to be another SGLang and prints how DDTREE is refused.
"""

import pickle
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.with_sglang import stub_driver


def main() -> None:
    stub_driver.load(Path(sys.argv[1]))
    import sglang
    from sglang.srt.plugins import load_plugins

    if sys.argv[2:3] == ["only"]:
        _only(*sys.argv[3:])
        return
    if len(sys.argv) > 2:
        sglang.__version__ = sys.argv[2]
        load_plugins()
        from sglang.srt.server_args import ServerArgs

        try:
            ServerArgs(
                model_path=sys.argv[3],
                speculative_draft_model_path=sys.argv[4],
                device="cuda",
                attention_backend="triton",
                speculative_algorithm="DDTREE",
            )
        except Exception as error:
            print(error)
        return
    load_plugins()
    args = pickle.load(sys.stdin.buffer)
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from ddviz.engines.sglang_plugin import hooks
    from ddviz.engines.sglang_plugin.tracing.builtin import table

    hooks.assert_applied()
    algorithm = SpeculativeAlgorithm.from_string(args.speculative_algorithm)
    worker = algorithm.create_worker(args).__name__
    counts = f"{len(hooks.HOOKS)} + {len(table._registered & HookRegistry._patched)} hooks"
    print(args.speculative_ddtree_budget, algorithm.name, worker, counts)


def _only(version: str | None = None) -> None:
    import sglang
    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.speculative import eagle_utils
    from sglang.srt.speculative.spec_registry import get_spec

    from ddviz.engines.sglang_plugin.tracing.builtin import table

    if version is not None:
        sglang.__version__ = version
        del eagle_utils.organize_draft_results
    load_plugins()
    applied = len(table._registered & HookRegistry._patched)
    print(f"DDTREE {get_spec('DDTREE')}, {applied} of {len(table._registered)} hooks applied")


if __name__ == "__main__":
    main()
