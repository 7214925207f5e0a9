"""The arrays of a step's traced rows -> one schema.Step a row.

In:  numpy arrays as reading.py named them; what the host knew of the step.
Out: schema.Step at level light or standard. What an algorithm has not is not there: None.
Not here: torch, SGLang.

Floats become decimals for all rows of a step at once: that is most of the work, and numpy's calls most of
that.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np

from ddviz.trace import schema
from ddviz.trace.writer import display_list, float32_list
from ddviz.tree import pack_mask

# of one row, by name: a number, a list or a list of lists; the mask's cells as they are
Lists = dict[str, Any]
Part = TypeVar("Part")
_SHOWN = {"top_logprobs", "raw_top_probs", "raw_entropy", "raw_logsumexp", "filtered_top_probs"}


class HostFacts(msgspec.Struct, frozen=True, array_like=True):
    """What the scheduler knew of a row's step when it was launched."""

    index: int
    batch_id: int
    batch_size: int
    row: int
    graph: bool
    reserved_len: int
    row_width: int


def rows_of(arrays: dict[str, np.ndarray]) -> list[Lists]:
    """Arrays [n, ...] as n rows. Floats that are only shown are cut, the others keep all of float32."""
    lists: dict[str, Any] = {}
    floats: dict[bool, list[tuple[str, np.ndarray]]] = {True: [], False: []}
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            floats[name in _SHOWN].append((name, array))
        else:
            lists[name] = array.astype(bool) if name == "mask" else array.tolist()
    for shown, named in floats.items():
        if not named:
            continue
        flat = np.concatenate([array.ravel() for _, array in named])
        decimals = np.array(display_list(flat) if shown else float32_list(flat), dtype=object)
        at = 0
        for name, array in named:
            lists[name] = decimals[at : at + array.size].reshape(array.shape).tolist()
            at += array.size
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def step_of(
    row: Lists,
    facts: HostFacts,
    emitted: list[int],
    level: schema.CaptureLevel,
    times_us: dict[str, float],
) -> schema.Step:
    """One step of one request; the fields that this level leaves out are None."""
    standard = level != "light"
    width = len(row["tokens"])

    def part(make: Callable[[Lists], Part], *needed: str) -> Part | None:
        return make(row) if standard and all(name in row for name in needed) else None

    return schema.Step(
        index=facts.index,
        prefix_len=row["seq_len"],
        batch=schema.Batch(
            id=facts.batch_id,
            size=facts.batch_size,
            row=facts.row,
            q_len=width,
            mode="graph" if facts.graph else "eager",
        ),
        draft=part(_draft, "top_ids"),
        tree=_tree(row),
        retrieve=part(_retrieve, "next_token"),
        positions=part(lambda r: r["positions"], "positions"),
        slots=part(lambda r: r["slots"], "slots"),
        mask=part(lambda r: pack_mask(r["mask"]), "mask"),
        target=part(_target, "raw_top_ids"),
        sampling=part(_sampling, "coins"),
        accept=_accept(row),
        commit=part(lambda r: _commit(r, facts), "src_slots"),
        emitted=emitted,
        times_us=_stage_times(row["stamps"]) if "stamps" in row else times_us,
    )


def _stage_times(stamps: list[int]) -> dict[str, float]:
    """Microseconds a stage, from ns at the boundaries."""
    spans = zip(schema.STAGES, stamps[:-1], stamps[1:], strict=True)
    return {name: round((end - begin) / 1000, 1) for name, begin, end in spans}


def _count(row: Lists) -> int:
    return row["counts"]


def _draft(row: Lists) -> schema.Draft:
    return schema.Draft(top_ids=row["top_ids"], top_logprobs=row["top_logprobs"])


def _tree(row: Lists) -> schema.Tree:
    n = _count(row)
    return schema.Tree(
        tokens=row["tokens"][:n],
        parents=row["parents"][:n],
        ranks=row["ranks"][:n] if "ranks" in row else None,
        scores=row["scores"][:n] if "scores" in row else None,
    )


def _retrieve(row: Lists) -> schema.Retrieve:
    return schema.Retrieve(
        index=row["retrieve_index"],
        next_token=row["next_token"],
        next_sibling=row["next_sibling"],
    )


def _target(row: Lists) -> schema.Target:
    n = _count(row)
    raw = schema.TargetRows(
        top_ids=row["raw_top_ids"][:n],
        top_probs=row["raw_top_probs"][:n],
        entropy=row["raw_entropy"][:n],
        logsumexp=row["raw_logsumexp"][:n],
        argmax=row["raw_argmax"][:n],
        margin=row["raw_margin"][:n],
        node_probs=_of_nodes(row["raw_node_probs"], n),
    )
    filtered = None
    if "filtered_node_probs" in row:
        filtered = schema.FilteredRows(
            node_probs=_of_nodes(row["filtered_node_probs"], n),
            top_ids=row["filtered_top_ids"][:n],
            top_probs=row["filtered_top_probs"][:n],
        )
    return schema.Target(raw=raw, filtered=filtered, nonfinite=sum(row["nonfinite"][:n]))


def _of_nodes(probs: list[float | None], n: int) -> list[float | None]:
    return [None, *probs[1:n]]


def _sampling(row: Lists) -> schema.Sampling:
    return schema.Sampling(
        coins=row["coins"][: _count(row)],
        final_coin=row["final_coin"],
        residual_sum=row["residual_sum"],
        bonus_cdf=row["bonus_cdf"],
        bonus_prob=row["bonus_prob"],
    )


def _accept(row: Lists) -> schema.Accept:
    """As the kernel wrote it; predicts are those that commit read along its indices."""
    count = row["num_accepted"]
    return schema.Accept(
        index=row["accept_index"][: count + 1],
        num_accepted=count,
        predicts=row["path_tokens"][: count + 1],
        bonus=row["bonus"],
        kernel="sampled" if "coins" in row else "greedy",
    )


def _commit(row: Lists, facts: HostFacts) -> schema.Commit:
    length = row["num_accepted"] + 1
    appended = row.get("draft_kv_positions")  # not every algorithm appends to a drafter's KV
    return schema.Commit(
        src_slots=row["src_slots"][:length],
        dst_slots=row["dst_slots"][:length],
        committed_len=row["new_seq_len"],
        reserved_len=facts.reserved_len,
        row_width=facts.row_width,
        draft_kv_positions=None if appended is None else appended[:length],
        draft_kv_rows=None if appended is None else row["new_seq_len"],
    )
