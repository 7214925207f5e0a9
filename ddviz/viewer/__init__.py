"""The viewer: a trace as JSON (view.py, step.py), drawn by plain JavaScript, in the app or one HTML file."""

from ddviz.viewer.html import assets, export_html
from ddviz.viewer.view import empty_view, poll_view, step_view

__all__ = ["assets", "empty_view", "export_html", "poll_view", "step_view"]
