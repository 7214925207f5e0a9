"""docs/trace-format.md and docs/trace-schema.json, made from schema.py.

In:  the Structs of schema.py, and the comments behind their fields.
Out: the two files. `python -m ddviz.trace.docs` writes them; with --check it says whether they are stale.
Not here: how to write a trace (docs/recorder.md, by hand).
"""

import ast
import inspect
import json
import sys
import tokenize
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
import numpy as np

import ddviz
from ddviz.trace import schema
from ddviz.trace.schema import (
    Accept,
    AnyEvent,
    Batch,
    Commit,
    Draft,
    FilteredRows,
    Retrieve,
    Sampling,
    Step,
    Target,
    TargetRows,
    Tree,
)
from ddviz.tree import pack_mask, tree_mask

DOCS = Path(ddviz.__file__).parents[1] / "docs"

INTRO = """\
# The trace file

<!-- Generated from ddviz/trace/schema.py by `python -m ddviz.trace.docs`; edit there. -->

`NAME.ddviz` holds what every decoding step of one request did. An engine writes it; the app, the doctor and
the command line read it, and nothing else passes between them. Writing one from an engine of your own takes
about thirty lines: [recorder.md](recorder.md). A line's JSON Schema: [trace-schema.json](trace-schema.json).

## Container

JSON Lines, each line compressed as a Zstandard frame of its own, with content size and checksum:

    zstdcat run.ddviz | jq 'select(.event == "step") | .accept.num_accepted'

- An append is one frame, so a file is readable while it grows, and an engine that dies loses at most the
  event it was writing.
- A reader walks the frames itself. A file that is cut short yields every whole event before the cut; a
  flipped bit fails the frame's checksum, and all before it is read. What was lost is said, never guessed.
- `version` in the header is major.minor. Readers refuse a newer major version and skip events and fields of a
  newer minor version that they do not know. Older versions are read for ever.

## Order of events

    header   prompt   prefill   (tokens | step | dropped)*   end

A `tokens` event comes before the first event that names its ids. `end` is missing while the request runs, and
where the engine died. A second `prefill` restarts the root and the committed prefix (a retracted request).

## Reading the tables

A field without a default is always there. One whose value is its default may be left out; absent is `null`.
Types are written as in Python, `bytes` is base64 text. A list `[n]` has one entry per node, `[n][m]` has m
per node. Nothing that can be derived is stored, except where the engine's own buffer holds it: the difference
between the two is the bug one looks for.

| letter | means |
|---|---|
| n | nodes of the tree with the root, at most budget + 1; node 0 is the root |
| T | width of the kernel's arrays, T >= n; nodes from n to T - 1 are padding that no link reaches |
| b | the request's row in its batch; flat = b*T + node |
| B | block size of the drafter, which fills positions 1 to B - 1 |
| K | draft candidates kept per position |
| m | target tokens kept per node |

Floats that a check replays (scores, node_probs, coins, residual, cdf, margin) are the shortest decimals that
round-trip float32. Floats that are only shown carry 5 significant digits. JSON has no NaN and no infinities:
such a value is null, and `target.nonfinite` counts those of the logits.
"""

EXAMPLE = """\
## One step, literally

A drafter with B = 3 proposes `20` (probability 0.6) or `21` (0.3) behind the root `10`, then `30` (0.7) or
`31` (0.2). With budget 3 the best tree has these nodes. 7 tokens are committed already: the root stands at 7.

    node 0   token 10   position 7
    ├─ node 1   token 20   score ln 0.6          target 0.8   coin of node 0 = 0.35 <= 0.8: accepted
    │  └─ node 2   token 30   score ln 0.6*0.7   target 0.3   coin of node 1 = 0.62 > 0.3: rejected
    │     +  token 32   the bonus, drawn from what node 1's row holds beside token 30
    └─ node 3   token 21   score ln 0.3          target 0.1   never examined

The bonus: the row behind node 1 without token 30 holds a mass of 0.7. The final coin 0.5 asks for 0.35 of it;
the tokens below 32 hold 0.1, token 32 holds 0.5, so 0.35 falls into token 32.

"""


def example_step() -> Step:
    """The step of the page. tests/trace/test_docs.py recomputes it with ddviz.tree."""
    parents = [-1, 0, 1, 0]
    rows = TargetRows(
        top_ids=[[20, 21], [32, 30], [40, 41], [22, 23]],
        top_probs=[[0.8, 0.1], [0.5, 0.3], [0.6, 0.3], [0.9, 0.05]],
        entropy=[0.7091, 1.1683, 1.0297, 0.4255],
        logsumexp=[21.337, 19.204, 20.118, 23.51],
        argmax=[20, 32, 40, 22],
        margin=[2.0794415, 0.5108256, 0.6931472, 2.8903718],
        node_probs=[None, 0.8, 0.3, 0.1],
    )
    return Step(
        index=0,
        prefix_len=7,
        batch=Batch(id=3, size=1, row=0, q_len=4),
        draft=Draft(top_ids=[[20, 21], [30, 31]], top_logprobs=[[-0.51083, -1.204], [-0.35667, -1.6094]]),
        tree=Tree(
            tokens=[10, 20, 30, 21],
            parents=parents,
            ranks=[0, 0, 0, 1],
            scores=[0.0, -0.5108256, -0.86750054, -1.2039728],
        ),
        retrieve=Retrieve(index=[0, 1, 2, 3], next_token=[1, 2, -1, -1], next_sibling=[-1, 3, -1, -1]),
        positions=[7, 8, 9, 8],
        slots=[7, 8, 9, 10],
        mask=pack_mask(tree_mask(np.array(parents, np.int32))),
        target=Target(
            raw=rows,  # temperature 1, top_k and top_p off: the filtered rows are the same
            filtered=FilteredRows(
                node_probs=[None, 0.8, 0.3, 0.1], top_ids=rows.top_ids, top_probs=rows.top_probs
            ),
        ),
        sampling=Sampling(
            coins=[0.35, 0.62, 0.11, 0.94], final_coin=0.5, residual_sum=0.7, bonus_cdf=0.1, bonus_prob=0.5
        ),
        accept=Accept(index=[0, 1], num_accepted=1, predicts=[20, 32], bonus=32, kernel="sampled"),
        commit=Commit(
            src_slots=[7, 8],
            dst_slots=[7, 8],
            committed_len=9,
            reserved_len=64,
            row_width=64,
            draft_kv_positions=[7, 8],
            draft_kv_rows=9,
        ),
        emitted=[20, 32],
        times_us={"draft": 1830.5, "build": 61.2, "compile": 38.9, "verify": 9120.0, "commit": 215.4},
    )


class Field(NamedTuple):
    name: str
    type: str
    default: str  # "" = always there
    meaning: str


class Table(NamedTuple):
    """One Struct of schema.py."""

    name: str
    tag: str | None  # of an event; None for a part
    text: str  # its docstring
    fields: list[Field]


def tables() -> list[Table]:
    """Every Struct of schema.py that a line can hold, events in the order of the format, then parts."""
    source = inspect.getsource(schema)
    nodes = ast.parse(source).body
    comments = _comments(source)
    aliases = {node.targets[0].id: node.value for node in nodes if _is_alias(node)}  # type: ignore[attr-defined]
    found = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    events = [event.__name__ for event in get_args(AnyEvent)]
    parts = [name for name in found if name not in (*events, "Event", "Part")]
    return [_table(found[name], comments, aliases) for name in (*events, *parts)]


def trace_format() -> str:
    """The text of docs/trace-format.md."""
    all_tables = tables()
    names = [table.name for table in all_tables]
    sections = [INTRO, "## Events\n", *(_section(t, names) for t in all_tables if t.tag)]
    sections += ["## Parts\n", *(_section(t, names) for t in all_tables if not t.tag)]
    sections += [EXAMPLE + "```json\n" + _pretty(msgspec.to_builtins(example_step())) + "\n```\n"]
    return "\n".join(sections)


def trace_schema() -> str:
    """The text of docs/trace-schema.json: one line of a trace."""
    (root,), definitions = msgspec.json.schema_components([AnyEvent], ref_template="#/$defs/{name}")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "One line of a ddviz trace"}
    return json.dumps(head | root | {"$defs": definitions}, indent=1, ensure_ascii=False) + "\n"


def _is_alias(node: ast.stmt) -> bool:
    """`Name = Literal[...]`."""
    return isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Literal[")


def _comments(source: str) -> dict[int, str]:
    """Line number -> the comment behind its code."""
    tokens = tokenize.generate_tokens(StringIO(source).readline)
    return {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def _table(node: ast.ClassDef, comments: dict[int, str], aliases: dict[str, ast.expr]) -> Table:
    tags = [ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg == "tag"]
    fields = [
        Field(
            name=ast.unparse(item.target),
            type=_type(item, aliases),
            default=_default(item.value),
            meaning=comments.get(item.lineno, ""),
        )
        for item in node.body
        if isinstance(item, ast.AnnAssign)
    ]
    return Table(node.name, tags[0] if tags else None, ast.get_docstring(node) or "", fields)


def _type(item: ast.AnnAssign, aliases: dict[str, ast.expr]) -> str:
    text = ast.unparse(aliases.get(ast.unparse(item.annotation), item.annotation))
    return text.removesuffix(" | None") if _default(item.value) == "null" else text


def _default(value: ast.expr | None) -> str:
    if value is None:
        return ""
    text = ast.unparse(value)
    return json.dumps(getattr(schema, text) if text.isupper() else ast.literal_eval(value))


def _section(table: Table, names: list[str]) -> str:
    title = f"`{table.tag}`" if table.tag else table.name
    lines = [f"### {title}", ""]
    lines += [_escaped(table.text), ""] if table.text else []
    lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
    for field in table.fields:
        cells = [_code(field.name), _linked(field.type, names), _code(field.default), _escaped(field.meaning)]
        lines.append("".join(f"| {cell} " if cell else "| " for cell in cells) + "|")
    return "\n".join([*lines, ""])


def _linked(kind: str, names: list[str]) -> str:
    if kind.startswith("Literal["):
        return "one of " + ", ".join(_code(value) for value in ast.literal_eval(kind.removeprefix("Literal")))
    return f"[{kind}](#{kind.lower()})" if kind in names else _code(kind)


def _code(text: str) -> str:
    return f"`{_escaped(text)}`" if text else ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _pretty(value: Any, indent: str = "", width: int = 100) -> str:
    """JSON, an object on one line where it fits, else a line per key."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(flat) <= width or not isinstance(value, dict):
        return flat
    inner = indent + "  "
    lines = [f"{inner}{json.dumps(key)}: {_pretty(item, inner, width)}" for key, item in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def main(arguments: list[str]) -> int:
    stale = False
    for name, text in {"trace-format.md": trace_format(), "trace-schema.json": trace_schema()}.items():
        path = DOCS / name
        if path.exists() and path.read_text() == text:
            continue
        stale = True
        if "--check" in arguments:
            print(f"docs/{name} is not current; run: python -m ddviz.trace.docs")
        else:
            path.write_text(text)
            print(f"docs/{name} written")
    return int(stale and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
