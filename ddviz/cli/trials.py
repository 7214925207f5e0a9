"""Commands that run models: the tests and the benchmark of an engine."""

import argparse
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddviz.cli.common import Commands, command, engine_options, load_engine, params_of, print_result
from ddviz.cli.options import add_engine, add_params, address, count, mode_list, positive, step_range
from ddviz.cli.terminal import Progress
from ddviz.engines.base import MODES, GenerateParams
from ddviz.errors import BadValueError

if TYPE_CHECKING:
    from ddviz.check.samplers import ServerSampler


def add_commands(commands: Commands) -> None:
    _add_temptest(commands)
    _add_audit(commands)
    _add_losslessness(commands)
    _add_bench(commands)


def _add_temptest(commands: Commands) -> None:
    p = command(
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


def _add_audit(commands: Commands) -> None:
    p = command(
        commands, "audit", audit, "compute a trace's probabilities again by plain forwards, and compare"
    )
    p.add_argument("trace", type=Path, metavar="FILE")
    p.add_argument("--steps", type=step_range, metavar="A:B", help="steps A to B-1 (default: all)")
    p.add_argument("--json", action="store_true", help="print what was compared and findings as JSON")
    p.add_argument("--target", default=argparse.SUPPRESS, help="folder or hub id (default: the header's)")
    p.add_argument("--draft", default=argparse.SUPPRESS, help="folder of its drafter (default: the header's)")
    p.add_argument("--device", default=argparse.SUPPRESS, help="default: cuda where there is one, else cpu")


def _add_losslessness(commands: Commands) -> None:
    p = command(commands, "losslessness", losslessness, "test whether an engine samples from its target")
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


def _add_bench(commands: Commands) -> None:
    p = command(commands, "bench", bench, "measure tokens/s, accept length and losslessness of each mode")
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


def temptest(args: argparse.Namespace) -> int:
    from tempfile import TemporaryDirectory

    from msgspec import structs

    from ddviz import temptest as t
    from ddviz.bench import read_prompts
    from ddviz.temptest_report import as_dict, render

    params = params_of(args, prompt="-").checked()
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
    print_result(lambda _: said, render, report, args.json)
    if args.out:
        look = f"ddviz --runs {shlex.quote(str(args.out))}"
        print(f"{args.out}: the traces; open them with: {look}", file=sys.stderr)
    return 0 if report.is_clean else 1


def _temptest_engine(args: argparse.Namespace):
    if not args.url:
        from ddviz.engines.process import EngineProcess

        return EngineProcess(engine_options(args))
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
    names = ("prompt", "chat", "mode", "budget", "topk_cap", "threshold_single", "threshold_acc")
    same = {name: getattr(args, name) for name in names}

    def made(chosen: Iterable[dict[str, Any]]) -> list[GenerateParams]:
        return [GenerateParams(**same, **setting).checked() for setting in chosen][
            : 1 if args.quick else None
        ]

    settings = made([{"temperature": 1.0, **given}] if given else c.SETTINGS)
    for params in settings:
        c.require_sampled(params)
    if args.url:
        from ddviz.check.samplers import ServerSampler

        server = ServerSampler(args.url)
        if not given:
            settings = made(c.settings_for(server.facts.dtype))
        rows, subject = _losslessness_of_server(args, server, settings, size.generations)
    else:
        engine = load_engine(args)
        subject = f"{engine.target.name} in {engine.name}, {engine.describe()['dtype']}, {args.mode}"
        with Progress() as progress:
            rows = c.check_embedded(engine, settings, size, args.seed, progress)
    return c.print_report(subject, rows, as_json=args.json)


def _losslessness_of_server(
    args: argparse.Namespace, server: "ServerSampler", settings: list[GenerateParams], generations: int
):
    from contextlib import ExitStack

    from ddviz.check import losslessness as c
    from ddviz.check import samplers as s

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
    params = params_of(args, prompt="-").checked()
    engine = load_engine(args)
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
