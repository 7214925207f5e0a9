"""The command line: one function per command beside its options, errors handled once, in `main`.

serve.py     the app itself, and its passwords
traces.py    commands that make a trace, show it or turn it into something else
examine.py   commands that read traces and say something of them
trials.py    commands that run models
options.py, common.py, terminal.py: what they share

Exit codes: EXIT_CODES below; which error is which: errors.py.
What can be refused without torch is refused before it is imported, which takes seconds.
"""

import argparse
import signal
import sys
from collections.abc import Sequence

from ddviz import __version__
from ddviz.cli import examine, serve, traces, trials
from ddviz.errors import DdvizError, visible

EXIT_CODES = (
    "Exit codes: 0 done (doctor: clean); 2 misuse: what was typed can't be right: a value, an option, the"
    " name of a file, folder, device or model; 1 failure: the command line was right: a taken port, a full"
    " disk, no network, an engine that died (doctor: findings); 130 Ctrl-C, 143 SIGTERM."
)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    own, extra = _split_server_words(words)
    args = make_parser().parse_args(own)
    args.server_words = extra
    try:
        return int(args.command(args) or 0)
    except DdvizError as error:
        print("ddviz:", "\n".join(map(visible, str(error).split("\n"))), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `ddviz show x.ddviz | head`
        sys.stderr.close()
        return 0
    except KeyboardInterrupt as interrupt:  # its argument, where it has one: the signal (terminal.py)
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ddviz",
        description="A microscope and debugger for tree speculative decoding. Without a command: the app.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"ddviz {__version__}")
    serve.add_app(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for group in (traces, serve, examine, trials):
        group.add_commands(commands)
    return parser


def _split_server_words(words: list[str]) -> tuple[list[str], list[str]]:
    """What is ddviz's and what is SGLang's of `ddviz --engine sglang ... -- --tp 2`."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    if "sglang" not in words[:at] and "--engine=sglang" not in words[:at]:
        return words, []
    return words[:at], words[at + 1 :]
