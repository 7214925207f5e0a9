"""One decoding step: draft -> build -> compile -> verify -> commit, five stages in three modes.

In:  a Run whose prompt is read, a step recorder.
Out: the Run one step further; the step, recorded from the tensors that the stages produced.
Not here: the request around its steps (engine.py), the values between the stages (run.py).

    ddtree   best-first tree of `budget` nodes
    dflash   the same with one child a node and B-1 nodes: a chain
    ar       the root alone, n = 1: verification with nothing to accept is autoregressive decoding
"""

import numpy as np
import torch
from numpy.typing import NDArray

from ddviz.engines.base import RECORDED_CANDIDATES
from ddviz.engines.torch_engine.models import Pair
from ddviz.engines.torch_engine.probs import target_probs, top_k
from ddviz.engines.torch_engine.record import NoRecording, Recording
from ddviz.engines.torch_engine.run import Committed, Draft, Run, Verdict, VerifyInput
from ddviz.tree import (
    AcceptedPath,
    DraftTree,
    Retrieve,
    TreeAcceptance,
    accepted_paths,
    build_tree,
    compile_ddtree_retrieve,
    follow_verified_tree,
    is_greedy,
    node_positions,
    sample_tree_paths,
    tree_mask,
)


class StepEngine:
    """The five stages on a loaded pair, and their parts, each of which a fault can replace (faults.py)."""

    def __init__(self, pair: Pair) -> None:
        self.pair, self.target, self.drafter = pair, pair.target, pair.drafter

    def _step(self, run: Run, record: Recording | NoRecording) -> int:
        with record.stage("draft"):
            draft = self.draft(run)
        with record.stage("build"):
            tree = self.build(run, draft)
        with record.stage("compile"):
            inputs = self.compile(run, tree)
        with record.stage("verify"):
            verdict = self.verify(run, tree, inputs)
        with record.stage("commit"):
            committed, emitted = self.commit(run, inputs, verdict)
        record.step(run, draft, tree, inputs, verdict, committed, emitted)
        run.steps += 1
        return len(verdict.outcome.path)

    def draft(self, run: Run) -> Draft | None:
        """One forward of the drafter: candidates for the B-1 positions after the root. None in mode ar."""
        if run.draft_cache is None:
            return None
        drafter = self.drafter
        block = torch.full((drafter.block_size,), drafter.mask_token_id, device=self.target.device)
        block[0] = run.root
        hidden = drafter(self.target.embed(block), run.draft_cache)
        logits = self.target.logits(hidden.to(self.target.dtype))
        values, tokens = top_k(logits, min(max(RECORDED_CANDIDATES, self._width(run) + 1), logits.shape[-1]))
        logprobs = values - logits.logsumexp(dim=-1, keepdim=True)
        return Draft(tokens.cpu().numpy(), logprobs.cpu().numpy())

    def build(self, run: Run, draft: Draft | None) -> DraftTree:
        """The draft tree: best-first, a chain, or the root alone."""
        if draft is None:
            return root_alone(run.root)
        width = self._width(run)
        budget = self.drafter.block_size - 1 if run.params.mode == "dflash" else run.params.budget
        return build_tree(draft.logprobs[:, :width], draft.tokens[:, :width], run.root, budget, width)

    def compile(self, run: Run, tree: DraftTree) -> VerifyInput:
        """Links for the acceptance, positions by depth, slots by index, and the ancestor mask."""
        return VerifyInput(
            run.cache.length,
            compile_ddtree_retrieve(tree.parents),
            self.positions(run, tree),
            run.cache.slots(len(tree)),
            self.mask(tree),
        )

    def verify(self, run: Run, tree: DraftTree, inputs: VerifyInput) -> Verdict:
        """One forward of the target over all nodes, then greedy or sampled acceptance."""
        device = self.target.device
        hidden = self.target.forward(
            torch.from_numpy(tree.tokens).to(device),
            torch.from_numpy(inputs.positions).to(device),
            run.cache,
            self._attention_mask(run, inputs.mask),
        )
        return self._accept(run, tree, inputs.retrieve, self.target.logits(hidden))

    def commit(self, run: Run, inputs: VerifyInput, verdict: Verdict) -> tuple[Committed, list[int]]:
        """Pack the accepted KV, hand its features to the drafter, emit; the bonus becomes the root."""
        path = torch.from_numpy(verdict.outcome.path)
        source, destination = self.pack(run, inputs.slots, path)
        draft_positions = None
        if run.draft_cache is not None:
            features = self.features()[path.to(self.target.device)]
            draft_positions = self.drafter.append_context(features, run.draft_cache)
        emitted = run.cut(verdict.outcome.emitted.tolist())
        run.output += emitted
        run.root = int(verdict.outcome.emitted[-1])
        return Committed(source, destination, draft_positions), emitted

    # ---------------------------------------------------------------- parts of the stages, each with one job

    def positions(self, run: Run, tree: DraftTree) -> NDArray[np.int64]:
        return node_positions(run.cache.length, tree.depths)

    def mask(self, tree: DraftTree) -> NDArray[np.bool_]:
        return tree_mask(tree.parents)

    def local_path(self, acceptance: TreeAcceptance, width: int) -> AcceptedPath:
        """Flat ids to node indices: this engine runs one request, so row 0."""
        return accepted_paths(acceptance, width)[0]

    def draw_coins(self, run: Run, n: int) -> NDArray[np.float32]:
        """n coins for the nodes and one for the bonus."""
        return run.coins.random(n + 1, dtype=np.float32)

    def decides_greedily(self, run: Run) -> bool:
        return is_greedy(run.params.temperature, run.params.top_k)

    def pack(self, run: Run, slots: torch.Tensor, path: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return run.cache.commit(slots, path)

    def features(self) -> torch.Tensor:
        return self.target.features(self.drafter.target_layer_ids)

    def _width(self, run: Run) -> int:
        """Children a node may have: K of the tree rule."""
        if run.params.mode == "dflash":
            return 1
        cap = run.params.topk_cap or run.params.budget
        return min(cap, run.params.budget, self.target.vocab_size)

    def _attention_mask(self, run: Run, mask: NDArray[np.bool_]) -> torch.Tensor | None:
        """[n, committed + n]: the prefix, seen by all, and the tree's own mask; None for one token."""
        n = len(mask)
        if n == 1:
            return None
        full = torch.ones(n, run.cache.length + n, dtype=torch.bool, device=self.target.device)
        full[:, run.cache.length :] = torch.from_numpy(mask)
        return full

    def _accept(self, run: Run, tree: DraftTree, retrieve: Retrieve, logits: torch.Tensor) -> Verdict:
        n = len(tree)
        links = [
            array[None] for array in (tree.tokens, retrieve.index, retrieve.next_token, retrieve.next_sibling)
        ]
        longest = self.drafter.block_size if self.drafter is not None else 1
        if self.decides_greedily(run):
            argmax = logits.argmax(dim=-1).cpu().numpy()
            acceptance = follow_verified_tree(*links, argmax[None], longest)
            return Verdict(
                self.target.forwards, logits, argmax, None, None, acceptance, self.local_path(acceptance, n)
            )
        params = run.params
        probs = target_probs(logits, params.temperature, params.top_k, params.top_p)
        coins = self.draw_coins(run, n)
        acceptance = sample_tree_paths(
            *links,
            probs.cpu().numpy()[None],
            coins[None, :n],
            coins[n:],
            longest,
            params.threshold_single,
            params.threshold_acc,
        )
        return Verdict(
            self.target.forwards, logits, None, probs, coins, acceptance, self.local_path(acceptance, n)
        )


def root_alone(token: int) -> DraftTree:
    """The tree of a step that drafts nothing."""
    return DraftTree(
        tokens=np.array([token], np.int64),
        parents=np.array([-1], np.int32),
        depths=np.zeros(1, np.int32),
        ranks=np.zeros(1, np.int32),
        scores=np.zeros(1, np.float32),
    )
