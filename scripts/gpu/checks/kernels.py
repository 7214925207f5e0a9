"""The kernels against their twins in ddviz/tree: build and compile bit for bit, both acceptance kernels entry
by entry, except where a coin lies within 1e-5 of a boundary. And how long build and compile take.
"""

from collections.abc import Callable

import numpy as np
import torch

from ddviz.engines.sglang_plugin.batch import TreeBatch
from ddviz.engines.sglang_plugin.tree_kernels import build_trees, compile_trees
from ddviz.tree import (
    TreeAcceptance,
    build_tree,
    compile_ddtree_retrieve,
    follow_verified_tree,
    node_positions,
    sample_tree_paths,
    tree_mask,
)
from scripts.gpu.checks import Context, Engines, Verdict

NEEDS = ()
TREES = 1000
BATCH = 8
NEAR = 1e-5
DEVICE = "cuda"

Arrays = tuple[np.ndarray, ...]


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    rng = np.random.default_rng(20261129)
    _builders(verdict, rng)
    _random_trees(verdict, rng)
    _dyadic(verdict)
    _edges(verdict)
    _times(verdict)
    return verdict


def _builders(verdict: Verdict, rng: np.random.Generator) -> None:
    equal, total = 0, 0
    for case in range(200):
        bs, depths = int(rng.integers(1, 17)), int(rng.integers(1, 16))
        k, width = int(rng.integers(1, 65)), int(rng.integers(2, 130))
        drafts = [_draft(rng, depths, k, coarse=case % 2 == 0) for _ in range(bs)]
        budgets, caps = rng.integers(1, width, bs), rng.integers(1, k + 1, bs)
        seq_lens = rng.integers(0, 300, bs)
        out = TreeBatch.empty(bs, width, DEVICE)
        build_trees(
            out,
            _cuda(np.stack([d[0] for d in drafts])),
            _cuda(np.stack([d[1] for d in drafts])),
            _cuda(np.arange(bs) + 7),
            _cuda(budgets.astype(np.int32)),
            _cuda(caps.astype(np.int32)),
        )
        rows = torch.arange(bs * 512, dtype=torch.int32, device=DEVICE).view(bs, 512)
        mask = torch.full((int((width * (seq_lens + width)).sum()),), 9, dtype=torch.uint8, device=DEVICE)
        compile_trees(out, _cuda(seq_lens), _cuda(np.arange(bs)), rows, mask, whole_rows=bool(case % 3 == 0))
        at = 0
        for b in range(bs):
            tree = build_tree(*drafts[b], b + 7, int(budgets[b]), int(caps[b]))
            n = len(tree)
            retrieve = compile_ddtree_retrieve(tree.parents, row=b, width=width)
            cells = mask[at : at + width * (seq_lens[b] + width)].view(width, -1).cpu().numpy()
            at += width * (seq_lens[b] + width)
            equal += all(
                np.array_equal(got, want)
                for got, want in (
                    (out.counts[b].cpu(), n),
                    (out.tokens[b, :n].cpu(), tree.tokens),
                    (out.parents[b, :n].cpu(), tree.parents),
                    (out.ranks[b, :n].cpu(), tree.ranks),
                    (out.scores[b, :n].cpu(), tree.scores),
                    (out.retrieve_index[b].cpu(), retrieve.index),
                    (out.next_token[b].cpu(), retrieve.next_token),
                    (out.next_sibling[b].cpu(), retrieve.next_sibling),
                    (out.positions[b].cpu(), node_positions(int(seq_lens[b]), tree.depths, width)),
                    (cells[:, seq_lens[b] :], tree_mask(tree.parents, width)),
                )
            )
            verdict.claim(
                case % 3 != 0 or (cells[:, : seq_lens[b]] == 1).all(), f"case {case}: prefix not seen"
            )
        total += bs
    verdict.figures.append(f"build and compile equal tree/ on {equal} of {total} random trees")
    verdict.claim(equal == total, f"{total - equal} trees differ from tree/")


def _random_trees(verdict: Verdict, rng: np.random.Generator) -> None:
    differing, near, compared = 0, 0, 0
    for case in range(TREES // BATCH):
        width, vocabulary = int(rng.integers(2, 66)), int(rng.choice([8, 97, 1000]))
        max_path_len = int(rng.integers(2, 17))
        single, acc = [(1.0, 1.0), (0.9, 1.0), (1.0, 0.5), (0.3, 0.7)][case % 4]
        trees = _trees(rng, BATCH, width, vocabulary)
        probs = rng.dirichlet(np.full(vocabulary, 0.1), size=(BATCH, width)).astype(np.float32)
        coins = rng.random((BATCH, width), np.float32)
        final = rng.random(BATCH, np.float32)
        twin = sample_tree_paths(*trees, probs, coins, final, max_path_len, single, acc)
        kernel = _sample(trees, probs, coins, final, max_path_len, single, acc)
        greedy_twin = follow_verified_tree(*trees, probs.argmax(-1).astype(np.int64), max_path_len)
        greedy = _greedy(trees, probs.argmax(-1), max_path_len)
        for b in range(BATCH):
            compared += 1
            verdict.claim(_same(greedy_twin, greedy, b, width), f"greedy kernel, case {case} row {b} differs")
            if _same(twin, kernel, b, width):
                continue
            if _nearest_boundary(trees, probs, coins, final, twin, b, acc) < NEAR:
                near += 1
            else:
                differing += 1
    verdict.figures.append(
        f"both acceptance kernels against their twins on {compared} random trees: {differing} differ, "
        f"{near} within {NEAR:g} of a boundary"
    )
    verdict.claim(differing == 0, f"{differing} sampled trees differ")


def _dyadic(verdict: Verdict) -> None:
    """Probabilities and coins that float32 holds exactly: boundaries hit from both sides, no tolerance."""
    probs = np.zeros((1, 4, 8), np.float32)
    probs[0, 0, :4] = [0.25, 0.5, 0.125, 0.125]
    probs[0, 1, 4:6] = [0.5, 0.5]
    probs[0, 2, 6:8] = [0.75, 0.25]
    probs[0, 3, 0] = 1
    next_token = np.array([[1, 3, -1, -1]], np.int64)  # 0 -> 1, 2; 1 -> 3
    next_sibling = np.array([[-1, 2, -1, -1]], np.int64)
    trees = (np.array([[9, 0, 1, 4]], np.int64), np.arange(4)[None], next_token, next_sibling)
    cases = 0
    below = np.nextafter(np.float32(0.25), np.float32(0))
    above = np.nextafter(np.float32(0.25), np.float32(1))
    for first in (0.0, below, 0.25, above, 0.75, 0.875):
        for second in (0.25, 0.5, 0.75):
            for final in (0.0, 0.25, 0.5, 0.75):
                coins = np.array([[first, second, 0.5, 0.5]], np.float32)
                uf = np.array([final], np.float32)
                twin = sample_tree_paths(*trees, probs, coins, uf, 3)
                kernel = _sample(trees, probs, coins, uf, 3, 1.0, 1.0)
                cases += 1
                verdict.claim(_same(twin, kernel, 0, 4), f"dyadic: coins {first}, {second}, {final} differ")
    verdict.figures.append(f"{cases} exact cases in dyadic probabilities")


def _edges(verdict: Verdict) -> None:
    """A coin of 0 takes a child of probability 0; an empty residual yields the last token; depth limit."""
    trees = (np.array([[9, 3]], np.int64), np.arange(2)[None], np.array([[1, -1]]), np.array([[-1, -1]]))
    probs = np.zeros((1, 2, 8), np.float32)
    probs[0, :, 5] = 1
    zero, half = np.zeros((1, 2), np.float32), np.full(1, 0.5, np.float32)
    kernel = _sample(trees, probs, zero, half, 2, 1.0, 1.0)
    verdict.claim(
        kernel[2][0] == 1 and kernel[0][0] == 3, "a coin of 0 did not take the child of probability 0"
    )
    empty = np.zeros((1, 2, 8), np.float32)
    kernel = _sample(trees, empty, half[None].repeat(2, 1), half, 2, 1.0, 1.0)
    verdict.claim(kernel[0][0] == 7, f"an empty residual yields {kernel[0][0]}, not the last token")
    kernel = _sample(trees, probs, zero, half, 1, 1.0, 1.0)
    verdict.claim(kernel[2][0] == 0 and kernel[0][0] == 5, "a path of length 1 examined a child")
    verdict.figures.append("coin 0, empty residual and depth limit as the twin has them")


def _times(verdict: Verdict) -> None:
    rng = np.random.default_rng(1)
    for bs in (1, 16):
        for budget, k in ((16, 4), (64, 64)):
            drafts = [_draft(rng, 15, k, False) for _ in range(bs)]
            width = budget + 1
            out = TreeBatch.empty(bs, width, DEVICE)
            arrays = (
                _cuda(np.stack([d[0] for d in drafts])),
                _cuda(np.stack([d[1] for d in drafts])),
                _cuda(np.arange(bs)),
                torch.full((bs,), budget, dtype=torch.int32, device=DEVICE),
                torch.full((bs,), k, dtype=torch.int32, device=DEVICE),
            )
            seq_lens = torch.full((bs,), 500, device=DEVICE)
            rows = torch.zeros((bs, 2048), dtype=torch.int32, device=DEVICE)
            mask = torch.zeros(bs * width * (500 + width), dtype=torch.uint8, device=DEVICE)
            indices = torch.arange(bs, device=DEVICE)

            def both(
                arrays=arrays, out=out, seq_lens=seq_lens, indices=indices, rows=rows, mask=mask
            ) -> None:
                build_trees(out, *arrays)
                compile_trees(out, seq_lens, indices, rows, mask)

            verdict.figures.append(
                f"build + compile, budget {budget}, batch {bs}: {_device_us(both):.0f} us on the device"
            )


def _device_us(call: Callable[[], None]) -> float:
    """Median of CUDA event times over a graph of ten calls, so that launches do not count."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            call()
    times = []
    for _ in range(20):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 100)
    return float(np.median(times))


def _draft(rng: np.random.Generator, depths: int, k: int, coarse: bool) -> tuple[np.ndarray, np.ndarray]:
    logprobs = np.log(rng.dirichlet(np.full(k + 3, 0.4), size=depths) + 1e-9).astype(np.float32)
    if coarse:
        logprobs = np.round(logprobs * 4) / 4
    logprobs = np.ascontiguousarray(-np.sort(-logprobs, axis=1)[:, :k], np.float32)
    return logprobs, np.stack([rng.permutation(1000)[:k] for _ in range(depths)])


def _trees(rng: np.random.Generator, bs: int, width: int, vocabulary: int) -> Arrays:
    """candidates, index, next_token, next_sibling [bs, T] of random trees with distinct siblings."""
    k = min(6, vocabulary)
    candidates, index, next_token, next_sibling = [], [], [], []
    for b in range(bs):
        logprobs, _ = _draft(rng, 15, k, False)
        ids = np.stack([rng.permutation(vocabulary)[:k] for _ in range(15)])
        tree = build_tree(logprobs, ids, int(rng.integers(vocabulary)), width - 1 if width > 1 else 1)
        retrieve = compile_ddtree_retrieve(tree.parents, row=b, width=width)
        candidates.append(np.pad(tree.tokens, (0, width - len(tree))))
        index.append(retrieve.index)
        next_token.append(retrieve.next_token)
        next_sibling.append(retrieve.next_sibling)
    return tuple(np.stack(a).astype(np.int64) for a in (candidates, index, next_token, next_sibling))


def _sample(
    trees: Arrays,
    probs: np.ndarray,
    coins: np.ndarray,
    final: np.ndarray,
    max_path_len: int,
    single: float,
    acc: float,
) -> Arrays:
    """predicts, accept_index, num_accepted of sglang-kernel's sampling."""
    from sgl_kernel import tree_speculative_sampling_target_only

    out = _outputs(trees[0].shape, max_path_len)
    target = _cuda(probs)
    tree_speculative_sampling_target_only(
        *out,
        *(_cuda(t) for t in trees),
        _cuda(coins),
        _cuda(final),
        target,
        torch.zeros_like(target),
        single,
        acc,
        True,
    )
    return tuple(t.cpu().numpy() for t in out)


def _greedy(trees: Arrays, target_predict: np.ndarray, max_path_len: int) -> Arrays:
    """predicts, accept_index, num_accepted of sglang-kernel's greedy acceptance."""
    from sgl_kernel import verify_tree_greedy

    out = _outputs(trees[0].shape, max_path_len)
    verify_tree_greedy(*out, *(_cuda(t) for t in trees), _cuda(target_predict.astype(np.int64)))
    return tuple(t.cpu().numpy() for t in out)


def _outputs(shape: tuple[int, ...], max_path_len: int) -> tuple[torch.Tensor, ...]:
    bs, width = shape
    return (
        torch.zeros(bs * width, dtype=torch.int32, device=DEVICE),
        torch.full((bs, max_path_len), -1, dtype=torch.int32, device=DEVICE),
        torch.zeros(bs, dtype=torch.int32, device=DEVICE),
    )


def _same(twin: TreeAcceptance, kernel: Arrays, b: int, width: int) -> bool:
    predicts, accept_index, num_accepted = kernel
    path = twin.accept_index[b]
    emitted = path[path >= 0]
    return (
        np.array_equal(path, accept_index[b])
        and twin.num_accepted[b] == num_accepted[b]
        and np.array_equal(twin.predicts[emitted], predicts[emitted])
    )


def _nearest_boundary(
    trees: Arrays,
    probs: np.ndarray,
    coins: np.ndarray,
    final: np.ndarray,
    twin: TreeAcceptance,
    b: int,
    acc: float,
) -> float:
    """How near a coin of row b comes to a boundary that it was compared with, on the twin's path."""
    candidates, _, next_token, next_sibling = trees
    width = candidates.shape[1]
    nearest = 1.0
    path = [i - b * width for i in twin.accept_index[b] if i >= 0]
    for node in path:
        child, running = next_token[b, node], 0.0
        while child != -1:
            running += float(probs[b, node, candidates[b, child]])
            nearest = min(nearest, abs(float(coins[b, node]) - running / acc))
            if child in path:
                break
            child = next_sibling[b, child]
    residual = probs[b, path[-1]].astype(np.float64)
    child = next_token[b, path[-1]]
    while child != -1:
        residual[candidates[b, child]] = 0
        child = next_sibling[b, child]
    whole = np.cumsum(probs[b, path[-1]].astype(np.float64))
    for cdf in (np.cumsum(residual), whole):
        nearest = min(nearest, float(np.abs(cdf - float(final[b]) * cdf[-1]).min()))
    return nearest


def _cuda(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE)
