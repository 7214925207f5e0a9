"""One row of a batch: a request's part of the kernel's flat arrays, short enough for many beside each other.

In:  Trace and the place of a step in it.
Out: row_view: plain JSON.
Not here: which traces share a batch (analysis/batch.py), a step in full (step.py).
"""

from typing import Any

from ddviz.trace import Trace
from ddviz.tree import node_statuses
from ddviz.viewer.shape import shape_of

JSON = dict[str, Any]


def row_view(trace: Trace, i: int) -> JSON:
    """What the kernel got and gave for the request of step `i`; T wide arrays, pad nodes too."""
    step = trace.steps[i]
    n = len(step.tree.tokens)
    shape = shape_of(step, [], [[] for _ in range(n)])
    statuses = node_statuses(n, shape.path, shape.next_token, shape.next_sibling)
    retrieve = step.retrieve
    return {
        "row": step.batch.row if step.batch else 0,
        "name": trace.name,
        "request_id": trace.header.request_id,
        "i": i,
        "index": step.index,
        "n": n,
        "prefix_len": step.prefix_len,
        "kernel": step.accept.kernel,
        "accept_len": step.accept.num_accepted + 1,
        "accept_index": step.accept.index,
        "bonus": trace.tokens.label(step.accept.bonus),
        "nodes": [
            {"label": trace.tokens.label(token), "status": status if node else "root"}
            for node, (token, status) in enumerate(zip(step.tree.tokens, statuses, strict=True))
        ],
        "flat": retrieve.index if retrieve else None,
        "next_token": retrieve.next_token if retrieve else None,
        "next_sibling": retrieve.next_sibling if retrieve else None,
        "position": step.positions,
        "slot": step.slots,
    }
