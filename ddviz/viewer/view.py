"""What the viewer follows: a trace as numbered deltas of plain JSON, one compact row per step.

In:  Trace, and how many steps the viewer has already.
Out: poll_view: header facts, running text, one row per new step, running numbers, the end.
Not here: one step in full (step.py), drawing (viewer.js), Gradio.

    viewer                       poll_view
    since = 0    ─────────────►  steps 0 .. 499, of 1,203 known; header facts, prompt, first token
    since = 500  ─────────────►  steps 500 .. 999 ...            (a repeated answer is dropped by its `since`)
"""

import codecs
import threading
from bisect import insort
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from ddviz.trace import StepSequence, TokenTable, Trace
from ddviz.trace.schema import Prefill, Step
from ddviz.trace.tokens import pieces
from ddviz.viewer.marks import near_tie, top1_rejected
from ddviz.viewer.step import stage_times, step_view
from ddviz.viewer.tried import ScoreKind, path_entropy, tried

MAX_ROWS = 500  # rows in one answer
MOST_DROPPED = 100  # sentences on steps that were not kept
MOST_PROMPT = 1 << 18  # tokens of the prompt that are shown
JSON = dict[str, Any]


def poll_view(trace: Trace, since: int = 0) -> JSON:
    """What is new after the first `since` steps; header facts, prompt and first token while `since` is 0.

    key      changes when the file is another request: the viewer then starts afresh
    since    echoed, so that a repeated or late answer can be dropped
    total    steps known by now; ask again from since + len(steps) until it is reached
    more     the file holds more than was read yet: ask again, whatever `total` says
    steps    [{i, index, prefix_len, n, accept_len, emitted: [{id, text, kind}], ms, stages: {name: ms},
               top1: the likeliest candidate was refused, tie: a decision was close,
               tried: [[depth, rank, draft_prob, taken]], entropy: [at every node of the path]}]
             a step after a retraction also has `prefill`: {id, text}, the token that began the new prefix
    stats    over the steps sent so far; rates count the steps' own time, so a paused run is not a slow one
    tail     what is left of a character that the output never finished
    """
    digest = _digest_of(trace)
    rows = digest.rows(trace, since)
    complete = since + len(rows) >= len(trace.steps) and not trace.unread
    view: JSON = {
        "key": f"{trace.header.request_id} {trace.header.created}",
        "since": since,
        "total": len(trace.steps),
        "more": trace.unread > 0,
        "steps": rows,
        "stats": digest.stats(since + len(rows)),
        "end": None if trace.end is None or not complete else trace.end.finish_reason,
        "end_message": None if trace.end is None else trace.end.message,
        "tail": digest.unfinished() if trace.end is not None and complete else "",
        "damage": trace.damage,
        "dropped": _dropped(trace),
    }
    if since <= 0:
        view |= {"header": header_facts(trace), "prompt": prompt_pieces(trace), "first": digest.first(trace)}
    return view


def _dropped(trace: Trace) -> list[str]:
    told = [f"steps {d.first} to {d.last} were not kept: {d.reason}" for d in trace.dropped[:MOST_DROPPED]]
    more = len(trace.dropped) - len(told)
    return [*told, f"and {more} more times"] if more else told


def empty_view(since: int = 0) -> JSON:
    """The answer while there is no trace yet; the app adds its `status`."""
    return {"key": None, "since": since, "total": 0, "steps": [], "stats": None, "end": None, "damage": None}


def header_facts(trace: Trace) -> JSON:
    header = trace.header
    sampling = header.sampling
    return {
        "name": trace.name,
        "algorithm": header.algorithm,
        "target": header.target,
        "draft": header.draft,
        "engine": f"{header.engine.name} {header.engine.version}",
        "device": header.engine.device,
        "options": header.engine.options,
        "block_size": header.block_size,
        "budget": header.budget,
        "topk_cap": header.topk_cap,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "max_new_tokens": sampling.max_new_tokens,
        "threshold_single": header.threshold_single,
        "threshold_acc": header.threshold_acc,
        "level": header.level,
        "created": header.created,
        "request_id": header.request_id,
        "notes": header.notes,
    }


def prompt_pieces(trace: Trace) -> list[str]:
    """The prompt, one string per token where its tokens are known."""
    if trace.prompt is None:
        return []
    ids = trace.prompt.token_ids
    if not ids:
        return pieces([trace.prompt.text.encode("utf-8", "replace")])
    more = [f"⟨… {len(ids) - MOST_PROMPT} more tokens⟩"] if len(ids) > MOST_PROMPT else []
    return trace.tokens.pieces(ids[:MOST_PROMPT]) + more


class OutputText:
    """Running text of the output, wherever the calls are cut.

    A character split over tokens stands whole at the last of them: bytes still waiting for the rest of theirs
    go before the next call's tokens, and a sentinel behind keeps `pieces` from taking the cut for the end.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def take(self, tokens: Iterable[int], table: TokenTable) -> list[str]:
        raw = [table[token] for token in tokens]
        texts = pieces([self._waiting(), *raw, b"."])[1:-1]
        for part in raw:
            self._decoder.decode(part)
        return texts

    def unfinished(self) -> str:
        """The bytes of a character that is not whole yet."""
        return "".join(pieces([self._waiting()]))

    def _waiting(self) -> bytes:
        return self._decoder.getstate()[0]


class _Digest:
    """The rows of a trace as far as they were asked for: a step is decoded once, not at every poll."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: list[JSON] = []
        self._text = OutputText()
        self._first: JSON | None = None
        self._prefills_seen = 0
        self._sums: list[tuple[int, int, float]] = [(0, 0, 0.0)]  # accept length, tokens, ms; after each step
        self._sorted_ms: list[float] = []

    def rows(self, trace: Trace, since: int) -> list[JSON]:
        since = max(since, 0)
        stop = min(len(trace.steps), since + MAX_ROWS)
        with self._lock:
            for i in range(len(self._rows), stop):
                self._append(trace, i)
            return self._rows[since:stop]

    def first(self, trace: Trace) -> JSON | None:
        with self._lock:
            if self._first is None and not self._rows:
                self._first = self._prefill(trace, 0)
            return self._first

    def stats(self, steps: int) -> JSON | None:
        with self._lock:
            if not 0 < steps < len(self._sums):
                return None
            accept_length, tokens, ms = self._sums[steps]
            return {
                "steps": steps,
                "tokens": tokens,
                "accept_length": accept_length / steps,
                "tokens_per_s": 1000 * tokens / ms if ms > 0 else None,
                "step_ms": self._sorted_ms[len(self._sorted_ms) // 2] if self._sorted_ms else None,
            }

    def unfinished(self) -> str:
        with self._lock:
            return self._text.unfinished()

    def _append(self, trace: Trace, i: int) -> None:
        step = trace.steps[i]
        prefill = self._prefill(trace, i)
        row = _row(step, i, self._text.take(step.emitted, trace.tokens), trace.header.score_kind)
        if i == 0 and self._first is None:
            self._first = prefill
        elif prefill is not None:
            row["prefill"] = prefill
        accept_length, tokens, ms = self._sums[-1]
        self._sums.append(
            (accept_length + row["accept_len"], tokens + len(step.emitted), ms + (row["ms"] or 0))
        )
        if row["ms"] is not None:
            insort(self._sorted_ms, row["ms"])
        self._rows.append(row)

    def _prefill(self, trace: Trace, before: int) -> JSON | None:
        """The token of the prefill that stands before step `before`; a later one restarts the prefix."""
        found: list[Prefill] = []
        while self._prefills_seen < len(trace.prefills) and trace.prefills[self._prefills_seen][0] <= before:
            found.append(trace.prefills[self._prefills_seen][1])
            self._prefills_seen += 1
        if not found:
            return None
        texts = self._text.take([p.token for p in found], trace.tokens)
        return {"id": found[-1].token, "text": "".join(texts), "prob": found[-1].prob}


_digests: WeakKeyDictionary[StepSequence, _Digest] = WeakKeyDictionary()
_digests_lock = threading.Lock()


def _digest_of(trace: Trace) -> _Digest:
    with _digests_lock:
        return _digests.setdefault(trace.steps, _Digest())


def _row(step: Step, i: int, texts: list[str], score_kind: ScoreKind) -> JSON:
    accepted = step.accept.num_accepted
    total, stages = stage_times(step)
    return {
        "i": i,
        "index": step.index,
        "prefix_len": step.prefix_len,
        "n": len(step.tree.tokens),
        "accept_len": accepted + 1,
        "emitted": [
            {"id": token, "text": text, "kind": "accepted" if j < accepted else "bonus"}
            for j, (token, text) in enumerate(zip(step.emitted, texts, strict=True))
        ],
        "top1": top1_rejected(step),
        "tie": near_tie(step),
        "tried": tried(step, score_kind),
        "entropy": path_entropy(step),
        "ms": total,
        "stages": stages,
    }


__all__ = ["MAX_ROWS", "OutputText", "empty_view", "header_facts", "poll_view", "step_view"]
