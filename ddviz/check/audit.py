"""The audit: compute again what a trace says its models gave, by plain forwards, and name what differs first.

In:  a trace; its target, and its DFlash drafter where it has one.
Out: AuditReport: what was compared and how far apart it was, and findings as data.
Not here: rules over what was recorded (doctor.py), whether sampling is right (losslessness.py), the plain
forwards themselves (plain.py).

A trace can agree with itself and still be wrong: with a wrong mask, unpacked KV or wrong positions the engine
accepts by the logits that it had, and every rule replays. So each root-to-node path is read by the target as
a text of its own: prompt, committed tokens, path; no cache, no tree, no mask but the causal one. The drafter
likewise gets the target's features of a plain forward. What differs first is named, and the comparison of
that model ends there: what comes later follows from it. Never fixes anything.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from ddviz.check.rules import Finding
from ddviz.check.views import StepView
from ddviz.errors import TraceError
from ddviz.trace import Trace
from ddviz.trace.schema import Step

# How far apart two right computations may be, in nats: the largest difference seen on clean traces, and room.
# Measured in docs/audit.md.
TOLERANCES: dict[str, float] = {"float32": 0.01, "bfloat16": 1.5, "float16": 0.25}
DRAFT_TOLERANCES = TOLERANCES | {"bfloat16": 1.0}  # a few layers round less than the target's many
UNKNOWN_DTYPE = "bfloat16"  # taken where a trace does not say
LEAST_PROB = 1e-6  # log-probabilities below that of this are rounded away in what they decide

TARGET, DRAFT, TEXT = "audit-target", "audit-draft", "audit-text"


class PlainTarget(Protocol):
    """A target that reads texts: plain.py has the real one."""

    def logprobs(
        self, prefix: Sequence[int], paths: Sequence[Sequence[int]]
    ) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Per path: log-probabilities [1 + len(path), V] after the prefix and after each token; logsumexp."""


class PlainDrafter(Protocol):
    def logprobs(self, prefix: Sequence[int], root: int) -> NDArray[np.float32]:
        """[B-1, V] for the positions after the root, which follows the prefix."""


class Value(NamedTuple):
    """A recorded number beside the one that was computed again; None and NaN are infinitely far apart."""

    name: str
    token: int | None
    recorded: float | None
    plain: float

    @property
    def nats(self) -> float:
        gap = math.inf if self.recorded is None else abs(self.recorded - self.plain)
        return math.inf if math.isnan(gap) else gap

    def told(self, trace: Trace) -> str:
        token = "" if self.token is None else f" of token {self.token} {trace.tokens.label(self.token)}"
        recorded = "nothing" if self.recorded is None else f"{self.recorded:.4f}"
        return f"{self.name}{token}: recorded {recorded}, a plain forward gives {self.plain:.4f}"


class Gap(NamedTuple):
    """The value of a node, or of a draft position, that is farthest off."""

    step: int
    place: int  # node, or draft position from 1
    value: Value

    @property
    def nats(self) -> float:
        return self.value.nats


@dataclass(slots=True)
class Part:
    """One model's half of an audit."""

    tolerance: float
    steps: int = 0
    places: int = 0  # nodes, or draft positions
    values: int = 0  # numbers compared
    gaps: list[Gap] = field(default_factory=list)  # the largest of each place

    @property
    def worst(self) -> float:
        return max((gap.nats for gap in self.gaps), default=0.0)

    @property
    def beyond(self) -> list[Gap]:
        return [gap for gap in self.gaps if not gap.nats <= self.tolerance]

    def as_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "places": self.places,
            "values": self.values,
            "largest_difference": self.worst if math.isfinite(self.worst) else None,
            "tolerance": self.tolerance,
            "beyond": len(self.beyond),
        }


@dataclass(slots=True)
class AuditReport:
    target: Part
    draft: Part | None  # None: no drafter, or none that can be computed again
    findings: list[Finding]
    skipped: dict[str, list[int]]  # reason -> steps that were not compared
    draft_note: str = ""  # why `draft` is None


def audit(
    trace: Trace,
    target: PlainTarget,
    drafter: PlainDrafter | None = None,
    draft_note: str = "",
    steps: range | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> AuditReport:
    """Compare the steps of a trace (by index; None = all) with plain forwards.

    draft_note  why there is no drafter
    Raises TraceError where no step can be compared: nothing was recorded, or none has such an index.
    """
    report = AuditReport(
        Part(tolerance_of(trace)),
        None if drafter is None else Part(draft_tolerance_of(trace)),
        [],
        {},
        draft_note,
    )
    total = sum(steps is None or step.index in steps for step in trace.steps)
    done = 0
    for step, text in texts(trace):
        if steps is not None and step.index not in steps:
            continue
        on_progress(done, total)
        done += 1
        reason = _why_not(trace, step, text)
        if reason:
            report.skipped.setdefault(reason, []).append(step.index)
            continue
        assert text is not None
        if drafter is not None and report.draft is not None and not report.draft.beyond:
            _compare_draft(step, text, drafter, report.draft)
        _compare_target(step, text, target, report.target)
        if report.target.beyond:
            break
    if not report.target.steps and BROKEN_TEXT not in report.skipped:
        why = "; ".join(report.skipped) or (f"no step from {steps.start} on" if steps else "it holds no step")
        raise TraceError(f"{trace.path}: nothing to audit: {why}")
    report.findings = list(_findings(trace, report))
    return report


def tolerance_of(trace: Trace) -> float:
    """Of the target, by the dtype that the engine computed in."""
    dtype = str(trace.header.engine.options.get("dtype"))
    return TOLERANCES.get(dtype, TOLERANCES[UNKNOWN_DTYPE])


def draft_tolerance_of(trace: Trace) -> float:
    """Of the drafter, which reads what the target computed: the coarser of both dtypes decides."""
    options = trace.header.engine.options
    dtypes = (str(options.get(name) or options.get("dtype")) for name in ("dtype", "draft_dtype"))
    return max(DRAFT_TOLERANCES.get(dtype, DRAFT_TOLERANCES[UNKNOWN_DTYPE]) for dtype in dtypes)


def texts(trace: Trace) -> Iterator[tuple[Step, list[int] | None]]:
    """Each step with prompt and output before it, its root the last; None where tokens are missing."""
    text: list[int] | None = list(trace.prompt.token_ids) if trace.prompt is not None else None
    whole = text is not None and trace.end is not None and [*text, *trace.end.output_ids]
    prefills = list(trace.prefills)
    index = 0
    for place, step in enumerate(trace.steps):
        while prefills and prefills[0][0] <= place:
            token = prefills.pop(0)[1].token
            text = None if text is None else [*text, token]
        if step.index != index:  # steps were dropped: the end event knows what they emitted
            text = list(whole[: step.prefix_len + 1]) if whole else None
        yield step, text
        text = None if text is None else [*text, *step.emitted]
        index = step.index + 1


def print_report(path: Path, report: AuditReport, as_json: bool = False) -> int:
    """Print what was compared and the findings. Returns the exit code: 0 clean, 1 findings."""
    if as_json:
        held = {
            "findings": report.findings,
            "target": report.target.as_dict(),
            "draft": None if report.draft is None else report.draft.as_dict(),
            "skipped": report.skipped,
            "notes": [report.draft_note] if report.draft_note else [],
        }
        print(msgspec.json.format(msgspec.json.encode({str(path): held}), indent=2).decode())
    else:
        Console(highlight=False).print(_laid_out(path, report), end="", soft_wrap=True)
    return int(bool(report.findings))


def _laid_out(path: Path, report: AuditReport) -> Text:
    count = len(report.findings)
    text = Text()
    text.append(str(path), "bold").append(
        f": {count} finding{'s' if count > 1 else ''}\n" if count else ": clean\n",
        "red" if count else "green",
    )
    places = {"target": "nodes", "draft": "draft positions"}
    for name, part in (("target", report.target), ("draft", report.draft)):
        if part is None:
            text.append(f"  {name:7} not compared: {report.draft_note}\n", "dim")
            continue
        text.append(
            f"  {name:7} {part.places:,} {places[name]} of {part.steps} steps, {part.values:,} values: "
            f"at most {part.worst:.2g} nats apart, tolerance {part.tolerance:g}\n"
        )
    for reason, steps in report.skipped.items():
        text.append(f"  {len(steps)} steps were not compared, the first {steps[0]}: {reason}\n", "yellow")
    for finding in report.findings:
        node = "" if finding.node is None else f" node {finding.node}"
        text.append(f"  {finding.rule}", "yellow").append(f"  step {finding.step}{node}: {finding.message}\n")
        text.append("    likely cause: ", "dim").append(f"{finding.cause}\n")
        text.append("    look at: ", "dim").append(f"{finding.look_at}\n")
    return text


# -------------------------------------------------------------------- comparing


BROKEN_TEXT = "its root is not the token that the text before it ends with"


def _why_not(trace: Trace, step: Step, text: list[int] | None) -> str:
    """Why a step can't be compared; "" = it can."""
    if step.target is None:
        return f"the target's probabilities were not recorded (level {trace.header.level})"
    if text is None:
        return "the tokens before it are missing"
    view = StepView(trace.header, step)
    rows = (step.target.raw.top_ids, step.target.raw.top_probs, step.target.raw.logsumexp)
    if view.depths is None or {len(row) for row in rows} != {view.n}:
        return "its arrays are broken: run ddviz doctor"
    if len(text) != step.prefix_len + 1 or text[-1] != step.tree.tokens[0]:
        return BROKEN_TEXT
    return ""


def _compare_target(step: Step, text: list[int], target: PlainTarget, part: Part) -> None:
    """Every node, by the path of a leaf below it."""
    tree, raw = step.tree, step.target.raw if step.target else None
    assert raw is not None
    paths = [_path_to(tree.parents, node) for node in range(len(tree.tokens))]
    inner = set(tree.parents)
    leaves = [node for node in range(len(tree.tokens)) if node not in inner]
    answers = target.logprobs(text, [[tree.tokens[node] for node in paths[leaf]] for leaf in leaves])
    rows: dict[int, tuple[NDArray[np.float32], float]] = {}
    for leaf, (logprobs, logsumexp) in zip(leaves, answers, strict=True):
        for depth, node in enumerate([0, *paths[leaf]]):
            rows[node] = logprobs[depth], float(logsumexp[depth])
    for node, (row, logsumexp) in sorted(rows.items()):
        values = list(_of_row("ln p", raw.top_ids[node], raw.top_probs[node], row))
        if raw.node_probs is not None and node:
            own, above = raw.node_probs[node], rows[tree.parents[node]][0]
            values += _of_row("ln p", [tree.tokens[node]], [own], above)
        values.append(Value("logsumexp", None, raw.logsumexp[node], logsumexp))
        values.append(Value("entropy", None, raw.entropy[node], -float((np.exp(row) * row).sum())))
        _take(part, step.index, node, values)
    part.steps += 1


def _compare_draft(step: Step, text: list[int], drafter: PlainDrafter, part: Part) -> None:
    if step.draft is None or step.draft.top_logprobs is None:
        return
    rows = drafter.logprobs(text[:-1], text[-1])
    for place, (ids, recorded) in enumerate(zip(step.draft.top_ids, step.draft.top_logprobs, strict=True)):
        probs = [None if value is None else math.exp(value) for value in recorded]
        _take(part, step.index, place + 1, list(_of_row("ln p", ids, probs, rows[place])))
    part.steps += 1


def _take(part: Part, step: int, place: int, values: list[Value]) -> None:
    part.places += 1
    part.values += len(values)
    if values:
        part.gaps.append(Gap(step, place, max(values, key=lambda value: value.nats)))


def _of_row(
    name: str, ids: Sequence[int], probs: Sequence[float | None], row: NDArray[np.float32]
) -> Iterator[Value]:
    """Recorded probabilities against a row of log-probabilities. Below LEAST_PROB all count as equal."""
    least = math.log(LEAST_PROB)
    for token, prob in zip(ids, probs, strict=True):
        plain = float(row[token]) if 0 <= token < len(row) else math.nan
        recorded = None if prob is None else math.log(max(prob, LEAST_PROB))
        yield Value(name, token, recorded, max(plain, least))


def _path_to(parents: list[int], node: int) -> list[int]:
    """Nodes from below the root to a node."""
    path: list[int] = []
    while node > 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


# -------------------------------------------------------------------- findings


def _findings(trace: Trace, report: AuditReport) -> Iterator[Finding]:
    broken = report.skipped.get(BROKEN_TEXT)
    if broken and not trace.dropped:
        cause = "tokens were committed and not emitted, or the other way round"
        message = f"{BROKEN_TEXT}; {len(broken)} steps are like this and were not compared"
        yield Finding(TEXT, broken[0], None, message, cause, "commit, emitted, prefix_len; ddviz doctor")
    if report.target.beyond:
        yield _target_finding(trace, report.target)
    if report.draft is not None and report.draft.beyond:
        yield _draft_finding(trace, report.draft)


def _target_finding(trace: Trace, part: Part) -> Finding:
    first = part.beyond[0]
    step = next(step for step in trace.steps if step.index == first.step)
    depth = (StepView(trace.header, step).depths or [])[first.place]
    message = (
        f"{first.value.told(trace)}: {first.nats:.3g} nats apart, tolerance {part.tolerance:g} "
        f"(depth {depth}; {_share(part, 'nodes')})"
    )
    cause, look_at = _target_cause(first, depth)
    return Finding(TARGET, first.step, first.place, message, cause, look_at)


def _target_cause(first: Gap, depth: int) -> tuple[str, str]:
    if depth == 0 and first.step == 0:
        return (
            "already the first root differs, before any tree was committed: another model or dtype than "
            "the trace's, or the prompt's KV is wrong",
            "--target, header.target, engine.options; prefill",
        )
    if depth == 0:
        return (
            "the root sees only committed KV, and that is not the text's: accepted rows were not packed, "
            "were computed under a wrong mask or position, or were overwritten",
            "the commit of the step before: commit.src_slots, commit.dst_slots; then mask and positions",
        )
    return (
        "the root is right, a node below it is not: it was not shown its ancestors alone, or stood at "
        "another position than prefix_len + depth",
        "mask, positions, the attention's arguments; a CUDA graph captured without the tree's mask",
    )


def _draft_finding(trace: Trace, part: Part) -> Finding:
    first = part.beyond[0]
    message = (
        f"draft position {first.place}, {first.value.told(trace)}: {first.nats:.3g} nats apart, tolerance "
        f"{part.tolerance:g} ({_share(part, 'positions')})"
    )
    return Finding(
        DRAFT,
        first.step,
        None,
        message,
        "the drafter was fed other features than those of the committed tokens (layers, rows or order), or "
        "its KV lies elsewhere. The output is not touched by it: only the accept length is",
        "target_layer_ids, the hidden states handed over at commit, commit.draft_kv_positions",
    )


def _share(part: Part, places: str) -> str:
    step = part.gaps[-1].step
    of_step = [gap for gap in part.gaps if gap.step == step]
    beyond = sum(gap.nats > part.tolerance for gap in of_step)
    return f"{beyond} of the step's {len(of_step)} {places} are beyond it, and the comparison ended there"
