"""What several commands do: read the settings that were typed, load the engine, print a result."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ddviz.cli.terminal import Progress
from ddviz.engines.base import EngineOptions, GenerateParams

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ddviz.engines.torch_engine.engine import TorchEngine
    from ddviz.trace import Trace

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # what add_subparsers returns
Result = TypeVar("Result")


def command(
    commands: Commands, name: str, function: Callable[[argparse.Namespace], int | None], text: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(command=function)
    return parser


def params_of(args: argparse.Namespace, prompt: str) -> GenerateParams:
    return GenerateParams(
        prompt=prompt,
        chat=args.chat,
        mode=getattr(args, "mode", "ddtree"),
        budget=args.budget,
        topk_cap=args.topk_cap,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        max_new_tokens=args.max_tokens,
        threshold_single=args.threshold_single,
        threshold_acc=args.threshold_acc,
    )


def engine_options(args: argparse.Namespace, dtype: str = "float32") -> EngineOptions:
    """dtype  where none was typed"""
    return EngineOptions(
        target=args.target,
        draft=args.draft,
        device=args.device or "auto",
        dtype=args.dtype or dtype,
        draft_dtype=args.draft_dtype,
    )


def load_engine(args: argparse.Namespace) -> "TorchEngine":
    """The engine in this process, its fetching told on stderr."""
    from ddviz.engines.torch_engine.loading import load_engine

    with Progress() as progress:

        def report(state: str, sentence: str, fraction: float | None) -> None:
            if state == "fetching":
                progress(sentence, "" if fraction is None else f"{fraction:4.0%}")

        return load_engine(engine_options(args), report)


def tell_damage(trace: "Trace", done: str) -> None:
    """On stderr, where some of a trace can't be read. done: to the rest, in a word."""
    if trace.damage:
        print(f"{trace.path}: {trace.damage}; only what can be read is {done}", file=sys.stderr)


def print_result(
    as_dict: Callable[[Result], dict[str, Any]],
    render: Callable[[Result], "RenderableType"],
    result: Result,
    as_json: bool,
) -> None:
    """A result of an analysis, as JSON or laid out for the terminal."""
    if as_json:
        print(json.dumps(as_dict(result)))
        return
    from rich.console import Console

    Console(highlight=False).print(render(result))
