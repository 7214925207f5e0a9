"""What the Learn tab serves: the course, lessons by name, and a link to one."""

import json

import pytest

from ddviz.app.learn import course_function, lesson_function
from ddviz.app.links import follow_link
from ddviz.learn.lesson import course


def test_the_course_and_its_lessons_are_plain_json(session):
    shown = course_function(session)({})
    assert len(shown["lessons"]) == len(course()) and shown["glossary"]
    lesson = lesson_function(session)({"name": "tree"})
    json.dumps(lesson, allow_nan=False)
    assert lesson["title"] == "From chain to tree"
    for trace in (lesson["trace"], lesson["beside"]["trace"]):
        assert session.registry.view(trace, lambda trace: len(trace.steps) > lesson["step"])


@pytest.mark.parametrize("name", [None, 3, "", "tere", "../tree.md", "/etc/passwd.md"])
def test_what_is_no_lesson_is_refused_and_no_file_is_read(session, name):
    assert "lesson" in lesson_function(session)({"name": name})["error"]


def test_a_link_to_a_lesson_opens_the_tab(session):
    tabs, *rest = follow_link(session, "#lesson=tree")
    assert tabs.selected == "learn"
    assert rest == follow_link(session, "")[1:]
