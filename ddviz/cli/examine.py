"""Commands that read traces and say something of them."""

import argparse
import sys
import time
from pathlib import Path

from ddviz.cli.common import Commands, command, print_result, tell_damage
from ddviz.cli.options import count, positive
from ddviz.cli.terminal import Signals
from ddviz.engines.base import Control
from ddviz.errors import BadValueError

LIVE_S = 0.25  # between two looks at traces that are followed


def add_commands(commands: Commands) -> None:
    p = command(commands, "doctor", doctor, "find faults in traces, or in all traces of a folder")
    p.add_argument("traces", type=Path, nargs="*", metavar="FILE|DIR")
    p.add_argument(
        "--live",
        action="store_true",
        help="follow traces while they grow (default: those of the app's runs) and print findings as steps "
        "arrive, until Ctrl-C or the end of FILE; then 0 clean, 1 findings",
    )
    p.add_argument("--json", action="store_true", help="print findings as JSON; with --live a line each")

    p = command(commands, "diff", diff, "find the first step where two traces part, and the array that did")
    p.add_argument("a", type=Path, metavar="A")
    p.add_argument("b", type=Path, metavar="B")
    p.add_argument("--json", action="store_true", help="print JSON")

    p = command(commands, "stats", stats, "count acceptance by depth and rank, and time per stage")
    p.add_argument("trace", type=Path, metavar="FILE|DIR")
    p.add_argument("--json", action="store_true", help="print JSON")

    p = command(
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
        from ddviz.app.folders import default_runs, make_runs

        path = default_runs()
        make_runs(path)
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
    for trace in (a, b):
        tell_damage(trace, "compared")
    parted = p.part(a, b)
    print_result(lambda found: p.as_dict(a, b, found), lambda found: p.render(a, b, found), parted, args.json)
    return 0 if parted.is_same else 1


def stats(args: argparse.Namespace) -> None:
    from ddviz.analysis import stats as s
    from ddviz.analysis.stats_report import as_dict, render
    from ddviz.analysis.traces import gather

    print_result(as_dict, render, s.stats(*gather(args.trace)), args.json)


def whatif(args: argparse.Namespace) -> None:
    from ddviz.analysis import cost as c
    from ddviz.analysis.traces import gather
    from ddviz.analysis.whatif import whatif as ask
    from ddviz.analysis.whatif_report import as_dict, render

    cost = c.parse_cost(args.cost) if args.cost else None
    traces, notes = gather(args.trace)
    cost = cost or c.measured(traces, "medians of these traces' own steps")
    results = ask(traces, args.budget, args.topk_cap)
    print_result(lambda r: as_dict(r, cost, notes), lambda r: render(r, cost, notes), results, args.json)
