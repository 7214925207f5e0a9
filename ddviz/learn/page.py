"""A lesson for the browser: its payload, the script that shows it, and one HTML file of it for a course page.

In:  Lesson (lesson.py).
Out: plain JSON; JavaScript; NAME.html, which holds its traces and fetches nothing.
Not here: how a lesson is shown (learn.js and its parts), the app's tab (app/learn.py).
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ddviz.errors import cant_write
from ddviz.learn.lesson import HERE, Lesson, course, glossary, open_traces, short_name
from ddviz.learn.tasks import TASKS, Step, run_means
from ddviz.trace import load
from ddviz.viewer.html import Assets, assets, data_elements, document, script_json

JSON = dict[str, Any]
FILES = (  # a constant must stand before what uses it while the script loads
    *("twin_accept", "twin_compile", "twin_whatif"),
    *("text", "progress", "glossary", "picture", "bench", "answer"),
    *(
        "piece_choose",
        "piece_pop",
        "piece_links",
        "piece_walk",
        "piece_coin",
        "piece_pack",
        "runs_chart",
        "temperature_chart",
        "piece_whatif",
    ),
    *("piece_findings", "lesson", "learn"),
)
STYLES = ("learn", "pieces")
_START_JS = """
(() => {
  const page = document.querySelector(".ddviz-page");
  const read = (name) => JSON.parse(document.querySelector(`script[data-ddviz="${name}"]`).textContent);
  const lesson = read("lesson");
  ddviz.learn(page, {
    ...read("course"),
    load: async () => lesson,
    source: (key) => ddviz.pageSource(document.querySelector(`[data-trace="${key}"]`)),
  });
})();
"""


@cache
def learn_assets() -> Assets:
    """The viewer and the lessons as one script, which defines the constant `ddviz`."""
    css = "\n".join(_read(f"{name}.css") for name in STYLES)
    parts = "\n".join(_read(f"{name}.js") for name in FILES)
    return assets(f"const LEARN_STYLESHEET = {script_json(css)};\n{parts}", ("learn",))


def course_json() -> JSON:
    """What the Learn tab shows before a lesson is asked for."""
    return {"lessons": [_entry(lesson) for lesson in course()], "glossary": _glossary()}


def lesson_json(lesson: Lesson, key_of: Callable[[Path], str]) -> JSON:
    """A lesson as learn.js takes it. `key_of` names its traces for the page's source."""
    traces = open_traces(lesson)
    task = TASKS[lesson.task]
    beside = None
    if lesson.beside is not None:
        beside = {"trace": key_of(lesson.beside[0]), "step": lesson.beside[1], "name": traces[1].name}
    return {
        **_entry(lesson),
        "trace": key_of(lesson.trace),
        "trace_name": traces[0].name,
        "step": lesson.step,
        "stage": lesson.stage,
        "node": lesson.node,
        "beside": beside,
        "runs": [_run(path) for path in lesson.runs],
        "hide": list(lesson.hide),
        "blind": lesson.blind,
        "then": lesson.then,
        "task": lesson.task,
        "wants": {**lesson.wants, **task.data(Step(traces[0], lesson.step), lesson.wants)},
        **{name: getattr(lesson, name) for name in ("text", "question", "hint", "right", "sources")},
    }


def lesson_page(lesson: Lesson) -> str:
    """The HTML of one lesson, its traces within."""
    traces = open_traces(lesson)
    paths = [lesson.trace, *([lesson.beside[0]] if lesson.beside else [])]
    keys = {path: str(place) for place, path in enumerate(paths)}
    held = []
    for path, trace in zip(paths, traces, strict=True):
        first, rest = data_elements(trace)
        held += [f'<div hidden data-trace="{keys[path]}">', *first, *rest, "</div>"]
    page = {"lessons": [_entry(lesson)], "glossary": _glossary()}
    data = {"lesson": lesson_json(lesson, keys.__getitem__), "course": page}
    scripts = [
        f'<script type="application/json" data-ddviz="{name}">{script_json(_plain(value))}</script>'
        for name, value in data.items()
    ]
    return document(f"{lesson.title} · ddviz", learn_assets().js, _START_JS, [*held, *scripts])


def export_lesson(lesson: Lesson, path: Path) -> Path:
    """Write the lesson as one HTML file. Raises TraceError where the file can't be written."""
    page = lesson_page(lesson)
    try:
        path.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise cant_write(f"{path}: can't write the lesson there", error) from None
    return path


@cache
def _run(path: Path) -> JSON:
    return run_means(load(path))


def _entry(lesson: Lesson) -> JSON:
    return {"name": short_name(lesson.name), "title": lesson.title}


def _glossary() -> list[list[Any]]:
    return [[term, blocks] for term, blocks in glossary().items()]


def _plain(value: Any) -> Any:
    """JSON without NaN or tuples, as the browser gets it from the app."""
    return json.loads(json.dumps(value))


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
