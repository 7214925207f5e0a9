"""Commands that make a trace, show it or turn it into something else."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ddviz.cli.common import Commands, command, load_engine, params_of, tell_damage
from ddviz.cli.options import add_engine, add_params, count
from ddviz.cli.terminal import Progress, Signals
from ddviz.engines.base import MODES, Control
from ddviz.errors import BadValueError, cant_write
from ddviz.trace.writer import require_free

if TYPE_CHECKING:
    from ddviz.trace import Trace


def add_commands(commands: Commands) -> None:
    p = command(commands, "record", record, "run a prompt and record its trace")
    p.add_argument("--prompt", required=True, help="what to say to the target")
    p.add_argument("--out", type=Path, required=True, help="the trace to write, NAME.ddviz")
    p.add_argument("--force", action="store_true", help="overwrite an existing trace")
    p.add_argument("--mode", choices=MODES, default="ddtree", help="default %(default)s")
    p.add_argument(
        "--no-chat", dest="chat", action="store_false", help="continue the bare prompt, no chat template"
    )
    add_params(p)
    add_engine(p)

    p = command(commands, "show", show, "print a trace, or one step of it as a tree")
    p.add_argument("trace", type=Path)
    p.add_argument("--step", type=int, help="the step to draw, from 0")
    p.add_argument("--json", action="store_true", help="print JSON")

    p = command(
        commands,
        "export",
        export,
        "write a trace as one HTML file, or one step of it as a picture or a graph",
    )
    p.description += (
        " html: the whole viewer and the trace in one self-contained file, which opens offline. svg, png: the"
        " tree of one step, drawn by graphviz's dot. dot: its source. graphml, json: the tree with the token,"
        " status and probabilities of each node, for other tools."
    )
    p.add_argument("trace", type=Path, nargs="?", metavar="FILE", help="the trace, NAME.ddviz")
    p.add_argument("--to", choices=("html", "svg", "png", "dot", "graphml", "json"), help="the format")
    p.add_argument(
        "--lesson",
        metavar="NAME",
        help="instead of a trace: a lesson of the course as one page, or your own, NAME.md (docs/lessons.md)",
    )
    p.add_argument("--step", type=count, help="the step, from 0 (default: 0); html: where the page opens")
    p.add_argument("--out", type=Path, required=True, help="file to write; a missing folder is made")
    p.add_argument(
        "--level",
        choices=("light", "standard"),
        help="html: light holds tree, path and node probabilities; standard (default) every array. "
        "The size of both is told before the page is written",
    )
    p.add_argument("--force", action="store_true", help="overwrite an existing file")

    p = command(
        commands, "import", import_reference, "make a trace of a reference implementation's save_tree_traces"
    )
    p.add_argument(
        "source", type=Path, help="JSON: round_trees, output_ids, num_input_tokens; see docs/import.md"
    )
    p.add_argument("out", type=Path)
    p.add_argument("--force", action="store_true", help="overwrite an existing trace")


def record(args: argparse.Namespace) -> int:
    params = params_of(args, prompt=args.prompt).checked()
    require_free(args.out, args.force)  # before half a minute of loading
    _make_folder_of(args.out)
    with Signals() as signals:
        engine = load_engine(args)
        from ddviz.engines.torch_engine.record import Recording

        signals.control = Control()
        with Recording(args.out, overwrite=args.force) as recording:
            result = engine.generate(params, recording, signals.control)
    accept = sum(result.accept_lengths) / max(1, result.steps)
    print(engine.target.tokenizer.decode(result.output_ids, skip_special_tokens=True))
    print(
        f"{args.out}: {len(result.output_ids)} tokens in {result.steps} steps, accept length {accept:.2f}, "
        f"{result.tokens_per_s:.1f} tokens/s, finished: {result.finish_reason}",
        file=sys.stderr,
    )
    return signals.exit_code


def show(args: argparse.Namespace) -> None:
    from rich.console import Console

    from ddviz.trace import load
    from ddviz.trace.render import as_json, render_step, render_summary

    trace = load(args.trace)
    if args.json:
        print(as_json(trace, args.step))
        return
    console = Console(highlight=False)
    console.print(render_summary(trace) if args.step is None else render_step(trace, args.step))


def export(args: argparse.Namespace) -> None:
    from ddviz.trace import load

    if args.lesson is not None:
        _export_lesson(args)
        return
    if args.trace is None or args.to is None:
        raise BadValueError("name a trace and a format: export FILE --to FORMAT, or a lesson: --lesson NAME")
    if args.level and args.to != "html":
        raise BadValueError("--level is for --to html; the other formats hold one step, whole")
    require_free(args.out, args.force and not _is_same(args.out, args.trace))
    trace = load(args.trace)
    tell_damage(trace, "exported")
    if args.to == "html":
        _export_page(trace, args)
        return
    from ddviz.viewer.graph import export_graph, graph_bytes

    graph_bytes(trace, args.step or 0, "json")  # refused before a folder is made
    _make_folder_of(args.out)
    export_graph(trace, args.step or 0, args.to, args.out)
    print(
        f"{args.out}: step {args.step or 0} of {trace.name}, {_size_of(args.out.stat().st_size)}",
        file=sys.stderr,
    )


def _export_page(trace: "Trace", args: argparse.Namespace) -> None:
    """The page, and before it is written the sizes of both levels."""
    from msgspec import to_builtins

    from ddviz.check.doctor import examine_path
    from ddviz.viewer.html import checked_page, export_html, page_sizes
    from ddviz.viewer.levels import LEVELS

    level = args.level or "standard"
    checked_page(trace, level, args.step)
    for name, size in page_sizes(trace).items():
        chosen = "  <- this one" if name == level else ""
        print(f"--level {name:8}  about {_size_of(size):>8}  {LEVELS[name]}{chosen}", file=sys.stderr)
    _make_folder_of(args.out)
    with Progress() as progress:
        progress("Examining the trace")
        findings = to_builtins(examine_path(args.trace)[args.trace])
        export_html(
            trace,
            args.out,
            level,
            args.step,
            lambda done: progress("Writing the page", f"{done:4.0%}"),
            findings,
        )
    size = _size_of(args.out.stat().st_size)
    print(f"{args.out}: {size}; it opens in any browser, offline", file=sys.stderr)


def _export_lesson(args: argparse.Namespace) -> None:
    """A lesson of the course, or one's own, as one page."""
    from ddviz.learn.lesson import find_lesson
    from ddviz.learn.page import export_lesson

    given = [name for name in ("trace", "to", "step", "level") if getattr(args, name) not in (None, "html")]
    if given:
        raise BadValueError(
            f"a lesson has its own trace and step, and is written as html; leave out {given[0]}"
        )
    require_free(args.out, args.force and not _is_same(args.out, Path(args.lesson)))
    lesson = find_lesson(args.lesson)
    _make_folder_of(args.out)
    export_lesson(lesson, args.out)
    size = _size_of(args.out.stat().st_size)
    print(f"{args.out}: {lesson.title}, {size}; it opens in any browser, offline", file=sys.stderr)


def import_reference(args: argparse.Namespace) -> None:
    from ddviz.trace.importers import import_reference as run

    folder = "" if args.out.parent.is_dir() else f", in a new folder {args.out.parent}"
    run(args.source, args.out, overwrite=args.force)
    look = f"ddviz show {shlex.quote(str(args.out))}"
    print(f"{args.out}: written{folder}; look at it with: {look}", file=sys.stderr)


def _make_folder_of(out: Path) -> None:
    """Make the folder that a trace is to lie in, and say so where it was not there."""
    folder = out.parent
    if folder.is_dir():
        return
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise cant_write(f"{out}: can't make the folder {folder}", error) from None
    print(f"{folder}: folder made", file=sys.stderr)


def _is_same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _size_of(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.0f} kB"
