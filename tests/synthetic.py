"""A tiny engine on random logits: correct traces of any kind, without a model.

In:  Setup.
Out: the events of one request, made by ddviz.tree stage by stage, as an engine makes them; as a Trace in
     memory (`make_trace`) or as a file (`write_trace`).

The target's logits are a hash of the last tokens, so every algorithm sees the same model. The drafter sees
them along the target's own greedy path, with noise: it agrees often, and less so far down.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from ddviz.trace import Recorder, Trace, display_list, display_rows, float32, float32_list, schema
from ddviz.tree import (
    DraftTree,
    accepted_paths,
    build_tree,
    compile_ddtree_retrieve,
    follow_verified_tree,
    is_greedy,
    node_positions,
    pack_mask,
    sample_tree_paths,
    target_probs,
    tree_mask,
)

TARGET_TOP = 4  # m


@dataclass(frozen=True)
class Setup:
    """One request, and how the engine runs it."""

    seed: int = 0
    algorithm: str = "DDTREE"  # or DFLASH, AR
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    threshold_single: float = 1.0
    threshold_acc: float = 1.0
    budget: int = 12
    topk_cap: int = 3
    block_size: int = 5
    vocab_size: int = 24
    prompt_len: int = 7
    max_new_tokens: int = 24
    stop_token_ids: tuple[int, ...] = (0,)
    batch_size: int = 1
    row: int = 0
    padding: int = 0  # pad nodes: T - n
    noise: float = 1.0  # of the drafter
    retract_before: int | None = None  # step before which the request is prefilled again


def make_trace(setup: Setup) -> Trace:
    return trace_of(events_of(setup))


def trace_of(events: list) -> Trace:
    """Events as a reader would hold them."""
    header, *rest = events
    trace = Trace(Path("synthetic.ddviz"), header, kinds=kinds_of(events))
    for event in rest:
        match event:
            case schema.Prompt():
                trace.prompt = event
            case schema.Prefill():
                trace.prefills.append((len(trace.steps), event))
            case schema.Step():
                trace.steps.append_line(msgspec.json.encode(event))
            case schema.Dropped():
                trace.dropped.append(event)
            case schema.End():
                trace.end = event
    return trace


def kinds_of(events: list) -> list[str]:
    """Of the events as a Recorder would write them, which puts the bytes of tokens before who names them."""
    kinds = [event.__struct_config__.tag for event in events]
    naming = [place for place, kind in enumerate(kinds) if kind not in ("header", "tokens")]
    return kinds if "tokens" in kinds or not naming else [*kinds[: naming[0]], "tokens", *kinds[naming[0] :]]


def write_trace(path: Path, setup: Setup) -> Path:
    """Write a trace as an engine would."""
    return recorded(path, events_of(setup))


def recorded(path: Path, events: list) -> Path:
    """Events in a file."""
    header, prompt, *rest = events
    with Recorder(path, header, token_bytes) as recorder:
        recorder.prompt(prompt.token_ids, prompt.text)
        for event in rest:
            match event:
                case schema.Prefill():
                    recorder.prefill(event)
                case schema.Step():
                    recorder.step(event)
                case schema.End():
                    recorder.end(event)
    return path


def token_bytes(token: int) -> bytes:
    return f" w{token}".encode()


def events_of(setup: Setup) -> list:
    return SyntheticEngine(setup).run()


class SyntheticEngine:
    """One request. The tests of the doctor plant defects by overriding a stage."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.rng = np.random.default_rng(setup.seed)
        self.prompt = self.rng.integers(1, setup.vocab_size, setup.prompt_len).tolist()
        self.greedy = is_greedy(setup.temperature, setup.top_k)
        self.output: list[int] = []
        self.prefix_len = 0
        self.slot_table = self.rng.permutation(4096)  # slot of each row of the request

    def run(self) -> list:
        setup, steps = self.setup, 0
        events = [self.header(), schema.Prompt(token_ids=self.prompt, text="synthetic"), self.prefill()]
        while (reason := self.finished()) is None:
            if steps == setup.retract_before:
                events.append(self.prefill())
                if self.finished():
                    continue
            events.append(self.step(steps))
            steps += 1
        events.append(schema.End(finish_reason=reason, output_ids=self.output, steps=steps))
        return events

    def header(self) -> schema.Header:
        setup, drafts = self.setup, self.setup.algorithm != "AR"
        tree = setup.algorithm == "DDTREE"
        return schema.Header(
            created="2000-01-01T00:00:00+00:00",
            engine=schema.EngineInfo(name="synthetic", version="0"),
            algorithm=setup.algorithm,
            target="hash",
            draft="noisy hash" if drafts else None,
            block_size=setup.block_size if drafts else None,
            budget=setup.budget if tree else None,
            topk_cap=setup.topk_cap if tree else None,
            sampling=schema.SamplingParams(
                temperature=setup.temperature,
                top_k=setup.top_k,
                top_p=setup.top_p,
                seed=setup.seed,
                max_new_tokens=setup.max_new_tokens,
                stop_token_ids=list(setup.stop_token_ids),
            ),
            threshold_single=setup.threshold_single,
            threshold_acc=setup.threshold_acc,
            score_kind="logprob" if drafts else "none",
            vocab_size=setup.vocab_size,
            request_id=f"synthetic-{setup.seed}",
        )

    def prefill(self) -> schema.Prefill:
        """Read prompt and output so far, and sample one more token."""
        self.prefix_len = self.setup.prompt_len + len(self.output)
        probs = self.filtered(self.target_logits([])[None])[0]
        coin = self.rng.random(dtype=np.float32)
        token = int(probs.argmax()) if self.greedy else int((np.cumsum(probs) > coin * probs.sum()).argmax())
        self.output.append(token)
        return schema.Prefill(
            token=token, prob=float32(probs[token]), coin=None if self.greedy else float(coin)
        )

    def finished(self) -> str | None:
        if self.output[-1] in self.setup.stop_token_ids:
            return "stop"
        return "length" if len(self.output) >= self.setup.max_new_tokens else None

    # ------------------------------------------------------------ the model

    def target_logits(self, beyond: list[int]) -> np.ndarray:
        """Logits [V] after the committed tokens and `beyond`."""
        context = (self.prompt + self.output + beyond)[-2:]
        return np.random.default_rng([self.setup.seed, *context]).normal(0, 2, self.setup.vocab_size)

    def filtered(self, logits: np.ndarray) -> np.ndarray:
        """What the acceptance samples from: rows one-hot at the argmax for a greedy request."""
        if self.greedy:
            return np.eye(logits.shape[-1], dtype=np.float32)[logits.argmax(axis=-1)]
        return target_probs(logits, self.setup.temperature, self.setup.top_k, self.setup.top_p)

    # ------------------------------------------------------------ one step: five stages

    def step(self, index: int) -> schema.Step:
        draft = self.draft()
        tree = self.build(draft)
        retrieve, width = self.compile(tree)
        logits = np.stack([self.target_logits(_tokens_to(tree, node)) for node in range(len(tree))])
        acceptance, probs, coins = self.verify(tree, logits.astype(np.float32), width)
        outcome = accepted_paths(acceptance, width)[self.setup.row]
        slots = self.slot_table[self.prefix_len : self.prefix_len + width]
        step = schema.Step(
            index=index,
            prefix_len=self.prefix_len,
            batch=schema.Batch(id=index + 10, size=self.setup.batch_size, row=self.setup.row, q_len=width),
            draft=_draft_record(draft, tree),
            tree=_tree_record(tree, draft),
            retrieve=schema.Retrieve(
                index=retrieve.index.tolist(),
                next_token=retrieve.next_token.tolist(),
                next_sibling=retrieve.next_sibling.tolist(),
            ),
            positions=node_positions(self.prefix_len, tree.depths, width).tolist(),
            slots=slots.tolist(),
            mask=pack_mask(tree_mask(tree.parents, width)),
            target=_target_record(tree, logits.astype(np.float32), probs),
            sampling=_sampling_record(acceptance, self.setup.row, coins),
            accept=_accept_record(acceptance, self.setup.row, probs is not None),
            commit=self.commit(outcome.path, slots, draft),
            emitted=self.cut(outcome.emitted.tolist()),
            times_us={"draft": 1.0, "verify": 2.0},
        )
        self.prefix_len += len(outcome.path)
        self.output += step.emitted
        return step

    def draft(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Draft rows [B-1, V], falling: log-probabilities and tokens."""
        if self.setup.algorithm == "AR":
            return None
        rows, path = [], []
        for _ in range(self.setup.block_size - 1):
            logits = self.target_logits(path)
            rows.append(logits + self.rng.normal(0, self.setup.noise, len(logits)))
            path.append(int(logits.argmax()))
        logits = np.array(rows, np.float32)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        tokens = np.argsort(-logprobs, axis=1, kind="stable")
        return np.take_along_axis(logprobs, tokens, axis=1), tokens

    def build(self, draft: tuple[np.ndarray, np.ndarray] | None) -> DraftTree:
        root, setup = self.output[-1], self.setup
        if draft is None:
            zero = np.zeros(1, np.int32)
            return DraftTree(np.array([root]), zero - 1, zero, zero, np.zeros(1, np.float32))
        if setup.algorithm == "DFLASH":
            return build_tree(*draft, root, setup.block_size - 1, 1)
        return build_tree(*draft, root, setup.budget, setup.topk_cap or min(setup.budget, setup.vocab_size))

    def compile(self, tree: DraftTree):
        width = len(tree) + self.setup.padding
        return compile_ddtree_retrieve(tree.parents, self.setup.row, width), width

    def verify(self, tree: DraftTree, logits: np.ndarray, width: int):
        """Acceptance of the whole batch, of which the other requests hold a root alone."""
        setup, row = self.setup, self.setup.row
        own = [np.array([-1], np.int32)] * setup.batch_size
        own[row] = tree.parents
        links = [compile_ddtree_retrieve(parents, b, width) for b, parents in enumerate(own)]
        arrays = [
            np.stack([getattr(x, name) for x in links]) for name in ("index", "next_token", "next_sibling")
        ]
        candidates = np.zeros((setup.batch_size, width), np.int64)
        candidates[row, : len(tree)] = tree.tokens
        longest = 1 if setup.algorithm == "AR" else setup.block_size
        if self.greedy and setup.batch_size == 1:
            argmax = np.zeros((setup.batch_size, width), np.int64)
            argmax[row, : len(tree)] = logits.argmax(axis=1)
            return follow_verified_tree(candidates, *arrays, argmax, longest), None, None
        probs = np.zeros((setup.batch_size, width, setup.vocab_size), np.float32)
        probs[row, : len(tree)] = self.filtered(logits)
        coins = self.rng.random((setup.batch_size, width), np.float32)
        finals = self.rng.random(setup.batch_size, np.float32)
        thresholds = setup.threshold_single, setup.threshold_acc
        acceptance = sample_tree_paths(candidates, *arrays, probs, coins, finals, longest, *thresholds)
        return acceptance, probs[row, : len(tree)], [*coins[row, : len(tree)], finals[row]]

    def commit(self, path: np.ndarray, slots: np.ndarray, draft: object) -> schema.Commit:
        committed = self.prefix_len + len(path)
        return schema.Commit(
            src_slots=slots[path].tolist(),
            dst_slots=slots[: len(path)].tolist(),
            committed_len=committed,
            reserved_len=self.prefix_len + 2 * len(slots),
            row_width=4096,
            draft_kv_positions=None if draft is None else list(range(self.prefix_len, committed)),
            draft_kv_rows=None if draft is None else committed,
        )

    def cut(self, emitted: list[int]) -> list[int]:
        for place, token in enumerate(emitted):
            if token in self.setup.stop_token_ids:
                emitted = emitted[: place + 1]
                break
        return emitted[: self.setup.max_new_tokens - len(self.output)]


def _tokens_to(tree: DraftTree, node: int) -> list[int]:
    """Tokens from below the root down to a node."""
    tokens: list[int] = []
    while node:
        tokens.insert(0, int(tree.tokens[node]))
        node = int(tree.parents[node])
    return tokens


def _draft_record(draft, tree: DraftTree) -> schema.Draft | None:
    if draft is None:
        return None
    kept = max(16, int(tree.ranks.max()) + 2)
    return schema.Draft(top_ids=draft[1][:, :kept].tolist(), top_logprobs=display_rows(draft[0][:, :kept]))


def _tree_record(tree: DraftTree, draft: object) -> schema.Tree:
    return schema.Tree(
        tokens=tree.tokens.tolist(),
        parents=tree.parents.tolist(),
        ranks=None if draft is None else tree.ranks.tolist(),
        scores=None if draft is None else float32_list(tree.scores),
    )


def _target_record(tree: DraftTree, logits: np.ndarray, probs: np.ndarray | None) -> schema.Target:
    raw = target_probs(logits, 1.0)
    order = np.argsort(-logits, axis=1, kind="stable")
    best = np.take_along_axis(logits, order[:, :2], axis=1)
    return schema.Target(
        raw=schema.TargetRows(
            top_ids=order[:, :TARGET_TOP].tolist(),
            top_probs=display_rows(np.take_along_axis(raw, order, axis=1)[:, :TARGET_TOP]),
            entropy=display_list(-(raw * np.log(raw)).sum(axis=1)),
            logsumexp=display_list(np.log(np.exp(logits).sum(axis=1))),
            argmax=order[:, 0].tolist(),
            margin=float32_list(best[:, 0] - best[:, 1]),
            node_probs=_node_probs(tree, raw),
        ),
        filtered=None if probs is None else _filtered_record(tree, probs),
    )


def _filtered_record(tree: DraftTree, probs: np.ndarray) -> schema.FilteredRows:
    best = np.argsort(-probs, axis=1, kind="stable")[:, :TARGET_TOP]
    return schema.FilteredRows(
        node_probs=_node_probs(tree, probs),
        top_ids=best.tolist(),
        top_probs=display_rows(np.take_along_axis(probs, best, axis=1)),
    )


def _node_probs(tree: DraftTree, probs: np.ndarray) -> list[float | None]:
    return [None, *float32_list(probs[tree.parents[1:], tree.tokens[1:]])]


def _sampling_record(acceptance, row: int, coins: list | None) -> schema.Sampling | None:
    if coins is None:
        return None
    *node_coins, final_coin = float32_list(np.array(coins, np.float32))
    return schema.Sampling(
        coins=node_coins,
        final_coin=final_coin,
        residual_sum=float32(acceptance.residual_sum[row]),
        bonus_cdf=float32(acceptance.bonus_cdf[row]),
        bonus_prob=float32(acceptance.bonus_prob[row]),
    )


def _accept_record(acceptance, row: int, sampled: bool) -> schema.Accept:
    count = int(acceptance.num_accepted[row])
    index = acceptance.accept_index[row, : count + 1]
    predicts = acceptance.predicts[index].tolist()
    return schema.Accept(
        index=index.tolist(),
        num_accepted=count,
        predicts=predicts,
        bonus=predicts[-1],
        kernel="sampled" if sampled else "greedy",
    )
