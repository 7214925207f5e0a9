"""The arrays of one traced row -> schema.Step.

In:  numpy arrays as reading.py named them, one row of each; what the host knew of the step.
Out: schema.Step at level light or standard. What an algorithm has not is not there: None.
Not here: torch, SGLang.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ddviz.trace import schema
from ddviz.trace.writer import display_list, display_rows, float32, float32_list
from ddviz.tree import pack_mask

Arrays = dict[str, np.ndarray]
Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the scheduler knew of a row's step when it was launched."""

    index: int
    batch_id: int
    batch_size: int
    row: int
    graph: bool
    reserved_len: int
    row_width: int


def step_of(
    arrays: Arrays,
    facts: HostFacts,
    emitted: list[int],
    level: schema.CaptureLevel,
    times_us: dict[str, float],
) -> schema.Step:
    """One step of one request; the fields that this level leaves out are None."""
    standard = level != "light"
    width = len(arrays["tokens"])

    def part(make: Callable[[Arrays], Part], *needed: str) -> Part | None:
        return make(arrays) if standard and all(name in arrays for name in needed) else None

    return schema.Step(
        index=facts.index,
        prefix_len=int(arrays["seq_len"]),
        batch=schema.Batch(
            id=facts.batch_id,
            size=facts.batch_size,
            row=facts.row,
            q_len=width,
            mode="graph" if facts.graph else "eager",
        ),
        draft=part(_draft, "top_ids"),
        tree=_tree(arrays),
        retrieve=part(_retrieve, "next_token"),
        positions=part(lambda a: a["positions"].tolist(), "positions"),
        slots=part(lambda a: a["slots"].tolist(), "slots"),
        mask=part(lambda a: pack_mask(a["mask"].astype(bool)), "mask"),
        target=part(_target, "raw_top_ids"),
        sampling=part(_sampling, "coins"),
        accept=_accept(arrays),
        commit=part(lambda a: _commit(a, facts), "src_slots"),
        emitted=emitted,
        times_us=times_us,
    )


def _count(arrays: Arrays) -> int:
    return int(arrays["counts"])


def _draft(arrays: Arrays) -> schema.Draft:
    return schema.Draft(top_ids=arrays["top_ids"].tolist(), top_logprobs=display_rows(arrays["top_logprobs"]))


def _tree(arrays: Arrays) -> schema.Tree:
    n = _count(arrays)
    return schema.Tree(
        tokens=arrays["tokens"][:n].tolist(),
        parents=arrays["parents"][:n].tolist(),
        ranks=arrays["ranks"][:n].tolist() if "ranks" in arrays else None,
        scores=float32_list(arrays["scores"][:n]) if "scores" in arrays else None,
    )


def _retrieve(arrays: Arrays) -> schema.Retrieve:
    return schema.Retrieve(
        index=arrays["retrieve_index"].tolist(),
        next_token=arrays["next_token"].tolist(),
        next_sibling=arrays["next_sibling"].tolist(),
    )


def _target(arrays: Arrays) -> schema.Target:
    n = _count(arrays)
    raw = schema.TargetRows(
        top_ids=arrays["raw_top_ids"][:n].tolist(),
        top_probs=display_rows(arrays["raw_top_probs"][:n]),
        entropy=display_list(arrays["raw_entropy"][:n]),
        logsumexp=display_list(arrays["raw_logsumexp"][:n]),
        argmax=arrays["raw_argmax"][:n].tolist(),
        margin=float32_list(arrays["raw_margin"][:n]),
        node_probs=_of_nodes(arrays["raw_node_probs"], n),
    )
    filtered = None
    if "filtered_node_probs" in arrays:
        filtered = schema.FilteredRows(
            node_probs=_of_nodes(arrays["filtered_node_probs"], n),
            top_ids=arrays["filtered_top_ids"][:n].tolist(),
            top_probs=display_rows(arrays["filtered_top_probs"][:n]),
        )
    return schema.Target(raw=raw, filtered=filtered, nonfinite=int(arrays["nonfinite"][:n].sum()))


def _of_nodes(probs: np.ndarray, n: int) -> list[float | None]:
    return [None, *float32_list(probs[1:n])]


def _sampling(arrays: Arrays) -> schema.Sampling:
    return schema.Sampling(
        coins=float32_list(arrays["coins"][: _count(arrays)]),
        final_coin=float32(arrays["final_coin"]),
        residual_sum=float32(arrays["residual_sum"]),
        bonus_cdf=float32(arrays["bonus_cdf"]),
        bonus_prob=float32(arrays["bonus_prob"]),
    )


def _accept(arrays: Arrays) -> schema.Accept:
    """As the kernel wrote it; predicts are those that commit read along its indices."""
    count = int(arrays["num_accepted"])
    return schema.Accept(
        index=arrays["accept_index"][: count + 1].tolist(),
        num_accepted=count,
        predicts=arrays["path_tokens"][: count + 1].tolist(),
        bonus=int(arrays["bonus"]),
        kernel="sampled" if "coins" in arrays else "greedy",
    )


def _commit(arrays: Arrays, facts: HostFacts) -> schema.Commit:
    length = int(arrays["num_accepted"]) + 1
    appended = arrays.get("draft_kv_positions")  # not every algorithm appends to a drafter's KV
    return schema.Commit(
        src_slots=arrays["src_slots"][:length].tolist(),
        dst_slots=arrays["dst_slots"][:length].tolist(),
        committed_len=int(arrays["new_seq_len"]),
        reserved_len=facts.reserved_len,
        row_width=facts.row_width,
        draft_kv_positions=None if appended is None else appended[:length].tolist(),
        draft_kv_rows=None if appended is None else int(arrays["new_seq_len"]),
    )
