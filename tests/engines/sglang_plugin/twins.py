"""What tests of the plugin without a GPU share: a tracer, and twins of kernels: sglang-kernel's two, and
those of the plugin that Triton's interpreter takes long for.
"""

import numpy as np
import torch

from ddviz.engines.sglang_plugin.tracing.builtin.step import BuiltinStep
from ddviz.engines.sglang_plugin.tracing.ring import Ring
from ddviz.engines.sglang_plugin.tracing.slots import Slots
from ddviz.engines.sglang_plugin.tracing.tracer import Tracer
from ddviz.engines.sglang_plugin.tracing.writer import TraceWriter
from ddviz.trace import schema
from ddviz.tree import (
    TreeAcceptance,
    build_tree,
    compile_ddtree_retrieve,
    follow_verified_tree,
    node_positions,
    sample_tree_paths,
    tree_mask,
)


def new_tracer(
    folder,
    *,
    block_size,
    budget,
    topk_cap,
    vocab_size,
    row_width,
    slots=None,
    default_level=None,
    algorithm="DDTREE",
    kind=None,
    **header,
):
    """A tracer of a server whose target is a table; close its `writer` before reading what it wrote.

    slots  None = eight
    kind   what its steps are noted by, None = to be set
    """
    header = schema.Header(
        created="2026-11-29T00:00:00+00:00",
        engine=schema.EngineInfo(name="sglang", version="0.5.17"),
        algorithm=algorithm,
        target="table",
        block_size=block_size,
        budget=budget,
        topk_cap=topk_cap,
        sampling=schema.SamplingParams(),
        vocab_size=vocab_size,
        request_id="",
        **header,
    )
    slots = slots or Slots(8, 200_000)
    writer = TraceWriter(slots, lambda token: bytes([97 + token]) if 0 <= token < 100 else None)
    return Tracer(folder, header, Ring(slots, "cpu"), writer, kind, row_width, default_level)


def new_builtin_tracer(folder, algorithm, path_len, vocab_size, row_width):
    """Of an algorithm of SGLang's own."""
    return new_tracer(
        folder,
        block_size=path_len,
        budget=None,
        topk_cap=None,
        vocab_size=vocab_size,
        row_width=row_width,
        algorithm=algorithm,
        score_kind="prob" if algorithm == "EAGLE" else "none",
        kind=BuiltinStep,
    )


def settle(tracer, reqs, result, taken):
    """The scheduler takes a result: tokens to each request that has not ended, then the tracer is told."""
    ended = [req.finished() or req.is_retracted for req in reqs]
    before = [len(req.output_ids) for req in reqs]
    for req, tokens, over in zip(reqs, taken, ended, strict=True):
        if not over:
            req.take(tokens)
    tracer.settled(reqs, ended, before, result)


def build_trees(out, top_logprobs, top_ids, roots, budgets, caps):
    """The kernel of tree_kernels.py by tree/: its test holds them equal."""
    for b in range(len(roots)):
        draft = top_logprobs[b].numpy(), top_ids[b].numpy()
        tree = build_tree(*draft, int(roots[b]), int(budgets[b]), int(caps[b]))
        n = out.counts[b] = len(tree)
        for mine, theirs, pad in (
            (out.tokens, tree.tokens, 0),
            (out.parents, tree.parents, -1),
            (out.depths, tree.depths, 0),
            (out.ranks, tree.ranks, 0),
            (out.scores, tree.scores, 0.0),
        ):
            mine[b, :n] = torch.from_numpy(theirs)
            mine[b, n:] = pad


def compile_trees(out, seq_lens, req_pool_indices, req_to_token, mask, whole_rows=False):
    """The same of the other kernel."""
    width, at = out.width, 0
    for b, seq_len in enumerate(seq_lens.tolist()):
        n = int(out.counts[b])
        parents = out.parents[b, :n].numpy()
        retrieve = compile_ddtree_retrieve(parents, row=b, width=width)
        out.retrieve_index[b] = torch.from_numpy(retrieve.index)
        out.next_token[b] = torch.from_numpy(retrieve.next_token)
        out.next_sibling[b] = torch.from_numpy(retrieve.next_sibling)
        out.positions[b] = torch.from_numpy(node_positions(seq_len, out.depths[b, :n].numpy(), width))
        slots = req_to_token[req_pool_indices[b], seq_len : seq_len + width]
        out.slots[b] = 0  # beyond the row: SGLang's dummy slot
        out.slots[b, : len(slots)] = slots
        cells = mask[at : at + width * (seq_len + width)].view(width, seq_len + width)
        cells[:, seq_len:] = torch.from_numpy(tree_mask(parents, width))
        if whole_rows:
            cells[:, :seq_len] = 1
        at += cells.numel()


def verify_tree_greedy(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    target_predict,
):
    """sglang-kernel's, with its names; it writes the path and nothing else."""
    links = (candidates, retrive_index, retrive_next_token, retrive_next_sibling, target_predict)
    twin = follow_verified_tree(*_arrays(links), accept_index.shape[1])
    write_path(twin, predicts, accept_index, accept_token_num)


def tree_speculative_sampling_target_only(
    predicts,
    accept_index,
    accept_token_num,
    candidates,
    retrive_index,
    retrive_next_token,
    retrive_next_sibling,
    uniform_samples,
    uniform_samples_for_final_sampling,
    target_probs,
    draft_probs,
    threshold_single=1.0,
    threshold_acc=1.0,
    deterministic=True,
):
    """sglang-kernel's, with its names; it writes the path, and its scratch `draft_probs`."""
    links = _arrays((candidates, retrive_index, retrive_next_token, retrive_next_sibling))
    probs = target_probs.numpy()
    coins = _arrays((uniform_samples, uniform_samples_for_final_sampling))
    twin = sample_tree_paths(*links, probs, *coins, accept_index.shape[1])
    write_path(twin, predicts, accept_index, accept_token_num)
    note_rejected(draft_probs, probs, candidates, *links[2:], accept_index, accept_token_num)


def write_path(twin: TreeAcceptance, predicts, accept_index, accept_token_num):
    """The kernels write what they visited: elsewhere the buffers keep what they held."""
    for b, count in enumerate(twin.num_accepted.tolist()):
        path = twin.accept_index[b, : count + 1]
        accept_index[b, : count + 1] = torch.from_numpy(path)
        at = torch.from_numpy(path.astype(np.int64))
        predicts[at] = torch.from_numpy(twin.predicts)[at]
    accept_token_num.copy_(torch.from_numpy(twin.num_accepted))


def _arrays(tensors):
    return [tensor.numpy() for tensor in tensors]


def note_rejected(rejected, probs, candidates, next_token, next_sibling, accept_index, num_accepted):
    """As the kernel leaves its scratch [bs, T, V]: the mass of the children refused at a path's end."""
    bs, width = candidates.shape
    for b in range(bs):
        count = int(num_accepted[b])
        last = int(accept_index[b, count]) - b * width
        child = int(next_token[b, last]) if count < accept_index.shape[1] - 1 else -1
        while child != -1:
            token = int(candidates[b, child])
            rejected[b, last, token] = float(probs[b, last, token])
            child = int(next_sibling[b, child])


def read_rows(values, out):
    """The kernel of read_rows.py in torch: its test holds them equal, and the interpreter is slow."""
    rows = values.float()
    top, ids = rows.topk(out.top_ids.shape[1], dim=-1)
    logsumexp = torch.logsumexp(rows, dim=-1)
    probs = torch.exp(rows - logsumexp.unsqueeze(-1))
    facts = (
        ids,
        top,
        logsumexp,
        logsumexp - (probs * rows).sum(-1),
        (~torch.isfinite(rows)).sum(-1),
    )
    for mine, values_of in zip(out, facts, strict=True):
        mine.copy_(values_of)
