"""Lessons: Markdown files with front matter that names a trace, a step, a stage, a node and a task.

In:  NAME.md, in lessons/ or wherever a lecturer keeps it.
Out: Lesson, checked: its trace can be read and holds the step and the node, its task fits the step.
Not here: what each task asks of a step (tasks.py), showing it (page.py, learn.js).
"""

import difflib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ddviz.errors import BadValueError
from ddviz.learn.markdown import Blocks, links_of, sections
from ddviz.learn.tasks import TASKS, Step, TaskError
from ddviz.trace import Trace, load
from ddviz.trace.schema import STAGES

HERE = Path(__file__).parent
SECTIONS = ("Question", "Hint", "Right")  # each lesson has them
PANES = ("topbar", "scrubber", "stages", "tree", "text", "numbers", "viewer")  # what `hide` may name
KEYS = ("title", "trace", "step", "stage", "node", "beside", "runs", "hide", "blind", "then", "task")


class LessonError(BadValueError):
    """A lesson that can't be shown: the file, the line, what is wrong and the remedy."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One lesson. Its traces are not held: `open_traces` reads them."""

    name: str  # of the file, without .md
    title: str
    trace: Path
    step: int  # place in the trace
    stage: str | None  # None: the overview
    node: int | Literal["bonus"] | None  # None: where the decision fell
    beside: tuple[Path, int] | None  # a second trace and a step of it, drawn next to the first
    runs: tuple[Path, ...]  # traces whose accept lengths at other settings are drawn
    hide: tuple[str, ...]  # parts of the viewer that are not shown
    blind: bool  # the verdict of the step is hidden until the answer is right
    then: str | None  # the stage to show after the right answer
    task: str  # one of TASKS
    wants: dict[str, Any]  # the task's own fields
    text: Blocks
    question: Blocks
    hint: Blocks
    right: Blocks  # said to a right answer
    sources: Blocks


def shipped_samples() -> Path:
    """traces/ of a checkout, else those that ship inside the package."""
    checkout = HERE.parents[1] / "traces"
    return checkout if checkout.is_dir() else HERE.parent / "traces"


@cache
def course() -> tuple[Lesson, ...]:
    """The lessons that ship, in their order: by the number that their file's name begins with.

    Their traces are not looked at here, which would take seconds: tests have read them.
    """
    return tuple(_Reader(path).lesson() for path in sorted((HERE / "lessons").glob("*.md")))


def find_lesson(name: str) -> Lesson:
    """A lesson that ships, by name (the number may be left out), or one's own, by its file.

    Raises LessonError where there is none.
    """
    lessons = {short_name(lesson.name): lesson for lesson in course()}
    if name.endswith(".md"):
        return read_lesson(Path(name))
    if short_name(name) in lessons:
        return lessons[short_name(name)]
    raise LessonError(
        f"{name!r:.80} is no lesson; the lessons are {', '.join(lessons)}, or the file of your own: NAME.md"
    )


def short_name(name: str) -> str:
    """03-tree -> tree"""
    return re.sub(r"^\d+-", "", name)


def open_traces(lesson: Lesson) -> list[Trace]:
    """The lesson's trace, and that beside it if there is one."""
    return [load(lesson.trace), *([load(lesson.beside[0])] if lesson.beside else [])]


def read_lesson(path: Path) -> Lesson:
    """Read and check a lesson. Raises LessonError with the line, TraceError for a trace that is none."""
    reader = _Reader(path)
    lesson = reader.lesson()
    reader.check_traces(lesson)
    return lesson


class _Reader:
    """One file: its fields, each with the line it stands on, and errors that name the line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = path.read_text("utf-8-sig")
        except OSError as error:
            raise LessonError(f"{path}: can't read the lesson ({error.strerror})") from None
        except UnicodeDecodeError:
            raise LessonError(f"{path}: the lesson is no UTF-8 text; save it as such") from None
        self.lines = text.splitlines()
        self.fields, self.body_at = self._front_matter()

    def lesson(self) -> Lesson:
        task = self._one_of("task", tuple(TASKS))
        known = (*KEYS, *TASKS[task].keys)
        for name in self.fields:
            if name in known:
                continue
            others = [other for other, its in TASKS.items() if name in its.keys]
            if others:
                raise self._refuse_field(name, f"is a field of task {', '.join(others)}, not of {task}")
            raise self._refuse_field(name, f"is no field of a lesson{_meant(name, known)}")
        parts = self._sections()
        node = self.fields.get("node", (0, ""))[1]
        beside = self._beside()
        return Lesson(
            name=self.path.stem,
            title=self._required("title"),
            trace=self._trace("trace", self._required("trace")),
            step=self._whole("step", self._required("step")),
            stage=self._one_of("stage", STAGES, required=False),
            node="bonus" if node == "bonus" else self._whole("node", node) if node else None,
            beside=beside,
            runs=tuple(self._trace("runs", name) for name in self._words("runs")),
            hide=self._hidden(task),
            blind=self._one_of("blind", ("yes", "no"), required=False) == "yes",
            then=self._one_of("then", STAGES, required=False),
            task=task,
            wants=self._wants(task),
            text=parts[""],
            question=parts["Question"],
            hint=parts["Hint"],
            right=parts["Right"],
            sources=parts.get("Sources", []),
        )

    def check_traces(self, lesson: Lesson) -> None:
        """The step and the node are there, and the task fits."""
        trace, *others = open_traces(lesson)
        self._check_step("step", trace, lesson.step)
        for other in others:
            assert lesson.beside is not None
            self._check_step("beside", other, lesson.beside[1])
        for path in lesson.runs:
            if not any(step.draft and step.draft.top_logprobs for step in load(path).steps):
                raise self._refuse_field("runs", f"names {path.stem}, whose steps hold no draft")
        n = len(trace.steps[lesson.step].tree.tokens)
        if isinstance(lesson.node, int) and not 0 <= lesson.node < n:
            raise self._refuse_field("node", f"is {lesson.node}; step {lesson.step} has nodes 0 to {n - 1}")
        try:
            TASKS[lesson.task].check(Step(trace, lesson.step), lesson.wants)
        except TaskError as error:
            raise self._refuse_field(error.field or "task", str(error)) from None

    def _check_step(self, field: str, trace: Trace, step: int) -> None:
        if not 0 <= step < len(trace.steps):
            raise self._refuse_field(
                field, f"names step {step}; {trace.name} has {len(trace.steps)} steps, from 0"
            )

    # ------------------------------------------------------------------ the file

    def _front_matter(self) -> tuple[dict[str, tuple[int, str]], int]:
        """Fields by name with their lines, and the line where the text begins."""
        if not self.lines or self.lines[0].strip() != "---":
            raise self._refuse(0, "a lesson begins with front matter: a line --- , fields, a line ---")
        fields: dict[str, tuple[int, str]] = {}
        isnt_closed = "the front matter is not closed; end it with a line ---"
        closed = any(line.strip() == "---" for line in self.lines[1:])
        for at, line in enumerate(self.lines[1:], start=1):
            if line.strip() == "---":
                return fields, at + 1
            name, colon, value = line.partition(":")
            name, value = name.strip(), value.split(" # ")[0].strip()
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            if not name.isidentifier() or not colon or not value:
                says = "must be NAME: VALUE" if closed else f"is no NAME: VALUE, and {isnt_closed} before it"
                raise self._refuse(at, f"{line.strip()!r:.60} {says}")
            if name in fields:
                raise self._refuse(at, f"the field {name} comes twice")
            fields[name] = at, value
        raise self._refuse(len(self.lines) - 1, isnt_closed)

    def _sections(self) -> dict[str, Blocks]:
        body = "\n".join(self.lines[self.body_at :])
        parts = sections(body, lambda line, says: self._refuse(self.body_at + line, says))
        known = (*SECTIONS, "Sources")
        for name in parts:
            if name and name not in known:
                raise self._refuse(
                    self._line_of_heading(name), f"# {name} is no section of a lesson{_meant(name, known)}"
                )
        missing = [name for name in SECTIONS if not parts.get(name)]
        if missing:
            raise self._refuse(len(self.lines) - 1, f"the section # {missing[0]} is missing")
        for link in links_of(list(parts.values())):
            if link.startswith("#") and link[1:] not in glossary():
                raise self._refuse(
                    self._line_with(f"({link})"),
                    f"{link} is no term of the glossary{_meant(link, glossary())}",
                )
        return parts

    def _line_of_heading(self, name: str) -> int:
        return next(
            i for i, line in enumerate(self.lines) if re.fullmatch(rf"#\s+{re.escape(name)}\s*", line)
        )

    def _line_with(self, text: str) -> int:
        return next((i for i, line in enumerate(self.lines) if text in line), self.body_at)

    # ------------------------------------------------------------------ fields

    def _required(self, name: str) -> str:
        if name not in self.fields:
            raise self._refuse(0, f"the field {name} is missing")
        return self.fields[name][1]

    def _one_of(self, name: str, words: tuple[str, ...], required: bool = True) -> Any:
        if not required and name not in self.fields:
            return None
        value = self._required(name)
        if value not in words:
            raise self._refuse_field(
                name, f"is {value!r:.40}, must be one of {', '.join(words)}{_meant(value, words)}"
            )
        return value

    def _whole(self, name: str, value: str) -> int:
        if not re.fullmatch(r"\d{1,18}", value):
            raise self._refuse_field(
                name, f"is {value!r:.40}, must be a whole number, 0 or more, of at most 18 digits"
            )
        return int(value)

    def _trace(self, field: str, value: str) -> Path:
        """Beside the lesson's file, among the course's own, or among the samples."""
        name = value if value.endswith(".ddviz") else f"{value}.ddviz"
        folders = (self.path.parent, HERE, shipped_samples())
        found = [folder / name for folder in folders if (folder / name).is_file()]
        if not found:
            known = sorted({path.stem for folder in folders for path in folder.glob("*.ddviz")})
            raise self._refuse_field(
                field,
                f"names {value!r:.60}; there is no {name:.60} beside the lesson{_meant(value, known)}; "
                f"there are {', '.join(known)}",
            )
        return found[0].resolve()

    def _beside(self) -> tuple[Path, int] | None:
        if "beside" not in self.fields:
            return None
        words = self.fields["beside"][1].split()
        if len(words) != 2:
            raise self._refuse_field("beside", "must be a trace and a step of it: quicksort-dflash 22")
        return self._trace("beside", words[0]), self._whole("beside", words[1])

    def _words(self, name: str) -> tuple[str, ...]:
        """The words of a field that may be left out, between commas or spaces."""
        return tuple(re.findall(r"[^,\s]+", self.fields.get(name, (0, ""))[1]))

    def _hidden(self, task: str) -> tuple[str, ...]:
        for word in self._words("hide"):
            if word not in PANES:
                raise self._refuse_field("hide", f"names {word!r:.40}; it may name {', '.join(PANES)}")
            if word in TASKS[task].shows:
                raise self._refuse_field("hide", f"names {word}, where task {task} is answered; show it")
        return self._words("hide")

    def _wants(self, task: str) -> dict[str, Any]:
        wants = {}
        for name, field in TASKS[task].keys.items():
            if name not in self.fields:
                if field.default is None:
                    raise self._refuse(0, f"task {task} needs the field {name}: {field.says}")
                wants[name] = field.default
                continue
            try:
                wants[name] = field.read(self.fields[name][1])
            except ValueError:
                raise self._refuse_field(
                    name, f"is {self.fields[name][1]!r:.60}, must be {field.says}"
                ) from None
        return wants

    # ------------------------------------------------------------------ errors

    def _refuse_field(self, name: str, says: str) -> LessonError:
        return self._refuse(self.fields[name][0] if name in self.fields else 0, f"{name} {says}")

    def _refuse(self, line: int, says: str) -> LessonError:
        return LessonError(f"{self.path}: line {line + 1}: {says}")


@cache
def glossary() -> dict[str, Blocks]:
    """Terms and what they mean, in the order in which a reader meets them: glossary.md."""
    text = (HERE / "glossary.md").read_text("utf-8")

    def refuse(line: int, says: str) -> Exception:
        return LessonError(f"{HERE / 'glossary.md'}: line {line + 1}: {says}")

    found = sections(text, refuse)
    return {term.replace(" ", "-"): blocks for term, blocks in found.items() if term}


def _meant(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word.lstrip("#"), list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
