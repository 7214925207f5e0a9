"""Build the page and serve it.

In:  an engine (or none), the folders of saved runs and samples.
Out: gr.Blocks; `launch` serves it until interrupted. Nothing is loaded from another host.
"""

import errno
import functools
import os
import socket
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from ddviz.app.access import Access, Passwords, is_loopback
from ddviz.app.compare import compare_tab
from ddviz.app.folders import default_runs
from ddviz.app.guard import Guard
from ddviz.app.learn import learn_tab
from ddviz.app.links import follow_link
from ddviz.app.live import live_tab
from ddviz.app.panels import HERE, QUIET
from ddviz.app.replay import replay_tab
from ddviz.app.session import Session
from ddviz.app.traces import MAX_UPLOAD, Registry
from ddviz.app.uploads import DAY_S, made_uploads_folder
from ddviz.app.visitors import Visitors
from ddviz.engines.base import Engine
from ddviz.errors import BadValueError, DdvizError
from ddviz.learn.lesson import shipped_samples

FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "DejaVu Sans Mono", "Menlo", "Consolas", "monospace")

DAILY = (DAY_S, DAY_S)  # seconds: how often uploads are looked through, and how old they may get
# A link opens another tab than the first: until it is there the page says so, over all (app.css).
OPENING_JS = """() => {
  document.body.classList.toggle("ddviz-opening", /[#&](trace|lesson)=/.test(location.hash));
  setTimeout(() => document.body.classList.remove("ddviz-opening"), 15000);  // whatever becomes of it
  return location.hash;
}"""
OPENED_JS = '() => { document.body.classList.remove("ddviz-opening"); }'

COLOURS = {  # Gradio's names; light, dark; as in viewer.css
    "body_background_fill": ("#f7f8fa", "#0f1217"),
    "background_fill_primary": ("#ffffff", "#15191f"),
    "background_fill_secondary": ("#f5f6f8", "#1b2027"),
    "block_background_fill": ("#ffffff", "#15191f"),
    "input_background_fill": ("#f1f3f6", "#1e242c"),
    "body_text_color": ("#1a2130", "#e4e8ee"),
    "body_text_color_subdued": ("#596375", "#9ba6b5"),
    "block_info_text_color": ("#596375", "#9ba6b5"),
    "block_label_text_color": ("#596375", "#9ba6b5"),
    "block_title_text_color": ("#596375", "#9ba6b5"),
    "input_placeholder_color": ("#97a1b0", "#657081"),
    "border_color_primary": ("#e2e6eb", "#2a303a"),
    "block_border_color": ("#e2e6eb", "#2a303a"),
    "checkbox_background_color_selected": ("#1d6ae5", "#1d6ae5"),
    "checkbox_border_color_selected": ("#1d6ae5", "#1d6ae5"),
}


def build(engine: Engine | None, runs: Path, samples: Path, requests: Path | None = None) -> gr.Blocks:
    """The page. `engine` None: Replay alone works, and Live says so.

    requests  the trace folder of a server that others use too: their requests are listed beside Live
    """
    session = Session(engine, Registry(samples, runs, requests))
    with gr.Blocks(title="ddviz", analytics_enabled=False, fill_width=True, delete_cache=DAILY) as page:
        fragment = gr.Textbox(visible=False)  # what follows the # of the address
        with gr.Tabs(elem_classes="ddviz-tabs") as tabs:
            with gr.Tab("Live", id="live"):
                live = live_tab(session)
            with gr.Tab("Replay", id="replay") as tab:
                replay = replay_tab(session, tab)
            with gr.Tab("Compare", id="compare") as tab:
                compare = compare_tab(session, tab)
            with gr.Tab("Learn", id="learn"):
                learn_tab(session)
        for function, outputs in (live, (replay.fill, replay.lists)):
            page.load(function, None, outputs, **QUIET)
        shown = [tabs, *replay.shown, *compare.shown]
        follow = functools.partial(follow_link, session)
        opened = page.load(follow, fragment, shown, js=OPENING_JS, **QUIET)
        opened.then(None, None, None, js=OPENED_JS, **QUIET)
    # NOTE: no event here uses Gradio's queue, which would wake 1,000 times a second: 8% of a core
    page._queue.sleep_when_free = page._queue.progress_update_sleep_when_free = 0.25
    return page


def launch(
    engine: Engine | None,
    runs: Path | None = None,
    samples: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 7860,
    block: bool = True,
    requests: Path | None = None,
    access: Access | None = None,
) -> tuple[gr.Blocks, str]:
    """Serve the app; returns the page and its address.

    block     serve until interrupted, then close the engine
    port      0 = any free one
    requests  as `build`
    access    who is let in; None = everyone on this machine

    Raises DdvizError where host and port can't be had, or others would be let in unasked.
    """
    access = (access or Access()).checked(host)
    made_uploads_folder()
    port = _free_port(host, port)
    page = build(engine, runs or default_runs(), samples or shipped_samples(), requests)
    _reach_directly("127.0.0.1", "localhost", host)
    try:
        _, url, _ = page.launch(
            server_name=host,
            server_port=port,
            prevent_thread_lock=True,
            auth=Passwords(access.auth_file).fit if access.auth_file else None,
            app_kwargs={
                "middleware": [
                    Middleware(Guard, page=page, hosts=_own_names(host, access)),
                    Middleware(Visitors),
                ]
            },
            **look(),
            **quiet_settings(),
        )
    except OSError:  # taken since
        raise _taken(host, port) from None
    if block:
        try:
            print(f"ddviz is at {url}  (end it with Ctrl+C)", flush=True)
            page.block_thread()
        finally:
            if engine is not None:
                engine.close()
    return page, url


def _own_names(host: str, access: Access) -> list[str]:
    """Names under which a browser may know the app; this machine's own only where others reach it."""
    own = [] if is_loopback(host) else [host, socket.gethostname(), socket.getfqdn()]
    return [name for name in (*own, *access.allowed_hosts) if name]


def _free_port(host: str, port: int) -> int:
    """The port, or a free one for 0. Raises DdvizError where it is taken, BadValueError for a wrong host."""
    name = host.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((name, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _taken(host, port) from None
            reason = error.strerror
            raise BadValueError(f"can't listen on {host} port {port} ({reason}); see --host") from None
        except (UnicodeError, OverflowError):
            raise BadValueError(f"can't listen on {host} port {port}: that is no address") from None
        return int(probe.getsockname()[1])


def _taken(host: str, port: int) -> DdvizError:
    return DdvizError(f"{host} port {port} is taken; end what listens there, or choose another with --port")


def _reach_directly(*hosts: str) -> None:
    """Keep a proxy of the environment out of requests to this machine: Gradio asks itself when it starts."""
    for name in ("NO_PROXY", "no_proxy"):
        known = [host for host in os.environ.get(name, "").split(",") if host]
        os.environ[name] = ",".join(dict.fromkeys([*known, *hosts]))


def look() -> dict[str, Any]:
    """What `gr.Blocks.launch` needs to make it look like ddviz."""
    theme = gr.themes.Base(font=FONT, font_mono=MONO, spacing_size="sm", text_size="sm")
    light = {name: colour[0] for name, colour in COLOURS.items()}
    dark = {f"{name}_dark": colour[1] for name, colour in COLOURS.items()}
    return {"theme": theme.set(**light, **dark), "css": (HERE / "app.css").read_text("utf-8")}


def quiet_settings() -> dict[str, Any]:
    """No footer, no history, no monitoring, no API page, no outside request."""
    return {
        "quiet": True,
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "ssr_mode": False,
        "pwa": False,
        "mcp_server": False,
        "share": False,
        "max_file_size": MAX_UPLOAD,
    }
