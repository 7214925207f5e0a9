"""What several commands do: read the settings that were typed, load the engine, print, make folders."""

import argparse
import json
import sys
from pathlib import Path

from ddviz.cli.terminal import Progress
from ddviz.engines.base import EngineOptions, GenerateParams
from ddviz.errors import cant_write


def command(commands, name: str, function, text: str) -> argparse.ArgumentParser:
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


def load_engine(args: argparse.Namespace):
    """The engine in this process, its fetching told on stderr."""
    from ddviz.engines.torch_engine.loading import load_engine

    with Progress() as progress:

        def report(state: str, sentence: str, fraction: float | None) -> None:
            if state == "fetching":
                progress(sentence, "" if fraction is None else f"{fraction:4.0%}")

        return load_engine(engine_options(args), report)


def print_result(as_dict, render, result, as_json: bool) -> None:
    """A result of an analysis, as JSON or laid out for the terminal."""
    if as_json:
        print(json.dumps(as_dict(result)))
        return
    from rich.console import Console

    Console(highlight=False).print(render(result))


def make_folder_of(out: Path) -> None:
    """Make the folder that a trace is to lie in, and say so where it was not there."""
    folder = out.parent
    if folder.is_dir():
        return
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise cant_write(f"{out}: can't make the folder {folder}", error) from None
    print(f"{folder}: folder made", file=sys.stderr)


def is_same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def size_of(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.0f} kB"
