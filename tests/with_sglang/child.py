"""A process as SGLang starts them.

`child.py STUB` unpickles ServerArgs from stdin, names the worker's class and counts
the hooks;
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
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from ddviz.engines.sglang_plugin import hooks

    hooks.assert_applied()
    algorithm = SpeculativeAlgorithm.from_string(args.speculative_algorithm)
    worker = algorithm.create_worker(args).__name__
    print(args.speculative_ddtree_budget, algorithm.name, worker, len(hooks.HOOKS), "hooks")


if __name__ == "__main__":
    main()
