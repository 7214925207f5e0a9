"""docs/lessons.md says what a lesson can hold; its example is one."""

from pathlib import Path

from ddviz.learn.lesson import KEYS, PANES, SECTIONS, read_lesson
from ddviz.learn.tasks import TASKS
from ddviz.trace import load
from ddviz.trace.schema import STAGES
from tests.commands import ddviz

DOCS = Path(__file__).parents[2] / "docs"


def test_every_field_and_task_is_documented():
    text = (DOCS / "lessons.md").read_text("utf-8")
    for name in (*KEYS, *TASKS, *(key for task in TASKS.values() for key in task.keys)):
        assert f"`{name}`" in text, name
    for name in (*(f"`# {section}`" for section in (*SECTIONS, "Sources")), *PANES, *STAGES):
        assert name in text, name


def test_the_example_is_a_lesson_and_true():
    lesson = read_lesson(DOCS / "lesson-example.md")
    trace = load(lesson.trace)
    step = trace.steps[lesson.step]
    children = [i for i, parent in enumerate(step.tree.parents) if parent == 0]
    assert trace.tokens.label(step.tree.tokens[0]) == "mid" and len(children) == 3
    assert step.local_path == [0] and step.accept.num_accepted == 0
    assert trace.tokens.label(step.accept.bonus) == trace.tokens.label(step.target.argmax[0]) == "·+"
    assert lesson.wants == {"answer": ["bonus"]}


def test_a_lesson_is_exported_by_name_or_by_file(tmp_path):
    for name, title in (
        ("sampling", "Sampling"),
        (DOCS / "lesson-example.md", "A step that accepts nothing"),
    ):
        out = tmp_path / "new folder" / f"{Path(name).stem}.html"
        done = ddviz("export", "--lesson", name, "--out", out)
        assert done.returncode == 0, done.stderr
        assert "it opens in any browser, offline" in done.stderr
        assert f"<title>{title}" in out.read_text("utf-8")
    again = ddviz("export", "--lesson", "sampling", "--out", out)
    assert again.returncode == 2 and "--force" in again.stderr


def test_what_makes_no_sense_with_a_lesson_is_refused(tmp_path):
    out = tmp_path / "x.html"
    for words, says in [
        (["--lesson", "tere"], "the lessons are slow"),
        (["--lesson", "tree", "--step", "3"], "leave out step"),
        (["--lesson", "tree", "--to", "svg"], "leave out to"),
        (["x.ddviz"], "--to FORMAT"),
        ([], "--lesson NAME"),
    ]:
        done = ddviz("export", *words, "--out", out)
        assert done.returncode == 2 and says in done.stderr, (words, done.stderr)
        assert not out.exists()
