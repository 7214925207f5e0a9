"""A made-up run with consistent arrays: a target that recites a script, a drafter that is right most times.

Not a model: its steps hold what an engine's would, so that app and viewer can be tried without torch.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ddviz.engines.base import GenerateParams
from ddviz.trace import Recorder, display_list, display_rows, float32_list, schema
from ddviz.tree import (
    accepted_paths,
    build_tree,
    compile_ddtree_retrieve,
    follow_verified_tree,
    node_positions,
    pack_mask,
    tree_mask,
)

HOSTILE = [
    "${alert(1)}",
    "{{x}}",
    "`",
    "</script>",
    "<img src=x onerror=alert(2)>",
    "<script>alert(3)</script>",
    "‮evil‬",
    "https://example.com/a.png",
    "@children",
]
WORDS = "Quick sort picks a pivot , moves smaller items left and larger items right .\n Then it sorts both ."
VOCAB: list[bytes] = [
    *[(" " + word).encode() for word in dict.fromkeys(WORDS.split(" "))],
    *[text.encode() for text in HOSTILE],
    "é".encode()[:1],  # half a character
    "é".encode()[1:],
    b"    ",
    b"\n",
]
ID = {raw: token for token, raw in enumerate(VOCAB)}
PLAIN = [ID[(" " + word).encode()] for word in WORDS.split(" ")]
SCARY = [ID[text.encode()] for text in HOSTILE] + [ID["é".encode()[:1]], ID["é".encode()[1:]], ID[b"\n"]]
BLOCK, K, M = 8, 6, 5


def header(params: GenerateParams, notes: tuple[str, ...] = ()) -> schema.Header:
    algorithm: dict[str, schema.Algorithm] = {"ar": "AR", "dflash": "DFLASH", "ddtree": "DDTREE"}
    return schema.Header(
        created="2026-11-29T20:41:07+00:00",
        engine=schema.EngineInfo(name="fake", version="0", device="cpu"),
        algorithm=algorithm[params.mode],
        target="fake-target",
        draft="fake-draft",
        block_size=BLOCK,
        budget=params.budget,
        topk_cap=params.topk_cap,
        sampling=schema.SamplingParams(temperature=params.temperature, max_new_tokens=params.max_new_tokens),
        vocab_size=len(VOCAB),
        request_id="fake",
        notes=list(notes),
    )


def script(hostile: bool) -> list[int]:
    """What the target says, round and round."""
    if not hostile:
        return PLAIN
    return [token for pair in zip(SCARY, PLAIN * 2, strict=False) for token in pair]


def steps(params: GenerateParams, hostile: bool = False, seed: int = 0) -> Iterator[schema.Step]:
    """Steps until max_new_tokens; the first output token, `script(hostile)[0]`, is prefill's."""
    rng = np.random.default_rng(seed)
    text = script(hostile)
    done, index, prefix = 1, 0, 5
    while done < params.max_new_tokens:
        step = _step(params, text, done, index, prefix, rng)
        step.emitted = step.emitted[: params.max_new_tokens - done]
        yield step
        done, index, prefix = done + len(step.emitted), index + 1, prefix + len(step.accept.index)


def write(path: Path, params: GenerateParams, hostile: bool = False) -> Path:
    """A whole finished trace."""
    with Recorder(path, header(params), VOCAB.__getitem__) as recorder:
        output = begin(recorder, params, hostile)
        for step in steps(params, hostile):
            recorder.step(step)
            output += step.emitted
        recorder.end(schema.End(finish_reason="length", output_ids=output, steps=len(output)))
    return path


def begin(recorder: Recorder, params: GenerateParams, hostile: bool) -> list[int]:
    recorder.prompt(PLAIN[:5], params.prompt)
    first = script(hostile)[0]
    recorder.prefill(schema.Prefill(token=first, prob=0.5, time_us=1000.0))
    return [first]


def _step(
    params: GenerateParams, text: list[int], done: int, index: int, prefix: int, rng: np.random.Generator
) -> schema.Step:
    ahead = [text[(done + i) % len(text)] for i in range(BLOCK)]
    draft_tokens = np.array([_candidates(ahead[i], rng) for i in range(BLOCK - 1)])
    raw = np.sort(rng.gumbel(size=(BLOCK - 1, K)).astype(np.float32) * 2, axis=1)[:, ::-1]
    draft_logprobs = (raw - np.log(np.exp(raw).sum(1, keepdims=True))).astype(np.float32)
    budget = {"ar": 0, "dflash": BLOCK - 1, "ddtree": params.budget}[params.mode]
    cap = 1 if params.mode == "dflash" else params.topk_cap
    tree = build_tree(draft_logprobs, draft_tokens, text[(done - 1) % len(text)], max(budget, 1), cap)
    n = 1 if params.mode == "ar" else len(tree)
    parents, tokens, depths = tree.parents[:n], tree.tokens[:n], tree.depths[:n]
    retrieve = compile_ddtree_retrieve(parents)
    argmax = np.array([ahead[d] if d < BLOCK else ahead[-1] for d in depths])
    accepted = follow_verified_tree(
        tokens[None],
        retrieve.index[None],
        retrieve.next_token[None],
        retrieve.next_sibling[None],
        argmax[None],
        BLOCK,
    )
    outcome = accepted_paths(accepted, n)[0]
    return schema.Step(
        index=index,
        prefix_len=prefix,
        batch=schema.Batch(id=index + 1, size=1, row=0, q_len=n),
        draft=schema.Draft(top_ids=draft_tokens.tolist(), top_logprobs=display_rows(draft_logprobs)),
        tree=schema.Tree(
            tokens=tokens.tolist(),
            parents=parents.tolist(),
            ranks=tree.ranks[:n].tolist(),
            scores=float32_list(tree.scores[:n]),
        ),
        retrieve=schema.Retrieve(
            index=retrieve.index.tolist(),
            next_token=retrieve.next_token.tolist(),
            next_sibling=retrieve.next_sibling.tolist(),
        ),
        positions=node_positions(prefix, depths).tolist(),
        slots=list(range(prefix, prefix + n)),
        mask=pack_mask(tree_mask(parents)),
        target=schema.Target(raw=_target_rows(argmax, tokens, parents, rng)),
        accept=schema.Accept(
            index=outcome.path.tolist(),
            num_accepted=len(outcome.path) - 1,
            predicts=outcome.emitted.tolist(),
            bonus=int(outcome.emitted[-1]),
            kernel="greedy",
        ),
        emitted=outcome.emitted.tolist(),
        times_us={"draft": 9000.0, "build": 300.0, "compile": 80.0, "verify": 31000.0, "commit": 700.0},
    )


def _candidates(right: int, rng: np.random.Generator) -> list[int]:
    """K distinct tokens, the right one first most times."""
    others = [int(token) for token in rng.permutation(len(VOCAB)) if token != right][: K - 1]
    place = int(rng.choice([0, 1, 2, K - 1], p=[0.7, 0.15, 0.1, 0.05]))
    return [*others[:place], right, *others[place:]]


def _target_rows(argmax, tokens, parents, rng: np.random.Generator) -> schema.TargetRows:
    n = len(argmax)
    rows = np.sort(rng.dirichlet(np.full(M, 0.4), size=n), axis=1)[:, ::-1]
    tops = [[int(a), *[t for t in rng.permutation(len(VOCAB)).tolist() if t != a][: M - 1]] for a in argmax]
    node_probs = [
        None if p < 0 else (0.6 if argmax[p] == t else 0.01) for t, p in zip(tokens, parents, strict=True)
    ]
    return schema.TargetRows(
        top_ids=tops,
        top_probs=display_rows(rows),
        entropy=display_list(rng.uniform(0.1, 3, n)),
        logsumexp=display_list(rng.uniform(10, 20, n)),
        argmax=argmax.tolist(),
        margin=float32_list(rng.uniform(0, 5, n)),
        node_probs=node_probs,
    )
