"""One HTML file that shows a trace anywhere: nothing to install, nothing fetched.

In:  Trace, how much of each step to hold (levels.py).
Out: NAME.html with the viewer and the trace inside; or the viewer's JavaScript and CSS for the app.
Not here: what is shown (view.py, step.py), how it is packed (pack.py), how it is drawn (the .js files).

Tokens are hostile text. Inside the page they are packed: letters without `<`, which JSON.parse reads and
textContent shows; and a Content-Security-Policy allows the page's own scripts by hash, and no request.
"""

import base64
import hashlib
import html
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ddviz.errors import BadValueError, cant_write
from ddviz.trace import Trace
from ddviz.viewer.levels import LEVELS, LIGHT_NOTE, Level, step_at
from ddviz.viewer.pack import Packer, deflate
from ddviz.viewer.view import poll_view

HERE = Path(__file__).parent
FILES = (  # a constant must stand before what uses it while the script loads; functions may stand anywhere
    *("format", "dom", "scope", "theme"),
    *("layout", "tree_svg", "tree_canvas", "tree_camera", "tree_pointer", "tree_card"),
    *("tree_fold", "waiting", "table", "tree"),
    *("sheet", "sheet_find", "sheet_export", "sheet_keys"),
    *("jumps", "topbar", "scrubber_chart", "scrubber", "text", "detail", "panels"),
    *("flight", "highlight", "tree_links", "build_search", "mask", "why", "stages"),
    *("views", "batch", "charts_data", "charts_draw", "charts", "findings"),
    *("stage_draft", "stage_build", "stage_compile", "stage_verify", "stage_commit"),
    *("page_source", "state", "loader", "address", "link", "parting", "player"),
    *("feed", "poll", "keys", "viewer", "compare_chart", "compare"),
)
STYLES = (  # a later rule wins
    *("viewer", "topbar", "scrubber", "panes", "text", "tree", "table", "detail", "stages", "why"),
    *("sheet", "views", "charts", "findings", "compare"),
)

OFFERED = ("mount", "compare", "pageSource: newPageSource", "readLink", "writeLink")

_PAGE_CSS = "html,body{margin:0;height:100%}.ddviz-page{height:100vh;--ddviz-height:100vh}"
_START_JS = """
(() => {
  const page = document.querySelector(".ddviz-page");
  const link = ddviz.readLink(location.hash);
  const first = page.dataset.step ? Number(page.dataset.step) : undefined;
  ddviz.view = ddviz.mount(page, ddviz.pageSource(document), {
    ...link,
    live: false,
    step: link.step ?? first,
    onLink: (chosen) => history.replaceState(null, "", ddviz.writeLink(chosen)),
  });
  addEventListener("hashchange", () => ddviz.view.update(ddviz.readLink(location.hash)));
  ddviz.view.focus();
})();
"""
STEPS_PER_BLOCK = 8  # more are packed tighter, fewer are unpacked sooner
SAMPLED_BLOCKS = 6  # of a level, to tell the size of a page before it is made


class Assets(NamedTuple):
    js: str  # all of the viewer, d3-hierarchy and stylesheet included; defines the constant `ddviz`
    css: str  # the stylesheet alone, for reading


@cache
def assets(more: str = "", names: tuple[str, ...] = ()) -> Assets:
    """The viewer as one script. It carries its own styles, so that a page needs nothing but this string.

    more   further JavaScript in the same function, which sees all parts of the viewer
    names  what of it `ddviz` offers beside the viewer's own
    """
    css = "\n".join(_read(f"{name}.css") for name in STYLES)
    d3 = _read("vendor/d3-hierarchy.min.js")
    parts = "\n".join(_read(f"{name}.js") for name in FILES)
    js = (
        'const ddviz = (() => {\n"use strict";\nconst d3 = {};\n'
        f"(function (exports, module) {{\n{d3}\n}})(d3, {{}});\n"
        f"const STYLESHEET = {script_json(css)};\n{parts}\n{more}\n"
        f"return {{ {', '.join([*OFFERED, *names])} }};\n}})();\n"
    )
    return Assets(js, css)


def export_html(
    trace: Trace,
    path: str | Path,
    level: Level = "standard",
    step: int | None = None,
    progress: Callable[[float], None] | None = None,
    findings: Sequence[Any] | None = None,
) -> Path:
    """Write the trace as one HTML file; with `step`, it opens there.

    progress  told the fraction of the steps that is done
    findings  of the doctor, as plain data; None = the page has no list of them

    Raises TraceError where the file can't be written, BadValueError where there is no such step or level.
    """
    path = Path(path)
    html = page(trace, level, step, progress, findings)
    try:
        path.write_text(html, encoding="utf-8", errors="replace")
    except OSError as error:
        raise cant_write(f"{path}: can't write the page there", error) from None
    return path


def page(
    trace: Trace,
    level: Level = "standard",
    step: int | None = None,
    progress: Callable[[float], None] | None = None,
    findings: Sequence[Any] | None = None,
) -> str:
    """The HTML of a trace. Arguments as those of `export_html`."""
    checked_page(trace, level, step)
    first, rest = data_elements(trace, level, progress)
    if findings is not None:
        first.append(_element("findings", deflate(list(findings))))
    begin = "" if step is None else f' data-step="{step}"'
    return document(f"{trace.name} · ddviz", assets().js, _START_JS, first, rest, begin)


def document(
    title: str, js: str, start: str, first: Sequence[str], rest: Sequence[str] = (), begin: str = ""
) -> str:
    """A page that runs two scripts and makes no request.

    js, start    the viewer; what mounts it on the page's one element, `.ddviz-page`
    first, rest  elements before the scripts and after them
    begin        attributes of `.ddviz-page`
    """
    policy = (
        f"default-src 'none'; script-src {_hash(js)} {_hash(start)}; "
        f"style-src {_hash(_PAGE_CSS)}; base-uri 'none'; form-action 'none'"
    )
    filled = {
        "policy": html.escape(policy, quote=True),
        "title": html.escape(title),
        "begin": begin,
        "page-css": _PAGE_CSS,
        "first": "\n".join(first),
        "rest": "\n".join(rest),
        "js": js,
        "start": start,
    }
    return _fill(_read("page.html"), filled)


def checked_page(trace: Trace, level: Level, step: int | None) -> None:
    """Raises BadValueError for a page that can't be made."""
    if level not in LEVELS:
        raise BadValueError(f"level is {level!r:.40}, must be one of {', '.join(LEVELS)}")
    if step is not None and not 0 <= step < len(trace.steps):
        raise BadValueError(f"step {step} is not there; {trace.name} has {len(trace.steps)} steps, from 0")


def page_sizes(trace: Trace) -> dict[Level, int]:
    """About how many bytes the page of each level will have, told from some of its steps."""
    packer, sizes = Packer(), {}
    around = len(assets().js) + sum(len(packer.pack(view)) for _, view in _polls(trace, "light"))
    blocks = range(0, len(trace.steps), STEPS_PER_BLOCK)
    some = blocks[:: max(1, len(blocks) // SAMPLED_BLOCKS)]
    for level in LEVELS:
        each = [len(packer.pack(_block(trace, first, level))) for first in some]
        labels = len(deflate(packer.labels)) * (len(blocks) / max(1, len(some))) ** 0.5  # ever fewer are new
        sizes[level] = round(around + labels + sum(each) * len(blocks) / max(1, len(some)))
    return sizes


def data_elements(
    trace: Trace, level: Level = "standard", progress: Callable[[float], None] | None = None
) -> tuple[list[str], list[str]]:
    """The answers that the viewer will ask for, each in a script element that no browser runs.

    First what a first picture takes, which stands before the script; the rest is read while that is seen.
    """
    packer = Packer()
    polls = [
        _element("poll", packer.pack(view), f'data-since="{since}"') for since, view in _polls(trace, level)
    ]
    blocks = []
    for first in range(0, len(trace.steps), STEPS_PER_BLOCK):
        if progress is not None:
            progress(first / len(trace.steps))
        block = packer.pack(_block(trace, first, level))
        blocks.append(_element("steps", block, f'data-count="{STEPS_PER_BLOCK}"'))
    labels = _element("labels", deflate(packer.labels))
    return [*polls[:1], *blocks[:1], labels], [*polls[1:], *blocks[1:]]


def _polls(trace: Trace, level: Level) -> Iterator[tuple[int, dict[str, Any]]]:
    since = 0
    while since == 0 or since < len(trace.steps):
        view = poll_view(trace, since)
        if since == 0 and level == "light":
            view["header"]["notes"] = [*view["header"]["notes"], LIGHT_NOTE]
        yield since, view
        since += len(view["steps"]) or 1


def _block(trace: Trace, first: int, level: Level) -> list[dict[str, Any]]:
    """Step views from `first` on, without the labels that the page holds anyway."""
    stop = min(first + STEPS_PER_BLOCK, len(trace.steps))
    return [{**step_at(trace, i, level), "labels": None} for i in range(first, stop)]


def _element(name: str, packed: str, *attributes: str) -> str:
    return f'<script type="text/plain" data-ddviz="{name}" {" ".join(attributes)}>{packed}</script>'


def script_json(data: Any) -> str:
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
