"""The arrays of one traced row -> schema.Step.

In:  numpy arrays as reading.py named them, one row of each; what the host knew of the step.
Out: schema.Step at level light or standard.
Not here: torch, SGLang.
"""

from dataclasses import dataclass

import numpy as np

from ddviz.trace import schema
from ddviz.trace.writer import display_list, display_rows, float32, float32_list
from ddviz.tree import pack_mask

Arrays = dict[str, np.ndarray]


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
        draft=_draft(arrays) if standard else None,
        tree=_tree(arrays),
        retrieve=_retrieve(arrays) if standard else None,
        positions=arrays["positions"].tolist() if standard else None,
        slots=arrays["slots"].tolist() if standard else None,
        mask=pack_mask(arrays["mask"].astype(bool)) if standard else None,
        target=_target(arrays) if standard else None,
        sampling=_sampling(arrays) if standard else None,
        accept=_accept(arrays),
        commit=_commit(arrays, facts) if standard else None,
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
        ranks=arrays["ranks"][:n].tolist(),
        scores=float32_list(arrays["scores"][:n]),
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


def _sampling(arrays: Arrays) -> schema.Sampling | None:
    if "coins" not in arrays:
        return None
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
    return schema.Commit(
        src_slots=arrays["src_slots"][:length].tolist(),
        dst_slots=arrays["dst_slots"][:length].tolist(),
        committed_len=int(arrays["new_seq_len"]),
        reserved_len=facts.reserved_len,
        row_width=facts.row_width,
        draft_kv_positions=arrays["draft_kv_positions"][:length].tolist(),
        draft_kv_rows=int(arrays["new_seq_len"]),
    )
