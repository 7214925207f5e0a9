"""Small traces for the viewer's tests: right ones that read like text, hostile ones, damaged ones.

Not here: traces for the checks. The probabilities are made up, yet the decisions follow from them, so that
every sentence the viewer derives is true.
"""

from pathlib import Path

import numpy as np

from ddviz.trace import Recorder, Trace, display_list, display_rows, float32, float32_list, load
from ddviz.trace.schema import (
    Accept,
    Batch,
    Commit,
    Draft,
    End,
    EngineInfo,
    FilteredRows,
    Header,
    Prefill,
    Retrieve,
    Sampling,
    SamplingParams,
    Step,
    Target,
    TargetRows,
    Tree,
)
from ddviz.tree import (
    accepted_paths,
    build_tree,
    compile_ddtree_retrieve,
    follow_verified_tree,
    node_positions,
    pack_mask,
    sample_tree_paths,
    tree_mask,
)

STORY = (
    "The lighthouse keeper counted the waves each morning , because the sea had promised him an "
    "answer . On calm days it said nothing , and he painted the stairs white again . On stormy days "
    "it said too much at once , and he climbed to the lamp and listened until the wind was out of "
    "breath . \n Nobody in the village believed the story about the whale , but everyone knew the "
    "lamp had never gone out , not even in the winter when the oil froze . Internationalization of "
    "the harbour came later , with a railway and a very small museum . \n"
)
HOSTILE = [
    b" ${alert(1)}",
    b" {{constructor.constructor('alert(1)')()}}",
    b" `backtick`",
    b" </script><script>alert(2)</script>",
    b' <img src="https://evil.example/x.png" onerror="alert(3)">',
    b" <!--",
    " ‮reversed‬".encode(),
    "\u2028".encode(),
    b"\xf0\x9f",
    b"\xa6\x8a",
    b"\xff",
    b"<|im_end|>",
]
B, M = 16, 8  # block size, target tokens kept per node


class Words:
    """A vocabulary of the story's words and the hostile tokens, and the story as ids."""

    def __init__(self, hostile: bool) -> None:
        spoken = [w.encode() if w in ",.\n" else b" " + w.encode() for w in STORY.split(" ") if w]
        self.bytes = sorted(set(spoken)) + (HOSTILE if hostile else [])
        ids = {raw: i for i, raw in enumerate(self.bytes)}
        self.story = [ids[w] for w in spoken]
        if hostile:
            self.story = [
                t for pair in zip(self.story, _round(ids[h] for h in HOSTILE), strict=False) for t in pair
            ]

    def next(self, place: int) -> int:
        return self.story[place % len(self.story)]


def _round(items):
    items = list(items)
    while True:
        yield from items


def write_trace(
    path: Path,
    steps: int = 12,
    budget: int = 16,
    topk_cap: int = 4,
    temperature: float = 0.8,
    seed: int = 0,
    hostile: bool = False,
    finish: bool = True,
) -> Trace:
    """A DDTREE trace of the story: the target mostly continues it, the drafter knows it less far ahead."""
    rng = np.random.default_rng(seed)
    words = Words(hostile)
    header = Header(
        created="2026-11-29T20:15:00+00:00",
        engine=EngineInfo(name="torch_engine", version="0.1.0", device="cpu: 2 threads"),
        algorithm="DDTREE",
        target="SmolLM2-135M-Instruct",
        draft="smollm2-135m-dflash",
        block_size=B,
        budget=budget,
        topk_cap=topk_cap,
        sampling=SamplingParams(temperature=temperature, seed=seed, max_new_tokens=192),
        vocab_size=len(words.bytes),
        request_id=f"{path.stem}-{seed}",
    )
    with Recorder(path, header, words.bytes.__getitem__, overwrite=True) as recorder:
        prompt = [words.next(i) for i in range(24)]
        recorder.prompt(prompt, b"".join(words.bytes[t] for t in prompt).decode("utf-8", "replace"))
        root, place, prefix_len = words.next(0), 1, len(prompt)
        recorder.prefill(Prefill(token=root, prob=0.5, time_us=41000.0))
        output = [root]
        for index in range(steps):
            step = make_step(rng, words, index, root, place, prefix_len, budget, topk_cap, temperature)
            recorder.step(step)
            output += step.emitted
            root, place = step.accept.bonus, place + len(step.emitted)
            prefix_len += len(step.emitted)
        if finish:
            recorder.end(End(finish_reason="length", output_ids=output, steps=steps, time_us=60000.0 * steps))
    return load(path)


def make_step(rng, words, index, root, place, prefix_len, budget, topk_cap, temperature) -> Step:
    vocab = len(words.bytes)
    draft_logits = rng.normal(0, 1.6, (B - 1, vocab))
    sure = rng.uniform(3.0, 7.0)
    for d in range(B - 1):
        draft_logits[d, words.next(place + d)] += sure - 0.25 * d
    logprobs = draft_logits - np.log(np.exp(draft_logits).sum(-1, keepdims=True))
    order = np.argsort(-logprobs, axis=-1, kind="stable")[:, : max(16, topk_cap)]
    top_logprobs = np.take_along_axis(logprobs, order, -1).astype(np.float32)
    tree = build_tree(top_logprobs, order, root, budget, topk_cap)
    n = len(tree)

    logits = rng.normal(0, 1.3, (n, vocab))
    for node in range(n):
        logits[node, words.next(place + int(tree.depths[node]))] += rng.uniform(3.5, 8)
    raw = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    retrieve = compile_ddtree_retrieve(tree.parents)
    batched = [a[None] for a in (tree.tokens, retrieve.index, retrieve.next_token, retrieve.next_sibling)]
    greedy = temperature < 1e-6
    coins, final = rng.random(n, dtype=np.float32), np.float32(rng.random())
    if greedy:
        probs, result = raw, follow_verified_tree(*batched, raw.argmax(-1)[None], B)
    else:
        warm = np.exp(logits / temperature)
        probs = (warm / warm.sum(-1, keepdims=True)).astype(np.float32)
        result = sample_tree_paths(*batched, probs[None], coins[None], np.array([final]), B)
    path, emitted = accepted_paths(result, n)[0]
    tops = np.argsort(-probs, -1)[:, :M]
    sorted_logits = np.sort(logits, -1)
    node_probs = [None, *float32_list(probs[tree.parents[1:], tree.tokens[1:]])]
    verify = float(rng.uniform(38, 52)) * 1000
    return Step(
        index=index,
        prefix_len=prefix_len,
        batch=Batch(id=index, size=1, row=0, q_len=n),
        draft=Draft(top_ids=order.tolist(), top_logprobs=display_rows(top_logprobs)),
        tree=Tree(
            tokens=tree.tokens.tolist(),
            parents=tree.parents.tolist(),
            ranks=tree.ranks.tolist(),
            scores=float32_list(tree.scores),
        ),
        retrieve=Retrieve(
            index=retrieve.index.tolist(),
            next_token=retrieve.next_token.tolist(),
            next_sibling=retrieve.next_sibling.tolist(),
        ),
        positions=node_positions(prefix_len, tree.depths).tolist(),
        slots=list(range(prefix_len, prefix_len + n)),
        mask=pack_mask(tree_mask(tree.parents)),
        target=Target(
            raw=TargetRows(
                top_ids=np.argsort(-raw, -1)[:, :M].tolist(),
                top_probs=display_rows(-np.sort(-raw, -1)[:, :M]),
                entropy=display_list(-(raw * np.log(raw)).sum(-1)),
                logsumexp=display_list(np.log(np.exp(logits).sum(-1))),
                argmax=raw.argmax(-1).tolist(),
                margin=float32_list(sorted_logits[:, -1] - sorted_logits[:, -2]),
                node_probs=[None, *float32_list(raw[tree.parents[1:], tree.tokens[1:]])],
            ),
            filtered=None
            if greedy
            else FilteredRows(
                node_probs=node_probs,
                top_ids=tops.tolist(),
                top_probs=display_rows(np.take_along_axis(probs, tops, -1)),
            ),
        ),
        sampling=None
        if greedy
        else Sampling(
            coins=float32_list(coins),
            final_coin=float32(final),
            residual_sum=float32(result.residual_sum[0]),
            bonus_cdf=float32(result.bonus_cdf[0]),
            bonus_prob=float32(result.bonus_prob[0]),
        ),
        accept=Accept(
            index=path.tolist(),
            num_accepted=len(path) - 1,
            predicts=emitted.tolist(),
            bonus=int(emitted[-1]),
            kernel="greedy" if greedy else "sampled",
        ),
        commit=Commit(
            src_slots=(path + prefix_len).tolist(),
            dst_slots=list(range(prefix_len, prefix_len + len(path))),
            committed_len=prefix_len + len(path),
        ),
        emitted=emitted.tolist(),
        times_us={
            "draft": float(rng.uniform(6, 9)) * 1000,
            "build": float(rng.uniform(0.2, 0.5)) * 1000,
            "compile": float(rng.uniform(0.1, 0.3)) * 1000,
            "verify": verify,
            "commit": float(rng.uniform(0.5, 1.5)) * 1000,
        },
    )
