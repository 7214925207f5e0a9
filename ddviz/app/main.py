"""Build the page and serve it.

In:  an engine (or none), the folders of saved runs and samples.
Out: gr.Blocks; `launch` serves it until interrupted. Nothing is loaded from another host.
"""

from pathlib import Path
from typing import Any

import gradio as gr
from platformdirs import user_data_path

from ddviz.app.live import live_tab
from ddviz.app.panels import HERE
from ddviz.app.replay import replay_tab
from ddviz.app.session import Session
from ddviz.app.traces import MAX_UPLOAD, Registry
from ddviz.engines.base import Engine
from ddviz.errors import DdvizError

FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "DejaVu Sans Mono", "Menlo", "Consolas", "monospace")

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


def build(engine: Engine | None, runs: Path, samples: Path) -> gr.Blocks:
    """The page. `engine` None: Replay alone works, and Live says so."""
    session = Session(engine, Registry(samples, runs))
    with gr.Blocks(title="ddviz", analytics_enabled=False, fill_width=True) as page:
        with gr.Tabs(elem_classes="ddviz-tabs"):
            with gr.Tab("Live", id="live"):
                loads = [live_tab(session)]
            with gr.Tab("Replay", id="replay") as tab:
                loads.append(replay_tab(session, tab))
        for function, outputs in loads:
            page.load(function, None, outputs, show_progress="hidden", queue=False, api_visibility="private")
    return page


def launch(
    engine: Engine | None,
    runs: Path | None = None,
    samples: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 7860,
    block: bool = True,
) -> tuple[gr.Blocks, str]:
    """Serve the app; returns the page and its address.

    block  serve until interrupted, then close the engine

    Raises DdvizError where the port is taken.
    """
    page = build(engine, runs or default_runs(), samples or default_samples())
    try:
        _, url, _ = page.launch(
            server_name=host, server_port=port, prevent_thread_lock=True, **look(), **quiet_settings()
        )
    except OSError:
        raise DdvizError(f"port {port} on {host} is taken; choose another one with --port") from None
    if block:
        try:
            print(f"ddviz is at {url}  (end it with Ctrl+C)", flush=True)
            page.block_thread()
        finally:
            if engine is not None:
                engine.close()
    return page, url


def default_runs() -> Path:
    return user_data_path("ddviz") / "runs"


def default_samples() -> Path:
    """traces/ of a checkout, else those that ship inside the package."""
    checkout = Path(__file__).parents[2] / "traces"
    return checkout if checkout.is_dir() else Path(__file__).parents[1] / "traces"


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
