"""Batches: stop tokens inside a path, a prefix-cache hit, retraction, the context limit, greedy beside
sampled rows, budgets of their own; and no KV slot lost.
"""

from scripts.gpu.checks import Context, Engines, Verdict, same_outputs

NEEDS = ("ar", "tree", "tree-small")
CONTEXT = 768  # of tree-small


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    for check in (_stop_tokens, _prefix_cache, _mixed, _budgets, _context_limit, _retraction):
        check(verdict, engines, context)
    for name in ("tree", "tree-small"):
        engines[name].call("flush_cache")
        engines[name].generate([[1, 2, 3]], {"temperature": 0, "max_new_tokens": 2})
        free = engines[name].free_slots()
        verdict.claim(len(set(free)) == 1, f"{name}: free slots while idle were {free}")
        verdict.figures.append(f"{name}: {free[-1]} slots of the KV pool free whenever idle")
    return verdict


def _stop_tokens(verdict: Verdict, engines: Engines, context: Context) -> None:
    """Stop at a token that stands in the middle of what was said: mostly inside an accepted path."""
    prompts = context.prompts[:24]
    plain = engines["ar"].generate(prompts, {"temperature": 0, "max_new_tokens": 64})
    params = [
        {"temperature": 0, "max_new_tokens": 64, "stop_token_ids": [a.output_ids[len(a.output_ids) // 2]]}
        for a in plain
    ]
    wanted = engines["ar"].generate(prompts, params)
    got = engines["tree"].generate(prompts, params)
    inside = sum(
        sum(b.accept_lens) > len(b.output_ids) - 1 for b in got
    )  # accepted more than was said: the stop token was not the path's last
    same = sum(
        a.output_ids == b.output_ids and a.finish == b.finish for a, b in zip(wanted, got, strict=True)
    )
    verdict.figures.append(f"stop tokens: {same} of {len(got)} as autoregression, {inside} inside a path")
    verdict.claim(same == len(got), "stop tokens: not all as autoregression")
    verdict.claim(inside > 0, "stop tokens: none stood inside a path")


def _prefix_cache(verdict: Verdict, engines: Engines, context: Context) -> None:
    params = {"temperature": 0, "max_new_tokens": 48}
    prompt = [*context.prompts[5], *context.prompts[6]]
    first, second = engines["tree"].generate([prompt, prompt], params, together=False)
    verdict.figures.append(f"prefix cache: {second.meta['cached_tokens']} of {len(prompt)} tokens cached")
    verdict.claim(
        second.meta["cached_tokens"] > len(prompt) // 2, "the second request found no cached prefix"
    )
    verdict.claim(first.output_ids == second.output_ids, "a cached prefix changed the output")
    said = prompt + first.output_ids[:-1]  # the KV that commits packed must be right, too
    again = engines["tree"].generate([said], params)[0]
    wanted = engines["ar"].generate([said], params)[0]
    verdict.figures.append(f"continuation: {again.meta['cached_tokens']} of {len(said)} tokens cached")
    verdict.claim(again.meta["cached_tokens"] > len(prompt), "the continuation found no generated prefix")
    verdict.claim(again.output_ids == wanted.output_ids, "a continuation over packed KV differs")


def _mixed(verdict: Verdict, engines: Engines, context: Context) -> None:
    prompts = context.prompts[:16]
    greedy = {"temperature": 0, "max_new_tokens": 64}
    sampled = {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "max_new_tokens": 64}
    wanted = engines["tree"].generate(prompts, greedy)
    got = engines["tree"].generate(prompts, [greedy if i % 2 else sampled for i in range(16)])
    same = sum(wanted[i].output_ids == got[i].output_ids for i in range(1, 16, 2))
    verdict.figures.append(f"mixed batch: {same} of 8 greedy rows equal their pure greedy run")
    verdict.claim(same == 8, "a greedy row of a mixed batch differs")


def _budgets(verdict: Verdict, engines: Engines, context: Context) -> None:
    """Rows with budgets and caps of their own take the steps that they take alone."""
    prompts = context.prompts[:12]
    limits = [{"budget": b, "topk_cap": c} for b, c in ((1, 1), (4, 2), (8, 4), (16, 1))] * 3
    params = [
        {"temperature": 0, "max_new_tokens": 64, "custom_params": {"ddtree": limit}} for limit in limits
    ]
    together = engines["tree"].generate(prompts, params)
    alone = engines["tree"].generate(prompts, params, together=False)
    same = sum(a.accept_lens == b.accept_lens for a, b in zip(together, alone, strict=True))
    means = [sum(map(sum, (a.accept_lens for a in together[i::4]))) for i in range(4)]
    steps = [sum(len(a.accept_lens) for a in together[i::4]) for i in range(4)]
    verdict.figures.append(
        f"budgets: {same} of {len(prompts)} rows as alone; accept length "
        + ", ".join(f"{n / s:.2f}" for n, s in zip(means, steps, strict=True))
    )
    for i, (a, b) in enumerate(zip(together, alone, strict=True)):
        verdict.claim(
            a.accept_lens == b.accept_lens, f"budgets, row {i}: {a.accept_lens} != {b.accept_lens} alone"
        )
    verdict.claim(
        max(max(a.accept_lens) for a in together[0::4]) <= 2, "budget 1 accepted more than one node"
    )


def _context_limit(verdict: Verdict, engines: Engines, context: Context) -> None:
    """Requests that end at the context's end beside ones that do not."""
    filler = [token for prompt in context.prompts for token in prompt]
    long = [filler[i : i + CONTEXT - 60] for i in (0, 300, 600)]
    prompts = [*long, *context.prompts[:4]]
    params = [
        {"temperature": 0, "max_new_tokens": min(100, CONTEXT - len(p) - 2), "ignore_eos": True}
        for p in prompts
    ]
    wanted, got = engines["ar"].generate(prompts, params), engines["tree-small"].generate(prompts, params)
    same = same_outputs(wanted, got)
    verdict.figures.append(
        f"context limit: {same} of {len(prompts)} as autoregression, up to "
        f"{max(len(p) + len(a.output_ids) for p, a in zip(prompts, got, strict=True))} of {CONTEXT} tokens"
    )
    verdict.claim(same == len(prompts), "near the context limit an output differs")


def _retraction(verdict: Verdict, engines: Engines, context: Context) -> None:
    params = {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True}
    prompts = context.prompts[:14]
    wanted, got = engines["ar"].generate(prompts, params), engines["tree-small"].generate(prompts, params)
    same = same_outputs(wanted, got)
    retracted = engines["tree-small"].log_text().lower().count("retract")
    verdict.figures.append(f"retraction: {same} of {len(prompts)} as autoregression; log lines: {retracted}")
    verdict.claim(same == len(prompts), "with retraction an output differs")
    verdict.claim(retracted > 0, "no request was retracted: the pool was too large for this check")
