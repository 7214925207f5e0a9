"""Traces of other programs made into ours: the reference implementation's `save_tree_traces`.

In:  JSON of what its generate() returned (github.com/liranringel/ddtree); docs/import.md describes it.
Out: NAME.ddviz.
Not here: torch's pickles.

A round is a step. It names no root and no bonus; both stand in output_ids:

    output_ids   [0, num_input_tokens)   prompt
                 start = num_input_tokens + accept lengths of the rounds before
                 start                   the round's root (round 0: the prefill token)
                 start + 1 ...           its accepted nodes
                 start + accept length   its bonus, the next round's root

That is why a bare list of rounds is refused: half of its tokens are in no file.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ddviz.errors import TraceError
from ddviz.trace.reader import MAX_NODES
from ddviz.trace.schema import (
    Accept,
    End,
    EngineInfo,
    Header,
    Prefill,
    SamplingParams,
    Step,
    Tree,
)
from ddviz.trace.writer import Recorder

MAX_SOURCE = 128 << 20  # bytes
MAX_EXPLAINED = 16 << 20  # bytes of a wrong source that is read once more, to say better what is wrong
NEEDED = 'an object {"round_trees": [...], "output_ids": [...], "num_input_tokens": N} (docs/import.md)'
ABSENT = (
    "imported from the reference implementation's save_tree_traces, which holds no scores, ranks, "
    "probabilities, retrieve links, mask, slots or times: they are absent here"
)
FOLLOWED = (
    "the reference takes one token of the target per node (its argmax, or a sample of it) and follows it: "
    "every step says kernel greedy, whatever the temperature"
)


class RoundTree(Struct):
    node_token_ids: list[int]  # [n-1] the root is not listed
    node_depths: list[int]  # [n-1]
    parents: list[int]  # [n] parents[0] = -1


class Round(Struct):
    accepted_indices: list[int]  # local node numbers, root first
    tree: RoundTree


class Reference(Struct, kw_only=True):
    """What is read of a result; other keys are ignored."""

    round_trees: list[Round]
    output_ids: list[int | list[int]]  # prompt and output; a batch of one, [[...]], is unwrapped
    num_input_tokens: int
    acceptance_lengths: list[int] | None = None
    block_size: int | None = None
    tree_budget: int | None = None
    temperature: float | None = None
    target: str | None = None
    draft: str | None = None
    token_text: dict[int, str] = {}


def import_reference(source: str | Path, out: str | Path, overwrite: bool = False) -> None:
    """Write the trace `out` from the JSON file `source`.

    A last round that output_ids was cut off in (at a stop token or the length limit) has no bonus: it is
    written as dropped. Raises TraceError where the source can't be read, is malformed or contradicts itself
    (nothing is written then), and as Recorder does.
    """
    source = Path(source)
    reference = _read(source)
    ids = _token_ids(reference, source)
    steps = _steps(reference, ids, source)
    texts = {token: text.encode() for token, text in reference.token_text.items()}
    prompt = ids[: reference.num_input_tokens]
    with Recorder(out, _header(reference, source), texts.get, overwrite) as recorder:
        recorder.prompt(prompt, b"".join(texts.get(token, b"") for token in prompt).decode())
        recorder.prefill(Prefill(token=ids[len(prompt)]))
        for step in steps:
            recorder.step(step)
        if len(steps) < len(reference.round_trees):
            recorder.dropped(len(steps), len(steps), "output_ids ends in this round: its bonus is in no file")
        recorder.end(
            End(finish_reason="unknown", output_ids=ids[len(prompt) :], steps=len(reference.round_trees))
        )


def _read(source: Path) -> Reference:
    try:
        with source.open("rb") as file:
            raw = file.read(MAX_SOURCE + 1)
    except OSError as error:
        raise TraceError(f"{source}: can't read it ({error.strerror})") from None
    if len(raw) > MAX_SOURCE:
        raise TraceError(f"{source}: larger than {MAX_SOURCE >> 20} MiB; save fewer rounds in one file")
    try:
        return msgspec.json.decode(raw, type=Reference)
    except (msgspec.DecodeError, RecursionError) as error:
        if len(raw) > MAX_EXPLAINED:
            raise TraceError(f"{source}: {error}; it must be {NEEDED}") from None
    try:
        content = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"{source}: not JSON ({error}); save {NEEDED}") from None
    if isinstance(content, list):
        raise TraceError(
            f"{source}: a bare list of rounds, which names neither their roots nor bonuses; save {NEEDED}"
        )
    if isinstance(content, dict) and content.get("round_trees", ...) is None:
        raise TraceError(f"{source}: round_trees is null; generate with save_tree_traces=True")
    try:
        return msgspec.convert(content, Reference, str_keys=True)
    except msgspec.ValidationError as error:
        raise TraceError(f"{source}: {error}; it must be {NEEDED}") from None


def _token_ids(reference: Reference, source: Path) -> list[int]:
    """output_ids without its batch dimension, long enough to hold a first output token."""
    ids: list[Any] = reference.output_ids
    if len(ids) == 1 and isinstance(ids[0], list):
        ids = ids[0]
    if any(isinstance(token, list) for token in ids):
        raise TraceError(
            f"{source}: output_ids is a batch of {len(ids)}; save the one sequence of these rounds"
        )
    if not 0 <= reference.num_input_tokens < len(ids):
        raise TraceError(
            f"{source}: num_input_tokens is {reference.num_input_tokens}, output_ids holds {len(ids)}: "
            "it must be prompt and output together"
        )
    return ids


def _steps(reference: Reference, ids: list[int], source: Path) -> list[Step]:
    """One step per round; without the last where output_ids does not reach its bonus."""
    rounds, lengths = reference.round_trees, reference.acceptance_lengths
    if lengths is not None and lengths != [len(r.accepted_indices) for r in rounds]:
        raise TraceError(f"{source}: acceptance_lengths differ from the rounds' accepted_indices")
    steps: list[Step] = []
    start = reference.num_input_tokens
    for i, round_tree in enumerate(rounds):
        where = f"{source}: round_trees[{i}]"
        _check_shape(round_tree, where)
        if start >= len(ids):
            raise TraceError(f"{where}: output_ids ends before its root ({len(ids)} ids, root at {start})")
        tokens = [ids[start], *round_tree.tree.node_token_ids]
        path = [tokens[node] for node in round_tree.accepted_indices[1:]]
        _check_path(path, ids[start + 1 :], where)
        bonus_at = start + len(path) + 1
        if bonus_at >= len(ids):
            if i + 1 < len(rounds):
                raise TraceError(
                    f"{where}: output_ids ends inside it, yet {len(rounds) - i - 1} rounds follow"
                )
            return steps
        steps.append(_step(i, start, tokens, round_tree, [*path, ids[bonus_at]]))
        start = bonus_at
    if start + 1 < len(ids):
        raise TraceError(
            f"{source}: output_ids holds {len(ids) - start - 1} tokens that no round accounts for"
        )
    return steps


def _check_shape(round_tree: Round, where: str) -> None:
    tree, path = round_tree.tree, round_tree.accepted_indices
    n = len(tree.parents)
    if n > MAX_NODES:
        raise TraceError(f"{where}.tree: {n} nodes; ddviz reads up to {MAX_NODES}")
    if not n == len(tree.node_token_ids) + 1 == len(tree.node_depths) + 1:
        raise TraceError(
            f"{where}.tree: {n} parents, {len(tree.node_token_ids)} node_token_ids, "
            f"{len(tree.node_depths)} node_depths; must be n, n - 1 and n - 1 (the root is not listed)"
        )
    if not path or path[0] != 0:
        raise TraceError(f"{where}.accepted_indices: {path!s:.60} must start with the root, 0")
    for node in path:
        if not 0 <= node < n:
            raise TraceError(f"{where}.accepted_indices: holds {node}, must be a node, from 0 to {n - 1}")


def _check_path(path: list[int], written: list[int], where: str) -> None:
    """The accepted tokens must be those of output_ids, as far as that goes."""
    for k, (token, there) in enumerate(zip(path, written, strict=False)):
        if token != there:
            raise TraceError(
                f"{where}: accepted token {k + 1} is {token}, output_ids has {there} in its place "
                "(another run's output, or a wrong num_input_tokens)"
            )


def _step(i: int, start: int, tokens: list[int], round_tree: Round, emitted: list[int]) -> Step:
    tree = round_tree.tree
    return Step(
        index=i,
        prefix_len=start,
        tree=Tree(tokens=tokens, parents=tree.parents),
        positions=[start, *(start + depth for depth in tree.node_depths)],  # as the reference computes them
        accept=Accept(
            index=round_tree.accepted_indices,  # flat = local: its batch is one request
            num_accepted=len(emitted) - 1,
            predicts=emitted,
            bonus=emitted[-1],
            kernel="greedy",
        ),
        emitted=emitted,
    )


def _header(reference: Reference, source: Path) -> Header:
    temperature = reference.temperature
    gaps = [ABSENT, FOLLOWED, "why the run ended is not in the source"]
    if temperature is None:
        gaps.append("the temperature is not in the source: 0 stands for unknown")
    if not reference.token_text:
        gaps.append("token texts are not in the source: tokens show as their ids")
    return Header(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        engine=EngineInfo(name="ddtree reference", version="unknown"),
        algorithm="DDTREE",
        target=reference.target or "unknown",
        draft=reference.draft,
        block_size=reference.block_size,
        budget=reference.tree_budget,
        sampling=SamplingParams(temperature=temperature or 0.0),
        score_kind="none",
        level="light",
        request_id=source.stem,
        notes=gaps,
    )
