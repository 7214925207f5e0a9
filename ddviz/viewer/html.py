"""One HTML file that shows a trace anywhere: nothing to install, nothing fetched.

In:  Trace.
Out: NAME.html with the viewer and the trace inside; or the viewer's JavaScript and CSS for the app.
Not here: what is shown (view.py, step.py), how (the .js files).

Tokens are hostile text. Inside the page they are JSON with every `<` escaped, read by JSON.parse and shown
through textContent; and a Content-Security-Policy allows the page's own scripts by hash, and no request.
"""

import base64
import hashlib
import html
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ddviz.errors import TraceError
from ddviz.trace import Trace
from ddviz.viewer.view import poll_view, step_view

HERE = Path(__file__).parent
FILES = (  # a constant must stand before what uses it while the script loads; functions may stand anywhere
    *("format", "dom", "scope", "theme"),
    *("layout", "tree_svg", "tree_canvas", "tree_camera", "tree_pointer", "tree_card"),
    *("waiting", "table", "tree"),
    *("topbar", "scrubber_chart", "scrubber", "text", "detail", "panels"),
    *("state", "loader", "address", "player", "feed", "poll", "keys", "viewer"),
)
STYLES = ("viewer", "topbar", "scrubber", "panes", "text", "tree", "table", "detail")  # a later rule wins

_PAGE_CSS = "html,body{margin:0;height:100%}.ddviz-page{height:100vh;--ddviz-height:100vh}"
# Each step is parsed when it is asked for.
_START_JS = """
(() => {
  const read = (name) => document.querySelectorAll(`script[data-ddviz="${name}"]`);
  const polls = Array.from(read("poll"), (s) => JSON.parse(s.textContent));
  const steps = read("step");
  const source = {
    poll: async (since) => polls.find((view) => view.since === since) ?? { ...polls[0], since, steps: [] },
    step: async (i) => JSON.parse(steps[i].textContent),
  };
  ddviz.view = ddviz.mount(document.querySelector(".ddviz-page"), source, { live: false });
  ddviz.view.focus();
})();
"""


class Assets(NamedTuple):
    js: str  # all of the viewer, d3-hierarchy and stylesheet included; defines the constant `ddviz`
    css: str  # the stylesheet alone, for reading


@cache
def assets() -> Assets:
    """The viewer as one script. It carries its own styles, so that a page needs nothing but this string."""
    css = "\n".join(_read(f"{name}.css") for name in STYLES)
    d3 = _read("vendor/d3-hierarchy.min.js")
    parts = "\n".join(_read(f"{name}.js") for name in FILES)
    js = (
        'const ddviz = (() => {\n"use strict";\nconst d3 = {};\n'
        f"(function (exports, module) {{\n{d3}\n}})(d3, {{}});\n"
        f"const STYLESHEET = {_script_json(css)};\n{parts}\nreturn {{ mount }};\n}})();\n"
    )
    return Assets(js, css)


def export_html(trace: Trace, path: str | Path) -> Path:
    """Write the trace as one HTML file. Raises TraceError where the file can't be written."""
    path = Path(path)
    try:
        path.write_text(page(trace), encoding="utf-8", errors="replace")
    except OSError as error:
        raise TraceError(f"{path}: can't write the page there ({error.strerror})") from None
    return path


def page(trace: Trace) -> str:
    """The HTML of a trace."""
    js = assets().js
    policy = (
        f"default-src 'none'; script-src {_hash(js)} {_hash(_START_JS)}; "
        f"style-src {_hash(_PAGE_CSS)}; base-uri 'none'; form-action 'none'"
    )
    filled = {
        "policy": html.escape(policy, quote=True),
        "title": html.escape(f"{trace.name} · ddviz"),
        "page-css": _PAGE_CSS,
        "data": _data(trace),
        "js": js,
        "start": _START_JS,
    }
    return _fill(_read("page.html"), filled)


def _data(trace: Trace) -> str:
    """The answers that the viewer will ask for, each in a script element that no browser runs."""
    polls: list[dict[str, Any]] = []
    since = 0
    while not polls or since < len(trace.steps):
        polls.append(poll_view(trace, since))
        since += len(polls[-1]["steps"])
    blocks = [("poll", view) for view in polls] + [
        ("step", step_view(trace, i)) for i in range(len(trace.steps))
    ]
    return "\n".join(
        f'<script type="application/json" data-ddviz="{name}">{_script_json(data)}</script>'
        for name, data in blocks
    )


def _script_json(data: Any) -> str:
    """JSON that can stand in a script element: no `<`, so no tag or comment; and no U+2028, U+2029."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _fill(template: str, values: dict[str, str]) -> str:
    """Fill `<!--ddviz:NAME-->` in one pass over the template, so that a value is never searched for names."""
    out: list[str] = []
    for part in template.split("<!--ddviz:"):
        name, closed, rest = part.partition("-->")
        out.append(values[name] + rest if closed and out else part)
    return "".join(out)


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
