"""The command line: one function per command, errors handled once, in `main`.

Exit codes: EXIT_CODES below; which error is which: errors.py.
What can be refused without torch is refused before it is imported, which takes seconds.
"""

import argparse
import json
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddviz import __version__
from ddviz.arguments import (
    add_access,
    add_engine,
    add_params,
    add_server,
    address,
    count,
    mode_list,
    port_number,
    positive,
    step_range,
)
from ddviz.engines.base import MODES, Control, EngineOptions, GenerateParams
from ddviz.errors import BadValueError, DdvizError, cant_write
from ddviz.terminal import Progress, Signals
from ddviz.trace.writer import require_free

if TYPE_CHECKING:
    from ddviz.app.access import Access
    from ddviz.trace import Trace

LIVE_S = 0.25  # between two looks at traces that are followed
EXIT_CODES = (
    "Exit codes: 0 done (doctor: clean); 2 misuse: what was typed can't be right: a value, an option, the"
    " name of a file, folder, device or model; 1 failure: the command line was right: a taken port, a full"
    " disk, no network, an engine that died (doctor: findings); 130 Ctrl-C, 143 SIGTERM."
)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    own, extra = _split_server_words(words)
    args = _parser().parse_args(own)
    args.server_words = extra
    try:
        return int(args.command(args) or 0)
    except DdvizError as error:
        print(f"ddviz: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `ddviz show x.ddviz | head`
        sys.stderr.close()
        return 0
    except KeyboardInterrupt as interrupt:  # its argument, where it has one: the signal (terminal.py)
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)


# -------------------------------------------------------------------- commands


def run_app(args: argparse.Namespace) -> None:
    _require_engine_words(args)
    access = _access(args)
    if args.attach:
        attach(args, access)
    elif args.engine == "sglang":
        run_server(args, access)
    else:
        from ddviz.app.main import launch
        from ddviz.engines.process import EngineProcess

        engine = EngineProcess(_engine_options(args))
        launch(engine, host=args.host, port=args.port, runs=args.runs, access=access)


def attach(args: argparse.Namespace, access: "Access") -> None:
    """The app on a server that was started elsewhere."""
    from ddviz.app.main import launch
    from ddviz.engines.sglang_server import AttachedServer

    engine = AttachedServer(args.attach, args.trace_dir)
    launch(engine, host=args.host, port=args.port, runs=args.runs, requests=args.trace_dir, access=access)


def run_server(args: argparse.Namespace, access: "Access") -> None:
    """The app with an SGLang server of its own."""
    from importlib.util import find_spec

    if find_spec("sglang") is None:
        raise DdvizError("SGLang is not installed here; install it with: pip install 'ddviz[sglang]'")
    from ddviz.app.main import default_runs, launch
    from ddviz.engines.sglang_server import OwnServer
    from ddviz.engines.sglang_server.own import ServerOptions

    dtype = ("--dtype", args.dtype) if args.dtype else ()
    options = ServerOptions(args.target, args.draft, extra=(*dtype, *args.server_words))
    runs = args.runs or default_runs()
    launch(OwnServer(options, runs / "server"), host=args.host, port=args.port, runs=runs, access=access)


def password(args: argparse.Namespace) -> None:
    """Ask for a password, twice at a terminal, and write its hash."""
    from getpass import getpass

    from ddviz.app.access import require_name, set_password

    require_name(args.name)
    if sys.stdin.isatty():
        word = getpass(f"Password of {args.name}: ")
        if getpass("The same again: ") != word:
            raise BadValueError("the two differ; nothing was written")
    else:
        word = sys.stdin.readline().rstrip("\r\n")
    set_password(args.auth_file, args.name, word)
    start = f"ddviz --auth-file {shlex.quote(str(args.auth_file))}"
    print(f"{args.auth_file}: {args.name} may use the app: {start}", file=sys.stderr)


def record(args: argparse.Namespace) -> int:
    params = _params(args, prompt=args.prompt).checked()
    require_free(args.out, args.force)  # before half a minute of loading
    _make_folder_of(args.out)
    with Signals() as signals:
        engine = _load(args)
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
    if trace.damage:
        print(f"{args.trace}: {trace.damage}; only what can be read is exported", file=sys.stderr)
    if args.to == "html":
        _export_page(trace, args)
        return
    from ddviz.viewer.graph import export_graph, graph_bytes

    graph_bytes(trace, args.step or 0, "json")  # refused before a folder is made
    _make_folder_of(args.out)
    export_graph(trace, args.step or 0, args.to, args.out)
    print(
        f"{args.out}: step {args.step or 0} of {trace.name}, {_size(args.out.stat().st_size)}",
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
        print(f"--level {name:8}  about {_size(size):>8}  {LEVELS[name]}{chosen}", file=sys.stderr)
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
    print(f"{args.out}: {_size(args.out.stat().st_size)}; it opens in any browser, offline", file=sys.stderr)


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
    size = _size(args.out.stat().st_size)
    print(f"{args.out}: {lesson.title}, {size}; it opens in any browser, offline", file=sys.stderr)


def import_reference(args: argparse.Namespace) -> None:
    from ddviz.trace.importers import import_reference as run

    folder = "" if args.out.parent.is_dir() else f", in a new folder {args.out.parent}"
    run(args.source, args.out, overwrite=args.force)
    look = f"ddviz show {shlex.quote(str(args.out))}"
    print(f"{args.out}: written{folder}; look at it with: {look}", file=sys.stderr)


def doctor(args: argparse.Namespace) -> int:
    if args.live:
        return _doctor_live(args)
    from ddviz.check.doctor import examine_path
    from ddviz.check.report import print_report

    if not args.traces:
        raise BadValueError("name what to examine: doctor FILE|DIR; or follow the app's runs: doctor --live")
    results = {file: found for path in args.traces for file, found in examine_path(path).items()}
    return print_report(results, as_json=args.json)


def _doctor_live(args: argparse.Namespace) -> int:
    """Findings as steps arrive, until a signal, or until the file that was named has its end."""
    from ddviz.check.live import Watch, print_news

    if len(args.traces) > 1:
        raise BadValueError("doctor --live follows one file or folder")
    if args.traces:
        (path,) = args.traces
    else:
        from ddviz.app.folders import default_runs

        path = default_runs()
        path.mkdir(parents=True, exist_ok=True)
    watch = Watch(path)
    print(f"Following {path}; Ctrl-C ends it", file=sys.stderr, flush=True)
    with Signals() as signals:
        signals.control = Control()
        while not (signals.control.stopped or watch.is_over):
            for news in watch.poll():
                print_news(news, as_json=args.json)
            time.sleep(LIVE_S)
    return int(watch.has_faults)


def diff(args: argparse.Namespace) -> int:
    from ddviz.analysis import parting as p
    from ddviz.trace import load

    a, b = load(args.a), load(args.b)
    parted = p.part(a, b)
    _print(lambda found: p.as_dict(a, b, found), lambda found: p.render(a, b, found), parted, args.json)
    return 0 if parted.is_same else 1


def stats(args: argparse.Namespace) -> None:
    from ddviz.analysis import stats as s
    from ddviz.analysis.stats_report import as_dict, render
    from ddviz.analysis.traces import gather

    _print(as_dict, render, s.stats(*gather(args.trace)), args.json)


def whatif(args: argparse.Namespace) -> None:
    from ddviz.analysis import cost as c
    from ddviz.analysis.traces import gather
    from ddviz.analysis.whatif import whatif as ask
    from ddviz.analysis.whatif_report import as_dict, render

    cost = c.parse_cost(args.cost) if args.cost else None
    traces, notes = gather(args.trace)
    cost = cost or c.measured(traces, "medians of these traces' own steps")
    results = ask(traces, args.budget, args.topk_cap)
    _print(lambda r: as_dict(r, cost, notes), lambda r: render(r, cost, notes), results, args.json)


def temptest(args: argparse.Namespace) -> int:
    from tempfile import TemporaryDirectory

    from msgspec import structs

    from ddviz import temptest as t
    from ddviz.bench import read_prompts
    from ddviz.temptest_report import as_dict, render

    params = _params(args, prompt="-").checked()
    temperatures = args.temperatures or ([args.temperature] if args.temperature else None)
    for temperature in temperatures or []:
        structs.replace(params, temperature=temperature).checked()
    prompts = [p.text for p in read_prompts(args.prompts)] if args.prompts else list(t.PROMPTS)
    if args.out:
        t.require_empty(args.out)
    with TemporaryDirectory(prefix="ddviz-") as scratch, Progress() as progress:
        engine = _temptest_engine(args)
        try:
            model = t.ready(engine, progress)
            reference = t.ServerReference(args.reference) if args.reference else None
            folder = args.out or Path(scratch)
            on = t.Bench(engine, model, prompts[: args.limit], params, folder, args.log, reference, progress)
            if args.sweep:
                report = t.sweep(on, temperatures or [0.0, 0.6, 1.0], args.budgets, args.topk_caps)
            else:
                report = t.temptest(on, temperatures or [0.6, 1.0])
        finally:
            engine.close()
        progress("Examining the traces")
        said = as_dict(report)
    _print(lambda _: said, render, report, args.json)
    if args.out:
        look = f"ddviz --runs {shlex.quote(str(args.out))}"
        print(f"{args.out}: the traces; open them with: {look}", file=sys.stderr)
    return 0 if report.is_clean else 1


def _temptest_engine(args: argparse.Namespace):  # type: ignore[no-untyped-def]
    if not args.url:
        from ddviz.engines.process import EngineProcess

        return EngineProcess(_engine_options(args))
    if not (args.trace_dir and args.trace_dir.is_dir()):
        raise BadValueError("--url needs --trace-dir DIR, the folder that the server's DDVIZ_TRACE_DIR names")
    from ddviz.engines.sglang_server import AttachedServer

    return AttachedServer(args.url, args.trace_dir)


def audit(args: argparse.Namespace) -> int:
    from ddviz.trace import load

    trace = load(args.trace)
    from ddviz.check import audit as a
    from ddviz.check.plain import load_plain

    with Progress() as progress:
        progress("Loading the models")
        models = load_plain(trace.header, args.target, args.draft, args.device)
        report = a.audit(
            trace, *models, args.steps, lambda done, total: progress("Reading", f"step {done} of {total}")
        )
    return a.print_report(args.trace, report, as_json=args.json)


def losslessness(args: argparse.Namespace) -> int:
    if args.reference and not args.url:
        raise BadValueError("--reference is for --url; the embedded engine is compared with its own ar")
    asked = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p")}
    given = {name: value for name, value in asked.items() if value is not None}
    from ddviz.check import losslessness as c

    size = c.QUICK if args.quick else c.FULL
    size = c.Size(args.draws or size.draws, args.generations or size.generations)
    chosen = [{"temperature": 1.0, **given}] if given else c.SETTINGS[: 1 if args.quick else None]
    names = ("prompt", "chat", "mode", "budget", "topk_cap", "threshold_single", "threshold_acc")
    same = {name: getattr(args, name) for name in names}
    settings = [GenerateParams(**same, **setting).checked() for setting in chosen]
    for params in settings:
        c.require_sampled(params)
    if args.url:
        rows, subject = _losslessness_of_server(args, settings, size.generations)
    else:
        engine = _load(args)
        subject = f"{engine.target.name} in {engine.name}, {engine.describe()['dtype']}, {args.mode}"
        with Progress() as progress:
            rows = c.check_embedded(engine, settings, size, args.seed, progress)
    return c.print_report(subject, rows, as_json=args.json)


def _losslessness_of_server(args: argparse.Namespace, settings: list[GenerateParams], generations: int):  # type: ignore[no-untyped-def]
    from contextlib import ExitStack

    from ddviz.check import losslessness as c
    from ddviz.check import samplers as s

    server = s.ServerSampler(args.url)
    with ExitStack() as stack:
        reference = None
        if args.reference == "embedded":
            reference = s.target_law(server, args.prompt, args.target, args.device)
        elif args.reference == "restart":
            reference = stack.enter_context(s.Restarted(server))
        elif args.reference:
            reference = s.reference_server(server, args.reference)
        with Progress() as progress:
            return c.check_server(server, reference, settings, generations, progress), server.name


def bench(args: argparse.Namespace) -> None:
    from ddviz import bench as b

    prompts = b.read_prompts(args.prompts, args.limit, args.tag)
    params = _params(args, prompt="-").checked()
    engine = _load(args)
    sentence = f"Running {len(prompts)} prompts in each of {', '.join(args.modes)}"
    with Progress() as progress:
        progress(sentence)
        results = b.run_bench(
            engine, prompts, args.modes, params, lambda done: progress(sentence, f"· {done} done")
        )
    if args.json:
        print(b.report_json(engine, params, results))
    else:
        from rich.console import Console

        Console(highlight=False).print(b.report_table(engine, results))


def _print(as_dict, render, result, as_json: bool) -> None:  # type: ignore[no-untyped-def]
    """A result of an analysis, as JSON or laid out for the terminal."""
    if as_json:
        print(json.dumps(as_dict(result)))
        return
    from rich.console import Console

    Console(highlight=False).print(render(result))


# -------------------------------------------------------------------- arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ddviz",
        description="A microscope and debugger for tree speculative decoding. Without a command: the app.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"ddviz {__version__}")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument(
        "--port",
        type=port_number,
        default=7860,
        help="port to listen on, 0 = any free one (default %(default)s)",
    )
    parser.add_argument("--runs", type=Path, help="folder for live traces (default: the user's data folder)")
    add_access(parser)
    add_engine(parser, of_command=False)
    add_server(parser)
    parser.set_defaults(command=run_app)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    _add_traces(commands)
    _add_examinations(commands)
    _add_tests(commands)
    return parser


def _add_traces(commands) -> None:  # type: ignore[no-untyped-def]
    """Commands that make a trace, show it or turn it into something else."""
    p = _command(commands, "record", record, "run a prompt and record its trace")
    p.add_argument("--prompt", required=True, help="what to say to the target")
    p.add_argument("--out", type=Path, required=True, help="the trace to write, NAME.ddviz")
    p.add_argument("--force", action="store_true", help="overwrite an existing trace")
    p.add_argument("--mode", choices=MODES, default="ddtree", help="default %(default)s")
    p.add_argument(
        "--no-chat", dest="chat", action="store_false", help="continue the bare prompt, no chat template"
    )
    add_params(p)
    add_engine(p)

    p = _command(commands, "show", show, "print a trace, or one step of it as a tree")
    p.add_argument("trace", type=Path)
    p.add_argument("--step", type=int, help="the step to draw, from 0")
    p.add_argument("--json", action="store_true", help="print JSON")

    p = _command(
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

    p = _command(commands, "password", password, "let somebody use the app: write a hashed password")
    p.description += " It is asked for, or read as one line from standard input."
    p.add_argument("name", help="who is to give it when the page opens")
    p.add_argument(
        "--auth-file", type=Path, required=True, metavar="FILE", help="made where it is not there yet"
    )

    p = _command(
        commands, "import", import_reference, "make a trace of a reference implementation's save_tree_traces"
    )
    p.add_argument(
        "source", type=Path, help="JSON: round_trees, output_ids, num_input_tokens; see docs/import.md"
    )
    p.add_argument("out", type=Path)
    p.add_argument("--force", action="store_true", help="overwrite an existing trace")


def _add_examinations(commands) -> None:  # type: ignore[no-untyped-def]
    """Commands that read traces and say something of them."""
    p = _command(commands, "doctor", doctor, "find faults in traces, or in all traces of a folder")
    p.add_argument("traces", type=Path, nargs="*", metavar="FILE|DIR")
    p.add_argument(
        "--live",
        action="store_true",
        help="follow traces while they grow (default: those of the app's runs) and print findings as steps "
        "arrive, until Ctrl-C or the end of FILE; then 0 clean, 1 findings",
    )
    p.add_argument("--json", action="store_true", help="print findings as JSON; with --live a line each")

    p = _command(commands, "diff", diff, "find the first step where two traces part, and the array that did")
    p.add_argument("a", type=Path, metavar="A")
    p.add_argument("b", type=Path, metavar="B")
    p.add_argument("--json", action="store_true", help="print JSON")

    p = _command(commands, "stats", stats, "count acceptance by depth and rank, and time per stage")
    p.add_argument("trace", type=Path, metavar="FILE|DIR")
    p.add_argument("--json", action="store_true", help="print JSON")

    p = _command(
        commands, "whatif", whatif, "say what accept length and speed another budget and cap would have had"
    )
    p.add_argument("trace", type=Path, metavar="FILE|DIR")
    p.add_argument("--budget", type=positive, nargs="+", metavar="N", help="budgets to ask for")
    p.add_argument("--topk-cap", type=count, nargs="+", metavar="K", help="caps to ask for, 0 = none")
    p.add_argument(
        "--cost",
        metavar="FILE|DIR|VALUES",
        help="what a step of so many nodes costs: traces of several budgets, a JSON file, or nodes:ms,... "
        "(default: the traces' own stage times)",
    )
    p.add_argument("--json", action="store_true", help="print JSON")


def _add_tests(commands) -> None:  # type: ignore[no-untyped-def]
    """Commands that run models."""
    p = _command(
        commands, "temptest", temptest, "the temperature test: greedy regression, speed, diversity, health"
    )
    p.add_argument("--out", type=Path, metavar="DIR", help="keep a trace of every run in this new folder")
    p.add_argument("--prompts", type=Path, help="JSON Lines as for bench (default: three of ddviz's own)")
    p.add_argument("--limit", type=positive, help="use the first N prompts")
    p.add_argument(
        "--temperatures", type=float, nargs="+", metavar="T", help="default 0.6 1; with --sweep 0 0.6 1"
    )
    p.add_argument("--sweep", action="store_true", help="instead: speed of budgets and caps, as bars")
    p.add_argument(
        "--budgets", type=positive, nargs="+", metavar="N", default=[8, 16, 32, 64], help="of --sweep"
    )
    p.add_argument("--topk-caps", type=count, nargs="+", metavar="K", default=[4, 8], help="of --sweep")
    p.add_argument("--json", action="store_true", help="print JSON")
    p.add_argument("--no-chat", dest="chat", action="store_false", help="bare prompts, no chat template")
    group = p.add_argument_group("SGLang")
    group.add_argument(
        "--url", type=address, metavar="URL", help="test a server instead of the embedded engine"
    )
    group.add_argument(
        "--trace-dir", type=Path, default=argparse.SUPPRESS, metavar="DIR", help="where it writes its traces"
    )
    group.add_argument(
        "--reference", type=address, metavar="URL", help="a server without speculation, for greedy"
    )
    group.add_argument("--log", type=Path, metavar="FILE", help="its log")
    add_params(p)
    add_engine(p)

    p = _command(
        commands, "audit", audit, "compute a trace's probabilities again by plain forwards, and compare"
    )
    p.add_argument("trace", type=Path, metavar="FILE")
    p.add_argument("--steps", type=step_range, metavar="A:B", help="steps A to B-1 (default: all)")
    p.add_argument("--json", action="store_true", help="print what was compared and findings as JSON")
    p.add_argument("--target", default=argparse.SUPPRESS, help="folder or hub id (default: the header's)")
    p.add_argument("--draft", default=argparse.SUPPRESS, help="folder of its drafter (default: the header's)")
    p.add_argument("--device", default=argparse.SUPPRESS, help="default: cuda where there is one, else cpu")

    p = _command(commands, "losslessness", losslessness, "test whether an engine samples from its target")
    p.description += (
        " One step against its exact distribution, and tokens 1 to 3 of short generations against"
        " autoregression, by G-tests. Exit code 0: nothing differs; 1: something does, or was not checked."
    )
    p.add_argument("--quick", action="store_true", help="one setting, fewer draws: under a minute on a CPU")
    p.add_argument(
        "--url", type=address, help="test an SGLang server over HTTP instead of the embedded engine"
    )
    p.add_argument(
        "--reference",
        type=lambda text: text if text in ("restart", "embedded") else address(text),
        metavar="URL|restart|embedded",
        help="of --url: a server without speculation, one started here for it, or the target loaded here",
    )
    p.add_argument("--mode", choices=("ddtree", "dflash"), default="ddtree", help="default %(default)s")
    p.add_argument("--prompt", default="My favourite animal is the", help="default: %(default)r")
    p.add_argument("--chat", action="store_true", help="put the prompt through the chat template")
    p.add_argument("--draws", type=positive, help="of a step's acceptance (default 50000, quick 10000)")
    p.add_argument("--generations", type=positive, help="a setting and arm (default 4000, quick 600)")
    p.add_argument("--json", action="store_true", help="print JSON")
    add_params(p)
    p.set_defaults(temperature=None, top_k=None, top_p=None, seed=0)
    add_engine(p)

    p = _command(commands, "bench", bench, "measure tokens/s, accept length and losslessness of each mode")
    p.add_argument(
        "--prompts", type=Path, required=True, help='JSON Lines: {"prompt": ...} or {"messages": [...]}'
    )
    p.add_argument("--modes", type=mode_list, default=list(MODES), help="default ar,dflash,ddtree")
    p.add_argument("--limit", type=positive, help="use the first N prompts")
    p.add_argument("--tag", help="use the prompts with this tag")
    p.add_argument("--json", action="store_true", help="print JSON")
    p.add_argument("--no-chat", dest="chat", action="store_false", help="bare prompts, no chat template")
    add_params(p)
    add_engine(p)


def _command(commands, name: str, function, text: str) -> argparse.ArgumentParser:  # type: ignore[no-untyped-def]
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(command=function)
    return parser


def _access(args: argparse.Namespace) -> "Access":
    """Who is let in. Raises BadValueError for a start that would let others in unasked."""
    from ddviz.app.access import Access

    return Access(args.auth_file, args.allow_unauthenticated, tuple(args.allowed_host)).checked(args.host)


def _require_engine_words(args: argparse.Namespace) -> None:
    """Raises BadValueError for options of one kind of engine beside another kind."""
    asked = [
        f"--{name.replace('_', '-')}"
        for name in ("target", "draft", "device", "dtype", "draft_dtype")
        if getattr(args, name)
    ]
    if args.attach and (args.engine == "sglang" or asked):
        raise BadValueError(
            f"--attach uses a server as it was started; leave out {', '.join(asked) or '--engine'}"
        )
    if args.attach and not (args.trace_dir and args.trace_dir.is_dir()):
        raise BadValueError(
            "--attach needs --trace-dir DIR, the folder that the server's DDVIZ_TRACE_DIR names"
        )
    if args.trace_dir and not args.attach:
        raise BadValueError("--trace-dir is for --attach; --runs names the folder of live traces")
    if args.engine == "sglang":
        if not (args.target and args.draft):
            raise BadValueError("--engine sglang needs --target and --draft, a model and its DFlash drafter")
        wrong = [word for word in asked if word in ("--device", "--draft-dtype")] or (
            ["--dtype auto"] if args.dtype == "auto" else []
        )
        if wrong:
            raise BadValueError(f"{wrong[0]} is the embedded engine's; SGLang's own flags go after --")


def _split_server_words(words: list[str]) -> tuple[list[str], list[str]]:
    """What is ddviz's and what is SGLang's of `ddviz --engine sglang ... -- --tp 2`."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    if "sglang" not in words[:at] and "--engine=sglang" not in words[:at]:
        return words, []
    return words[:at], words[at + 1 :]


def _params(args: argparse.Namespace, prompt: str) -> GenerateParams:
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


def _engine_options(args: argparse.Namespace) -> EngineOptions:
    return EngineOptions(
        target=args.target,
        draft=args.draft,
        device=args.device or "auto",
        dtype=args.dtype or ("auto" if args.command is run_app else "float32"),
        draft_dtype=args.draft_dtype,
    )


def _load(args: argparse.Namespace):  # type: ignore[no-untyped-def]
    """The engine in this process, its fetching told on stderr."""
    from ddviz.engines.torch_engine.loading import load_engine

    with Progress() as progress:

        def report(state: str, sentence: str, fraction: float | None) -> None:
            if state == "fetching":
                progress(sentence, "" if fraction is None else f"{fraction:4.0%}")

        return load_engine(_engine_options(args), report)


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


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.0f} kB"


if __name__ == "__main__":
    sys.exit(main())
