"""The Learn tab: the course, on the traces that ship. Needs no engine.

In:  the name of a lesson, from its chips or a link (#lesson=NAME).
Out: the lesson as learn/page.py gives it; its traces under ids of the registry.
Not here: lessons (ddviz/learn), links to them (links.py).
"""

from collections.abc import Callable
from typing import Any

import gradio as gr

from ddviz.app.panels import stage_panel
from ddviz.app.requests import Answer, answering
from ddviz.app.session import Session
from ddviz.errors import DdvizError
from ddviz.learn.lesson import find_lesson
from ddviz.learn.page import course_json, learn_assets, lesson_json


def learn_tab(session: Session) -> gr.HTML:
    """Build the tab."""
    functions = (course_function, lesson_function)
    return stage_panel(session, "Learn", "learn_panel.js", functions, learn_assets().js)


def course_function(session: Session) -> Callable[[Any], Answer]:
    @answering
    def course(request: Answer) -> Answer:
        return course_json()

    return course


def lesson_function(session: Session) -> Callable[[Any], Answer]:
    @answering
    def lesson(request: Answer) -> Answer:
        name = request.get("name")
        if not isinstance(name, str) or name.endswith(".md"):  # a file of one's own is for the command line
            raise DdvizError("name must be that of a lesson")
        return lesson_json(find_lesson(name), session.registry.add)

    return lesson
