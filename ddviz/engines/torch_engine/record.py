"""What a step of the embedded engine leaves in its trace, taken from the tensors that the stages produced.

In:  Draft, DraftTree, VerifyInput, Verdict, Committed of a step.
Out: schema.Step, through a Recorder.
Not here: any second computation of what a stage decided. Statistics that the rule itself does not need
(entropy, logsumexp, top lists) are computed from the same logits the rule used.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import torch

from ddviz import __version__
from ddviz.engines.base import RECORDED_CANDIDATES, TARGET_TOP, GenerateParams
from ddviz.engines.torch_engine.probs import top_k
from ddviz.trace import schema
from ddviz.trace.writer import Recorder, display_list, display_rows, float32, float32_list
from ddviz.tree import DraftTree, pack_mask

if TYPE_CHECKING:
    from pathlib import Path

    from ddviz.engines.torch_engine.engine import TorchEngine
    from ddviz.engines.torch_engine.run import Committed, Draft, Run, Verdict, VerifyInput

ALGORITHMS: dict[str, schema.Algorithm] = {"ar": "AR", "dflash": "DFLASH", "ddtree": "DDTREE"}


class NoRecording:
    """Recording switched off."""

    def begin(self, engine: TorchEngine, run: Run, prompt_ids: list[int], text: str) -> None: ...
    def prefill(self, run: Run, verdict: Verdict, seconds: float) -> None: ...
    def step(self, *stages: object) -> None: ...
    def end(
        self, run: Run, reason: schema.FinishReason, seconds: float | None = None, message: str | None = None
    ) -> None: ...

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        yield


class Recording:
    """Writes one request of a TorchEngine to `path`. Close it, or use it as a context manager."""

    def __init__(self, path: Path, overwrite: bool = False, request_id: str | None = None) -> None:
        self._path, self._overwrite = path, overwrite
        self._request_id = request_id or uuid.uuid4().hex
        self._recorder: Recorder | None = None
        self._steps = self._tokens = 0  # that the trace holds: a run cut off inside a step has more

    def begin(self, engine: TorchEngine, run: Run, prompt_ids: list[int], text: str) -> None:
        header = header_of(engine, run, self._request_id)
        self._recorder = Recorder(
            self._path, header, engine.target.token_bytes, self._overwrite, restore=True
        )
        self._recorder.prompt(prompt_ids, text)

    def prefill(self, run: Run, verdict: Verdict, seconds: float) -> None:
        token = int(verdict.outcome.emitted[-1])
        probs = verdict.logits[0].softmax(-1) if verdict.probs is None else verdict.probs[0]
        self._recorder.prefill(
            schema.Prefill(
                token=token,
                prob=float32(float(probs[token])),
                coin=None if verdict.coins is None else float32(verdict.coins[-1]),
                time_us=round(seconds * 1e6, 1),
            )
        )
        self._tokens = len(run.output)

    def step(
        self,
        run: Run,
        draft: Draft | None,
        tree: DraftTree,
        inputs: VerifyInput,
        verdict: Verdict,
        committed: Committed,
        emitted: list[int],
    ) -> None:
        self._recorder.step(
            schema.Step(
                index=run.steps,
                prefix_len=inputs.prefix_len,
                batch=schema.Batch(id=verdict.forward, size=1, row=0, q_len=len(inputs.retrieve.index)),
                draft=None if draft is None else _draft(draft, tree, run.params.topk_cap),
                tree=_tree(tree, draft),
                retrieve=schema.Retrieve(
                    index=inputs.retrieve.index.tolist(),
                    next_token=inputs.retrieve.next_token.tolist(),
                    next_sibling=inputs.retrieve.next_sibling.tolist(),
                ),
                positions=inputs.positions.tolist(),
                slots=inputs.slots.tolist(),
                mask=pack_mask(inputs.mask),
                target=_target(tree, verdict),
                sampling=_sampling(verdict),
                accept=_accept(run, verdict),
                commit=_commit(run, inputs, committed),
                emitted=emitted,
            )
        )
        self._steps, self._tokens = run.steps + 1, len(run.output)

    def end(
        self, run: Run, reason: schema.FinishReason, seconds: float | None = None, message: str | None = None
    ) -> None:
        self._recorder.end(
            schema.End(
                finish_reason=reason,
                output_ids=run.output[: self._tokens],
                steps=self._steps,
                time_us=None if seconds is None else round(seconds * 1e6, 1),
                message=message,
            )
        )

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        with self._recorder.stage(name):
            yield

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def header_of(engine: TorchEngine, run: Run, request_id: str) -> schema.Header:
    params, drafter = run.params, engine.drafter
    drafts = params.mode != "ar"
    budget = {"ar": None, "dflash": drafter.block_size - 1 if drafts else None, "ddtree": params.budget}[
        params.mode
    ]
    return schema.Header(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        engine=schema.EngineInfo(
            name=engine.name, version=__version__, device=engine.device, options=engine.describe()
        ),
        algorithm=ALGORITHMS[params.mode],
        target=engine.target.name,
        draft=drafter.name if drafts else None,
        block_size=drafter.block_size if drafts else None,
        budget=budget,
        topk_cap={"ar": None, "dflash": 1, "ddtree": min(params.topk_cap, engine.target.vocab_size)}[
            params.mode
        ],
        sampling=schema.SamplingParams(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            seed=params.seed,
            max_new_tokens=run.max_new_tokens,
            stop_token_ids=engine.target.stop_ids,
        ),
        threshold_single=params.threshold_single,
        threshold_acc=params.threshold_acc,
        score_kind="logprob" if drafts else "none",
        vocab_size=engine.target.vocab_size,
        request_id=request_id,
        notes=notes_of(params, run.max_new_tokens, engine.target.vocab_size),
    )


def notes_of(params: GenerateParams, max_new_tokens: int, vocab_size: int) -> list[str]:
    """Sentences on where the request was not taken as asked."""
    notes = []
    if params.mode == "ddtree" and params.topk_cap > vocab_size:
        notes.append(f"topk_cap {params.topk_cap} is above the vocabulary and was taken as {vocab_size}")
    if max_new_tokens < params.max_new_tokens:
        notes.append(
            f"max tokens {params.max_new_tokens} was cut to {max_new_tokens}, where the context ends"
        )
    return notes


def _draft(draft: Draft, tree: DraftTree, topk_cap: int) -> schema.Draft:
    kept = max(RECORDED_CANDIDATES, topk_cap, int(tree.ranks.max()) + 2)
    return schema.Draft(
        top_ids=draft.tokens[:, :kept].tolist(), top_logprobs=display_rows(draft.logprobs[:, :kept])
    )


def _tree(tree: DraftTree, draft: Draft | None) -> schema.Tree:
    drafted = draft is not None
    return schema.Tree(
        tokens=tree.tokens.tolist(),
        parents=tree.parents.tolist(),
        ranks=tree.ranks.tolist() if drafted else None,
        scores=float32_list(tree.scores) if drafted else None,
    )


def _target(tree: DraftTree, verdict: Verdict) -> schema.Target:
    logits = verdict.logits
    values, tokens = top_k(logits, min(TARGET_TOP, logits.shape[-1]))
    probs = logits.softmax(dim=-1)
    best, best_probs = values[:, 0], probs.gather(1, tokens)
    logsumexp = best - best_probs[:, 0].log()
    entropy = logsumexp - torch.linalg.vecdot(probs, logits)
    raw = schema.TargetRows(
        top_ids=tokens.tolist(),
        top_probs=display_rows(best_probs.cpu().numpy()),
        entropy=display_list(entropy.cpu().numpy()),
        logsumexp=display_list(logsumexp.cpu().numpy()),
        argmax=(tokens[:, 0] if verdict.argmax is None else verdict.argmax).tolist(),
        margin=float32_list((best - values[:, 1]).cpu().numpy()),
        node_probs=_node_probs(tree, probs),
    )
    finite = bool(torch.isfinite(entropy).all())  # one NaN or infinity in a row makes its entropy NaN
    nonfinite = 0 if finite else int(logits.numel() - torch.isfinite(logits).sum())
    return schema.Target(raw=raw, filtered=_filtered(tree, verdict.probs), nonfinite=nonfinite)


def _filtered(tree: DraftTree, probs: torch.Tensor | None) -> schema.FilteredRows | None:
    if probs is None:
        return None
    values, tokens = top_k(probs, min(TARGET_TOP, probs.shape[-1]))
    return schema.FilteredRows(
        node_probs=_node_probs(tree, probs),
        top_ids=tokens.tolist(),
        top_probs=display_rows(values.cpu().numpy()),
    )


def _node_probs(tree: DraftTree, probs: torch.Tensor) -> list[float | None]:
    """Probability of each node's token in its parent's row; the root has none."""
    nodes = probs[torch.from_numpy(tree.parents[1:]).long(), torch.from_numpy(tree.tokens[1:])]
    return [None, *float32_list(nodes.cpu().numpy())]


def _sampling(verdict: Verdict) -> schema.Sampling | None:
    if verdict.coins is None:
        return None
    coins = float32_list(verdict.coins)
    return schema.Sampling(
        coins=coins[:-1],
        final_coin=coins[-1],
        residual_sum=float32(verdict.acceptance.residual_sum[0]),
        bonus_cdf=float32(verdict.acceptance.bonus_cdf[0]),
        bonus_prob=float32(verdict.acceptance.bonus_prob[0]),
    )


def _accept(run: Run, verdict: Verdict) -> schema.Accept:
    acceptance = verdict.acceptance
    count = int(acceptance.num_accepted[0])
    index = acceptance.accept_index[0, : count + 1]
    predicts = acceptance.predicts[index].tolist()
    return schema.Accept(
        index=index.tolist(),
        num_accepted=count,
        predicts=predicts,
        bonus=run.root,  # set by commit: what the next step drafts from
        kernel="greedy" if verdict.probs is None else "sampled",
    )


def _commit(run: Run, inputs: VerifyInput, committed: Committed) -> schema.Commit:
    positions = committed.draft_positions
    return schema.Commit(
        src_slots=committed.source.tolist(),
        dst_slots=committed.destination.tolist(),
        committed_len=run.cache.length,
        reserved_len=int(inputs.slots[-1]) + 1,
        row_width=run.cache.capacity,
        draft_kv_positions=None if positions is None else positions.tolist(),
        draft_kv_rows=None if run.draft_cache is None else run.draft_cache.length,
    )
