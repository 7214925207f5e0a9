"""A trace in the terminal: `ddviz show`.

In:  Trace, and the number of a step.
Out: rich renderables (a summary with one line per step, or one step's tree), or the same as JSON.
Not here: the interactive view (viewer/), judging what a step says (check/).

What a trace holds is hostile: text goes through tokens.py and into Text objects, never through rich's markup.
A step may be damaged and still decode (lists too short, parents that do not exist): it is drawn as far as it
goes, and a line below says so.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddviz.errors import BadValueError
from ddviz.trace.reader import Trace
from ddviz.trace.schema import Step
from ddviz.trace.tokens import pieces
from ddviz.tree import compile_ddtree_retrieve, node_statuses
from ddviz.tree.accept import ACCEPTED, GREEDY_TEMPERATURE, REJECTED, UNREACHED

SIGNS = {ACCEPTED: "✓ accepted", REJECTED: "✗ rejected", UNREACHED: "· unreached"}
STYLES = {ACCEPTED: "green", REJECTED: "red", UNREACHED: "dim"}
_BONUS_STYLE = "bold yellow"
_BONUS = -1  # stands for the bonus among node numbers
_MAX_NODES = 2048  # of one drawing, and how deep it goes; an engine's trees are half as large at most
_MAX_DEPTH = 100
_MAX_LABEL = 40  # characters of one token's label
MOST_LINES = 100  # on notes of the header, and on steps that were not kept
_MAX_TEXT = 60  # of one step's text in the summary


@dataclass(frozen=True, slots=True)
class StepRow:
    """What the summary says of a step."""

    index: int
    prefix_len: int
    n: int
    accept_length: int
    ms: float | None
    emitted: list[int]


def render_summary(trace: Trace) -> RenderableType:
    """What was run, how it went, and one line per step."""
    rows = _rows(trace)
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(trace, rows):
        facts.add_row(Text(name, "dim"), Text(_plain(value)))
    steps = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    _add_numbers(steps, "step", "prefix", "nodes", "accept length", "ms")
    steps.add_column("emitted", overflow="fold")
    for row, text in zip(rows, _texts(trace, rows), strict=True):
        numbers = map(str, (row.index, row.prefix_len, row.n, row.accept_length))
        steps.add_row(*map(Text, [*numbers, _number(row.ms, 2), _cut(text, _MAX_TEXT)]))
    lost = [f"steps {d.first} to {d.last} were not kept: {d.reason}" for d in trace.dropped[:MOST_LINES]]
    return Group(facts, Text(), steps, *_warnings([*lost, trace.damage or ""]))


def render_step(trace: Trace, i: int) -> RenderableType:
    """One step as a tree. `i` counts steps in the file, from 0. Raises BadValueError where there is none."""
    step = _step(trace, i)
    row = _row(step)
    facts = [f"step {row.index}", f"prefix {row.prefix_len}", f"{row.n} nodes"]
    facts += [f"accept length {row.accept_length}", f"{step.accept.kernel} decision"]
    facts += [f"{row.ms:.2f} ms"] if row.ms is not None else []
    emitted = Text("emitted  ", "dim")
    emitted.append(" ".join(_cut(trace.tokens.label(token), _MAX_LABEL) for token in step.emitted), "default")
    astray = sum(_parent(step, node) != _at(step.tree.parents, node) for node in range(1, row.n))
    fault = (
        f"{astray} nodes have no parent before them and hang below the root; run: ddviz doctor {trace.path}"
    )
    rows = list(_walk(step))
    left_out = row.n - sum(node != _BONUS for node, _, _ in rows)
    cut = (
        f"{left_out} nodes are not drawn: a drawing holds {_MAX_NODES} nodes beside the accepted path, "
        f"{_MAX_DEPTH} deep; with --json all are there"
    )
    warnings = _warnings([fault if astray else "", cut if left_out else ""])
    return Group(
        Text(" · ".join(facts), "bold"), Text(), _tree_table(trace, step, rows), Text(), emitted, *warnings
    )


def as_json(trace: Trace, i: int | None = None) -> str:
    """The summary, or step `i` as recorded with each node's label and status beside it."""
    content = _summary_content(trace) if i is None else _step_content(trace, _step(trace, i))
    return msgspec.json.encode(content).decode()


def local_path(step: Step) -> list[int]:
    """The accepted path as node numbers: flat -> local by subtracting row*T. What is no node is left out."""
    root, n = step.flat_root, len(step.tree.tokens)
    return [flat - root for flat in step.accept.index if 0 <= flat - root < n]


def statuses(step: Step) -> list[str]:
    """Status of each node, by the recorded links or, where none were recorded, by those the parents imply."""
    n = len(step.tree.tokens)
    if n == 0:
        return []
    if step.retrieve is not None:
        links = _whole(step.retrieve.next_token, n), _whole(step.retrieve.next_sibling, n)
    else:
        parents = np.array([-1, *(_parent(step, node) for node in range(1, n))], np.int32)
        implied = compile_ddtree_retrieve(parents)
        links = implied.next_token, implied.next_sibling
    return node_statuses(n, local_path(step), *links)


# ---- the tree


def _tree_table(trace: Trace, step: Step, rows: list[tuple[int, str, int]]) -> Table:
    """One row per node of `_walk`."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("token", no_wrap=True)
    _add_numbers(table, "node", "rank", "score", "draft", "target")
    table.add_column("", no_wrap=True)
    status = statuses(step)
    for node, lines, depth in rows:
        if node == _BONUS:
            label, style, sign = trace.tokens.label(step.accept.bonus), _BONUS_STYLE, "+ bonus"
            cells = [""] * 5
        else:
            label, style = trace.tokens.label(step.tree.tokens[node]), STYLES[status[node]]
            sign = SIGNS[status[node]] if node else "root"
            cells = [str(node), *_numbers(trace, step, node, depth)]
        token = Text(lines, "dim")
        token.append(_cut(label, _MAX_LABEL), style)
        table.add_row(token, *map(Text, cells), Text(sign, style))
    return table


def _walk(step: Step) -> Iterator[tuple[int, str, int]]:
    """(node or _BONUS, tree lines in front of it, depth), depth first, as far as a drawing goes.

    The bonus is the last child of the accepted path's end. Lines grow with the depth, so that the cut at
    _MAX_DEPTH keeps the whole linear in n.
    """
    n = len(step.tree.tokens)
    children: list[list[int]] = [[] for _ in range(n)]
    for node in range(1, n):
        children[_parent(step, node)].append(node)
    path = local_path(step)
    if n:
        children[path[-1] if path else 0].append(_BONUS)
    stack, kept, drawn = [(0, "", "", 0)][:n], {_BONUS, *path}, 0
    while stack:
        node, lines, below, depth = stack.pop()
        if drawn >= _MAX_NODES and node not in kept:
            continue
        yield node, lines, depth
        drawn += 1
        kids = [] if node == _BONUS or depth == _MAX_DEPTH else children[node]
        for kid in reversed(kids):
            corner, bar = ("└─ ", "   ") if kid == kids[-1] else ("├─ ", "│  ")
            stack.append((kid, below + corner, below + bar, depth + 1))


def _parent(step: Step, node: int) -> int:
    """The recorded parent; the root where that is no node before this one."""
    parent = _at(step.tree.parents, node)
    return parent if parent is not None and 0 <= parent < node else 0


def _numbers(trace: Trace, step: Step, node: int, depth: int) -> list[str]:
    """Rank, score, draft probability, target probability; empty where the trace has none."""
    if node == 0:
        return [""] * 4
    rank, score = _at(step.tree.ranks, node), _at(step.tree.scores, node)
    rows = step.target and (step.target.filtered or step.target.raw)
    target = _at(rows.node_probs, node) if rows else None
    draft = _draft_prob(trace, step, node, depth, rank)
    return ["" if rank is None else str(rank), _number(score, 2), _number(draft, 3), _number(target, 3)]


def _draft_prob(trace: Trace, step: Step, node: int, depth: int, rank: int | None) -> float | None:
    """From the drafter's candidates; where they were not recorded, from the scores of node and parent."""
    logprob = None
    if step.draft is not None and rank is not None:
        logprob = _at(_at(step.draft.top_logprobs, depth - 1), rank)
    own, above = _at(step.tree.scores, node), _at(step.tree.scores, _parent(step, node))
    if logprob is None and trace.header.score_kind == "logprob" and own is not None and above is not None:
        logprob = own - above
    return None if logprob is None else math.exp(min(logprob, 0.0))


# ---- the summary


def _rows(trace: Trace) -> list[StepRow]:
    return [_row(step) for step in trace.steps]


def _row(step: Step) -> StepRow:
    accept_length = step.accept.num_accepted + 1
    ms = None if step.total_us is None else step.total_us / 1000
    return StepRow(step.index, step.prefix_len, len(step.tree.tokens), accept_length, ms, step.emitted)


def _texts(trace: Trace, rows: list[StepRow]) -> list[str]:
    """What each step emitted; a character that steps share stands whole in the last of them."""
    texts = iter(trace.tokens.pieces(token for row in rows for token in row.emitted))
    return ["".join(next(texts) for _ in row.emitted) for row in rows]


def _mean_accept_length(rows: list[StepRow]) -> float | None:
    """The prefill token is not counted. None without steps."""
    return sum(row.accept_length for row in rows) / len(rows) if rows else None


def _facts(trace: Trace, rows: list[StepRow]) -> Iterator[tuple[str, str]]:
    header, sampling, end = trace.header, trace.header.sampling, trace.end
    greedy = sampling.temperature < GREEDY_TEMPERATURE or sampling.top_k == 1
    output = len(end.output_ids) if end else len(trace.prefills[:1]) + sum(len(row.emitted) for row in rows)
    mean = _mean_accept_length(rows)
    yield "trace", str(trace.path)
    yield "engine", _joined(header.engine.name, header.engine.version, header.engine.device)
    yield (
        "algorithm",
        _joined(
            header.algorithm,
            header.block_size is not None and f"block size {header.block_size}",
            header.budget is not None and f"budget {header.budget}",
            header.topk_cap is not None and f"topk_cap {header.topk_cap}",
        ),
    )
    yield "target", header.target
    if header.draft is not None:
        yield "draft", header.draft
    yield (
        "sampling",
        _joined(
            "greedy" if greedy else f"temperature {sampling.temperature:g}",
            sampling.top_k > 1 and f"top_k {sampling.top_k}",
            sampling.top_p < 1 and f"top_p {sampling.top_p:g}",
            sampling.seed is not None and f"seed {sampling.seed}",
        ),
    )
    if trace.prompt is not None:
        yield "prompt", f"{len(trace.prompt.token_ids)} tokens"
    yield "output", f"{output} tokens in {len(rows)} steps" + (f", accept length {mean:.2f}" if mean else "")
    yield "finished", _joined(end.finish_reason, end.message) if end else "no end recorded"
    for note in header.notes[:MOST_LINES]:
        yield "note", note


def _summary_content(trace: Trace) -> dict[str, Any]:
    rows = _rows(trace)
    return {
        "header": trace.header,
        "prompt": trace.prompt,
        "prefills": [prefill for _, prefill in trace.prefills],
        "accept_length": _mean_accept_length(rows),
        "steps": [asdict(row) | {"text": text} for row, text in zip(rows, _texts(trace, rows), strict=True)],
        "dropped": trace.dropped,
        "end": trace.end,
        "damage": trace.damage,
    }


def _step_content(trace: Trace, step: Step) -> dict[str, Any]:
    labels = [trace.tokens.label(token) for token in step.tree.tokens]
    return {"step": step, "labels": labels, "statuses": statuses(step)}


# ---- small things


def _step(trace: Trace, i: int) -> Step:
    if not 0 <= i < len(trace.steps):
        have = f"its steps are 0 to {len(trace.steps) - 1}" if trace.steps else "it has no steps"
        raise BadValueError(f"{trace.path}: there is no step {i}; {have}")
    return trace.steps[i]


def _add_numbers(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, justify="right")


def _warnings(sentences: list[str]) -> list[Text]:
    return [Text(f"\n! {_plain(sentence)}", "yellow") for sentence in sentences if sentence]


def _joined(*parts: str | bool | None) -> str:
    return " · ".join(part for part in parts if isinstance(part, str) and part)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _plain(text: str) -> str:
    """Text whose control characters can be seen and do nothing."""
    return _flat("".join(pieces([text.encode("utf-8", "replace")])))


def _cut(text: str, length: int) -> str:
    flat = _flat(text)
    return flat if len(flat) <= length else flat[: length - 1] + "…"


def _flat(text: str) -> str:
    return text.replace("\n", "⏎").replace("\t", "⇥")


def _at(values: Sequence[Any] | None, i: int) -> Any:
    return values[i] if values is not None and 0 <= i < len(values) else None


def _whole(links: list[int], n: int) -> NDArray[np.int64]:
    """Links [n]: what is missing, or is no node, reads as "none"."""
    return np.array([link if 0 <= link < n else -1 for link in [*links, *[-1] * n][:n]], np.int64)
