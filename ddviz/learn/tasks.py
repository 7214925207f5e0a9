"""What a lesson can ask the learner to do, and what a step must hold for it.

In:  the fields of a lesson's task as text; the step it is bound to.
Out: the fields as values; TaskError where the step can't carry the task; the data that its piece needs
     beside the step: computed here, by the project's own code.
Not here: the pieces themselves (piece_*.js), front matter (lesson.py).

    step      go to the step                       pop       pop the heap by hand
    click     choose the node                      links     find what is wrong in an encoding
    walk      follow the target's argmax           coin      drag the coin, then draw
    pack      move KV rows at commit               whatif    set budget and cap
    findings  find what the doctor found
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ddviz.analysis.whatif import ask, continuations, whatif
from ddviz.check.doctor import examine
from ddviz.learn.temperature import TEMPERATURES, lengths_at
from ddviz.trace import Trace
from ddviz.trace.schema import Step as TraceStep
from ddviz.tree import compile_ddtree_retrieve, depths_of, node_positions, tree_mask

JSON = dict[str, Any]
ARRAYS = ("next_token", "next_sibling", "position", "mask")  # where a fault can be planted


class TaskError(Exception):
    """A step that can't carry the task; `field` is the one to change."""

    def __init__(self, field: str | None, says: str) -> None:
        super().__init__(says)
        self.field = field


class Field(NamedTuple):
    """A field of a task: how its text is read (ValueError: it can't be), and what it must be, in words."""

    read: Callable[[str], Any]
    says: str
    default: Any = None  # None: the field is required


class Plant(NamedTuple):
    """A wrong value in one array of a compiled tree. For `mask`: row `at`, column `column`, flipped."""

    array: str
    at: int
    column: int | None
    value: int


@dataclass(frozen=True, slots=True)
class Step:
    """The step a lesson is bound to."""

    trace: Trace
    place: int

    @property
    def step(self) -> TraceStep:
        return self.trace.steps[self.place]


class Task(NamedTuple):
    keys: dict[str, Field]
    check: Callable[[Step, JSON], None]
    data: Callable[[Step, JSON], JSON] = lambda at, wants: {}
    shows: tuple[str, ...] = ()  # parts of the viewer that a lesson must not hide: the answer is chosen there


def encoding(step: TraceStep) -> JSON:
    """The arrays of a step's tree as compile makes them: what the piece `links` is a twin of."""
    parents = np.array(step.tree.parents, np.int32)
    depths = depths_of(step.tree.parents)
    if depths is None:
        raise TaskError("step", "names a step whose parents are no tree")
    links = compile_ddtree_retrieve(parents)
    return {
        "next_token": links.next_token.tolist(),
        "next_sibling": links.next_sibling.tolist(),
        "position": node_positions(step.prefix_len, np.array(depths, np.int32)).tolist(),
        "mask": tree_mask(parents).astype(int).tolist(),
    }


# -------------------------------------------------------------------- reading fields


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise ValueError(text)
    return int(text)


def _nodes(text: str) -> list[int | str]:
    return [word if word == "bonus" else _whole(word) for word in re.split(r"\s*,\s*", text)]


def _places(text: str) -> list[list[int]]:
    """3/7, 9/2: step and node."""
    pairs = [re.fullmatch(r"(\d{1,9})/(\d{1,9})", word) for word in re.split(r"\s*,\s*", text)]
    if None in pairs:
        raise ValueError(text)
    return [[int(pair[1]), int(pair[2])] for pair in pairs if pair]


def _plants(text: str) -> list[Plant]:
    """next_sibling[2] = 5; mask[9, 3]: the entry of an array, and the wrong value that stands there."""
    found = []
    for part in re.split(r"\s*;\s*", text):
        entry = re.fullmatch(r"(\w+)\[(\d+)\]\s*=\s*(-?\d+)", part)
        bit = re.fullmatch(r"mask\[(\d+)\s*,\s*(\d+)\]", part)
        if bit:
            found.append(Plant("mask", int(bit[1]), int(bit[2]), -1))
        elif entry and entry[1] in ARRAYS and entry[1] != "mask":
            found.append(Plant(entry[1], int(entry[2]), None, int(entry[3])))
        else:
            raise ValueError(text)
    return found


# -------------------------------------------------------------------- what a step must hold


def _check_step(at: Step, wants: JSON) -> None:
    if not 0 <= wants["answer"] < len(at.trace.steps) or wants["answer"] == at.place:
        last = len(at.trace.steps) - 1
        raise TaskError("answer", f"is step {wants['answer']}, must be another than {at.place}, up to {last}")


def _check_click(at: Step, wants: JSON) -> None:
    n = len(at.step.tree.tokens)
    for node in wants["answer"]:
        if node != "bonus" and node >= n:
            raise TaskError("answer", f"is node {node}; the step has nodes 0 to {n - 1}")


def _check_pop(at: Step, wants: JSON) -> None:
    draft = at.step.draft
    if at.trace.header.algorithm != "DDTREE" or draft is None or not draft.top_logprobs:
        raise TaskError("trace", "must be a DDTree trace whose steps hold the draft")
    if not 1 <= wants["pops"] < len(at.step.tree.tokens):
        raise TaskError("pops", f"is {wants['pops']}, must be 1 to {len(at.step.tree.tokens) - 1}")


def _check_links(at: Step, wants: JSON) -> None:
    right = encoding(at.step)
    n = len(at.step.tree.tokens)
    for plant in wants["plant"]:
        if plant.at >= n or (plant.column or 0) >= n:
            raise TaskError("plant", f"names an entry beyond node {n - 1}")
        if plant.array != "mask" and right[plant.array][plant.at] == plant.value:
            raise TaskError("plant", f"writes {plant.array}[{plant.at}] = {plant.value}, which is right")


def _check_walk(at: Step, wants: JSON) -> None:
    if at.step.accept.kernel != "greedy" or at.step.target is None:
        raise TaskError("step", "must be a greedy step that holds the target's argmax")


def _check_coin(at: Step, wants: JSON) -> None:
    step, node = at.step, wants["reject"]
    if step.sampling is None or step.target is None or step.target.filtered is None:
        raise TaskError("step", "must be a sampled step that holds coins and target probabilities")
    if not 0 < node < len(step.tree.tokens) or step.tree.parents[node] != 0:
        raise TaskError("reject", f"is node {node}, must be a child of the root")
    if not 1 <= wants["draws"] <= MAX_DRAWS:
        raise TaskError("draws", f"is {wants['draws']}, must be 1 to {MAX_DRAWS}")


def _check_pack(at: Step, wants: JSON) -> None:
    commit = at.step.commit
    if commit is None or len(commit.src_slots) < 2:
        raise TaskError("step", "must be a step that accepts a node and holds its commit")


def _check_whatif(at: Step, wants: JSON) -> None:
    if at.step.draft is None or not at.step.draft.top_logprobs:
        raise TaskError("trace", "must be a trace whose steps hold the draft")
    if not 1 <= wants["cap"] <= MAX_CAP:
        raise TaskError("cap", f"is {wants['cap']}, must be 1 to {MAX_CAP}, where the slider ends")
    if smallest_budget(at, wants["reach"], wants["cap"]) is None:
        raise TaskError("reach", f"is {wants['reach']}: no budget up to {MAX_BUDGET} reaches it here")


def _check_findings(at: Step, wants: JSON) -> None:
    found = {(finding.step, finding.node) for finding in examine(at.trace)}
    for step, node in wants["answer"]:
        if (step, node) not in found:
            raise TaskError("answer", f"names step {step}, node {node}; the doctor finds nothing there")


# -------------------------------------------------------------------- data for the pieces

MAX_BUDGET = 64  # the slider's end
MAX_CAP = 16  # what a trace records of each position
MAX_DRAWS = 100_000  # at one press of a button: well below a second


def smallest_budget(at: Step, reach: int, cap: int) -> int | None:
    """The least budget whose tree has accept length `reach` on this step, with this cap."""
    rows, text = _draft(at), _continuation(at)
    settings = [(budget, cap) for budget in range(1, MAX_BUDGET + 1)]
    answers = ask(*rows, at.step.tree.tokens[0], text, settings)
    return next((b for (b, _), a in zip(settings, answers, strict=True) if a.accept_length >= reach), None)


RUN_BUDGETS = (1, 2, 4, 8, 16, 32, 64)
RUN_CAPS = (1, 2, 4, 8, 16)


def run_means(trace: Trace) -> JSON:
    """Mean accept length of a run at its recorded steps: by cap and budget, as `ddviz whatif` has it, and
    of its recorded trees by temperature (temperature.py), null where the target's numbers are not recorded.

    Raises BadValueError where no step holds a draft.
    """
    (found,) = whatif([trace], RUN_BUDGETS, RUN_CAPS)
    means: dict[int, list[float]] = {cap: [] for cap in RUN_CAPS}
    for estimate in found.estimates:
        means[estimate.topk_cap].append(round(estimate.at_recorded_starts, 4))
    lengths = lengths_at(trace)
    return {
        "name": trace.name,
        "temperature": found.temperature,
        "budgets": RUN_BUDGETS,
        "means": means,
        "temperatures": TEMPERATURES,
        "lengths": [list(bounds) for bounds in lengths] if lengths else None,
    }


def _draft(at: Step) -> tuple[Any, Any]:
    draft = at.step.draft
    assert draft is not None and draft.top_logprobs is not None
    return np.array(draft.top_logprobs, np.float32), np.array(draft.top_ids, np.int64)


def _continuation(at: Step) -> list[int]:
    return next(text for step, text in continuations(at.trace) if step.index == at.step.index)


def _links_data(at: Step, wants: JSON) -> JSON:
    return {"plant": [plant._asdict() for plant in wants["plant"]]}


def _whatif_data(at: Step, wants: JSON) -> JSON:
    text = _continuation(at)[: len(at.step.draft.top_ids) + 1 if at.step.draft else 0]
    return {
        "text": text,
        "labels": [at.trace.tokens.label(token) for token in text],
        "most": [MAX_BUDGET, MAX_CAP],
    }


def _findings_data(at: Step, wants: JSON) -> JSON:
    return {"findings": [msgspec.to_builtins(finding) for finding in examine(at.trace)]}


NODE = "a node, or several with commas, any of which is right; bonus is the bonus"
TASKS: dict[str, Task] = {
    "step": Task({"answer": Field(_whole, "the step to go to")}, _check_step, shows=("viewer",)),
    "click": Task({"answer": Field(_nodes, NODE)}, _check_click, shows=("viewer", "tree")),
    "pop": Task({"pops": Field(_whole, "how many nodes to pop")}, _check_pop),
    "links": Task(
        {"plant": Field(_plants, "wrong entries with semicolons: next_sibling[2] = 5; mask[9, 3]")},
        _check_links,
        _links_data,
    ),
    "walk": Task({}, _check_walk),
    "coin": Task(
        {
            "reject": Field(_whole, "the child of the root that the coin is to reject"),
            "draws": Field(_whole, "how many draws to make", 1000),
        },
        _check_coin,
    ),
    "pack": Task({}, _check_pack),
    "whatif": Task(
        {
            "reach": Field(_whole, "the accept length to reach"),
            "cap": Field(_whole, "the topk_cap at which the budget counts", 4),
        },
        _check_whatif,
        _whatif_data,
    ),
    "findings": Task(
        {"answer": Field(_places, "step/node of each fault: 3/7, 9/2")},
        _check_findings,
        _findings_data,
        shows=("viewer", "tree"),
    ),
}
