"""Where the app keeps things on this machine. Loads no Gradio, so that other commands may ask."""

from pathlib import Path

from platformdirs import user_data_path


def default_runs() -> Path:
    """The folder of live runs, unless --runs names another."""
    return user_data_path("ddviz") / "runs"
