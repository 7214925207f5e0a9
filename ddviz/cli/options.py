"""Arguments that commands share: groups of options, and the types of single values.

Out: argparse groups; values, or one sentence on what a value must be.
Not here: which command takes what (beside each command). Nothing here loads torch.
"""

import argparse
import re
import sys
from pathlib import Path

from ddviz.engines.base import MAX_BUDGET, MODES, SEED_NOTE


def add_params(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings")
    group.add_argument(
        "--budget", type=int, default=16, help=f"tree nodes beside the root, 1..{MAX_BUDGET} (default 16)"
    )
    group.add_argument(
        "--topk-cap", type=int, default=4, help="children a node may have, 0 = no cap (default 4)"
    )
    group.add_argument("--temperature", type=float, default=0.0, help="0 = greedy (default)")
    group.add_argument("--top-k", type=int, default=0, help="keep the k likeliest tokens, 0 = off (default)")
    group.add_argument(
        "--top-p", type=float, default=1.0, help="keep the likeliest mass p, 1 = off (default)"
    )
    group.add_argument("--seed", type=int, help=f"default: a fresh one, which the trace names. {SEED_NOTE}")
    group.add_argument("--max-tokens", type=int, default=192, help="output tokens at most (default 192)")
    group.add_argument("--threshold-single", type=float, default=1.0, help="1 = exact (default)")
    group.add_argument("--threshold-acc", type=float, default=1.0, help="1 = exact (default)")


def add_access(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("access", "Without these the app is for this machine alone.")
    group.add_argument(
        "--auth-file", type=Path, metavar="FILE", help="ask for a password; made with: ddviz password"
    )
    group.add_argument(
        "--allow-unauthenticated",
        action="store_true",
        help="with --host: ask for none; whoever reaches the address may run prompts and read all traces",
    )
    group.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name that browsers know the app by, such as that of a proxy before it",
    )


def add_engine(parser: argparse.ArgumentParser, of_command: bool = True) -> None:
    """Options of the engine. They may stand before or after a command, so a command's own have no default."""
    default = argparse.SUPPRESS if of_command else None
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--target", default=default, help="folder or hub id of the target (default: the demo target)"
    )
    group.add_argument("--draft", default=default, help="folder or hub id of a DFlash drafter that fits it")
    group.add_argument(
        "--device", default=default, help="cpu, cuda, cuda:N (default: cuda where there is one)"
    )
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "auto"),
        default=default,
        help="bfloat16 may part from autoregressive at near-ties; auto: the faster one on this CPU, "
        "measured once (default: auto in the app, float32 elsewhere)",
    )
    group.add_argument(
        "--draft-dtype",
        choices=("float32", "bfloat16"),
        default=default,
        help="of the drafter (default: as --dtype)",
    )


def add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "SGLang", "Words after -- go to sglang.launch_server; see docs/deploy.md."
    )
    group.add_argument(
        "--engine",
        choices=("torch", "sglang"),
        default="torch",
        help="sglang: the app starts an SGLang server of its own, with --target and --draft (default torch)",
    )
    group.add_argument(
        "--attach", type=address, metavar="URL", help="use a server that was started elsewhere"
    )
    group.add_argument("--trace-dir", type=Path, metavar="DIR", help="where that server writes its traces")


def mode_list(text: str) -> list[str]:
    modes = text.split(",")
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or len(set(modes)) < len(modes):
        raise argparse.ArgumentTypeError(f"{text!r}: must list ar, dflash, ddtree, each once at most")
    return modes


def count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number >= 0")
    return int(text)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number >= 1")
    return int(text)


def port_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a port from 1 to 65535, or 0 for any free one")
    return int(text)


def address(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+/?", text):
        raise argparse.ArgumentTypeError(f"{text!r}: must be an address such as http://127.0.0.1:30000")
    return text


def step_range(text: str) -> range:
    found = re.fullmatch(r"([0-9]*):([0-9]*)", text)
    if found is None or (found[1] and found[2] and int(found[1]) >= int(found[2])):
        raise argparse.ArgumentTypeError(f"{text!r}: must be A:B with A < B, as in 0:20; A: and :B do, too")
    return range(int(found[1] or 0), int(found[2] or sys.maxsize))
