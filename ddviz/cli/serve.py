"""The app, with the embedded engine, a server of its own or another's; and the passwords of its users."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ddviz.cli.common import Commands, command, engine_options
from ddviz.cli.options import add_access, add_engine, add_server, port_number
from ddviz.errors import BadValueError, DdvizError

if TYPE_CHECKING:
    from ddviz.app.access import Access


def add_app(parser: argparse.ArgumentParser) -> None:
    """Options of `ddviz` without a command."""
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


def add_commands(commands: Commands) -> None:
    p = command(commands, "password", password, "let somebody use the app: write a hashed password")
    p.description += " It is asked for, or read as one line from standard input."
    p.add_argument("name", help="who is to give it when the page opens")
    p.add_argument(
        "--auth-file", type=Path, required=True, metavar="FILE", help="made where it is not there yet"
    )
    p.add_argument("--remove", action="store_true", help="let them in no more, from the next login on")


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

        engine = EngineProcess(engine_options(args, dtype="auto"))
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
    from ddviz.app.folders import default_runs, make_runs
    from ddviz.app.main import launch
    from ddviz.engines.sglang_server import OwnServer
    from ddviz.engines.sglang_server.own import ServerOptions

    dtype = ("--dtype", args.dtype) if args.dtype else ()
    options = ServerOptions(args.target, args.draft, extra=(*dtype, *args.server_words))
    runs = args.runs or default_runs()
    make_runs(runs)
    launch(OwnServer(options, runs / "server"), host=args.host, port=args.port, runs=runs, access=access)


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
    if args.attach and not args.trace_dir:
        raise BadValueError(
            "--attach needs --trace-dir DIR, the folder that the server's DDVIZ_TRACE_DIR names"
        )
    if args.attach and not args.trace_dir.is_dir():
        raise BadValueError(f"--trace-dir {args.trace_dir}: there is no such folder")
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


def password(args: argparse.Namespace) -> None:
    """Ask for a password, twice at a terminal, and write its hash; or take a name out."""
    from getpass import getpass

    from ddviz.app.access import remove_password, require_name, set_password

    require_name(args.name)
    if args.remove:
        remove_password(args.auth_file, args.name)
        says = "is let in no more; a login that is open lasts until the app ends"
        print(f"{args.auth_file}: {args.name} {says}", file=sys.stderr)
        return
    if sys.stdin.isatty():
        word = getpass(f"Password of {args.name}: ")
        if getpass("The same again: ") != word:
            raise BadValueError("the two differ; nothing was written")
    else:
        word = sys.stdin.readline().rstrip("\r\n")
    set_password(args.auth_file, args.name, word)
    start = f"ddviz --auth-file {shlex.quote(str(args.auth_file))}"
    print(f"{args.auth_file}: {args.name} may use the app: {start}", file=sys.stderr)
