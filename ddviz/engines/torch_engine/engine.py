"""The step loop: draft -> build -> compile -> verify -> commit, in three modes that differ in the tree alone.

In:  GenerateParams, a Control, a step recorder.
Out: Result; and the trace, written by the recorder from the tensors that the stages produced.
Not here: loading (models.py), what a step's record holds (record.py), the process around it (__main__.py).

    ddtree   best-first tree of `budget` nodes
    dflash   the same with one child a node and B-1 nodes: a chain
    ar       the root alone, n = 1: verification with nothing to accept is autoregressive decoding
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from ddviz.engines.base import Control, GenerateParams
from ddviz.engines.torch_engine.kv_cache import SlotCache
from ddviz.engines.torch_engine.models import Pair, device_name
from ddviz.engines.torch_engine.probs import target_probs, top_k
from ddviz.engines.torch_engine.record import RECORDED_CANDIDATES, NoRecording, Recording
from ddviz.engines.torch_engine.tuning import Choice
from ddviz.errors import EngineError, TraceError
from ddviz.trace.schema import FinishReason
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

PREFILL_CHUNK = 512  # tokens a prefill forward takes, so that progress shows and a stop is heard


class Draft(NamedTuple):
    """What the drafter's forward gave: candidates per position, falling. [B-1, K]"""

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]


class VerifyInput(NamedTuple):
    """What the target's forward is given, T = n."""

    prefix_len: int  # committed rows before the step
    retrieve: Retrieve
    positions: NDArray[np.int64]  # [n]
    slots: torch.Tensor  # [n]
    mask: NDArray[np.bool_]  # [n, n]


class Verdict(NamedTuple):
    """What the target said, and what was made of it."""

    forward: int  # the engine's forward counter
    logits: torch.Tensor  # [n, V] float32
    argmax: NDArray[np.int64] | None  # [n] greedy decisions follow it; None = sampled
    probs: torch.Tensor | None  # [n, V] float32 after temperature and filters; None = greedy
    coins: NDArray[np.float32] | None  # [n + 1], the last draws the bonus
    acceptance: TreeAcceptance
    outcome: AcceptedPath


class Committed(NamedTuple):
    source: torch.Tensor  # [k] slots
    destination: torch.Tensor  # [k]
    draft_positions: torch.Tensor | None  # [k] rows appended to the drafter's KV


@dataclass(slots=True)
class Run:
    """One request while it runs."""

    params: GenerateParams
    max_new_tokens: int
    cache: SlotCache
    draft_cache: SlotCache | None
    coins: np.random.Generator
    root: int = -1  # last emitted token, its KV not in the cache yet
    steps: int = 0
    output: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Result:
    output_ids: list[int]  # prefill token and all emitted
    finish_reason: FinishReason
    steps: int
    accept_lengths: list[int]  # per step, bonus counted, not cut
    decode_s: float  # prefill not counted

    @property
    def tokens_per_s(self) -> float:
        """Tokens that steps emitted, per second of decoding."""
        return max(0, len(self.output_ids) - 1) / self.decode_s if self.decode_s else 0.0


class TorchEngine:
    """Runs requests one at a time on a loaded pair."""

    name = "torch_engine"
    fault: str | None = None
    choice: Choice | None = None  # why it was loaded in its dtype, where that was measured

    def __init__(self, pair: Pair) -> None:
        self.pair, self.target, self.drafter = pair, pair.target, pair.drafter

    def describe(self) -> dict[str, Any]:
        """Facts of the engine for the trace header's `engine.options`."""
        options: dict[str, Any] = {
            "dtype": str(self.target.dtype).removeprefix("torch."),
            "attention": "sdpa",
            "torch": str(torch.__version__),
        }
        if self.drafter is not None:
            options["draft_dtype"] = str(self.drafter.dtype).removeprefix("torch.")
        if self.fault:
            options["fault"] = self.fault
        return options

    @property
    def device(self) -> str:
        return device_name(self.target.device)

    @torch.inference_mode()
    def generate(
        self,
        params: GenerateParams,
        record: Recording | NoRecording | None = None,
        control: Control | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Result:
        """Run one request to its end.

        on_prefill(done, total) is called while the prompt is read. Raises EngineError (DdvizError) for a
        request that can't run: bad values, no drafter, a prompt as long as the context. The recorder's errors
        pass through.
        """
        record, control = record or NoRecording(), control or Control()
        prompt_ids, text = self.prepare(params)
        run = self._new_run(_seeded(params), len(prompt_ids))
        record.begin(self, run, prompt_ids, text)
        try:
            self._prefill(run, prompt_ids, record, on_prefill, control)
            result = self._decode(run, record, control)
        except TraceError:
            raise  # nothing more can be written
        except KeyboardInterrupt:
            record.end(run, "stopped")
            raise
        except Exception as error:
            record.end(run, "error", message=f"{type(error).__name__}: {error}")
            raise
        record.end(run, result.finish_reason, result.decode_s)
        return result

    def prepare(self, params: GenerateParams) -> tuple[list[int], str]:
        """Check a request against the models; its prompt as ids and as text. Raises DdvizError."""
        params.checked()
        if params.mode != "ar" and self.drafter is None:
            raise EngineError(f"mode {params.mode} needs a drafter; pass --draft, or choose mode ar")
        prompt_ids, text = self.target.encode(params.prompt, params.chat)
        context = self.target.context_length
        if not prompt_ids:
            raise EngineError("the prompt has no tokens; type something to continue")
        if len(prompt_ids) >= context:
            raise EngineError(
                f"the prompt has {len(prompt_ids)} tokens, the target's context holds {context}, "
                "output included; shorten the prompt"
            )
        return prompt_ids, text

    def _decode(self, run: Run, record: Recording | NoRecording, control: Control) -> Result:
        start, accept_lengths = time.perf_counter(), []
        reason = self._finished(run) if run.output else "stopped"
        while reason is None:
            if control.before_step():
                accept_lengths.append(self._step(run, record))
                reason = self._finished(run)
            else:
                reason = "stopped"
        return Result(run.output, reason, run.steps, accept_lengths, time.perf_counter() - start)

    # ---------------------------------------------------------------- one step: five stages

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
            return _root_alone(run.root)
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
        """Pack the accepted KV, hand the accepted features to the drafter, emit; the bonus becomes the
        root.
        """
        path = torch.from_numpy(verdict.outcome.path)
        source, destination = self.pack(run, inputs.slots, path)
        draft_positions = None
        if run.draft_cache is not None:
            features = self.features()[path.to(self.target.device)]
            draft_positions = self.drafter.append_context(features, run.draft_cache)
        emitted = self._cut(run, verdict.outcome.emitted.tolist())
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
        """The committed prefix, seen by all, and the tree's own mask.

        None where a single token needs no mask.
        """
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

    # ---------------------------------------------------------------- begin and end

    def _new_run(self, params: GenerateParams, prompt_len: int) -> Run:
        max_new_tokens = min(params.max_new_tokens, self.target.context_length - prompt_len)
        drafts = params.mode != "ar"
        nodes = 1 if not drafts else max(params.budget, self.drafter.block_size) + 1
        capacity = prompt_len + max_new_tokens + nodes
        return Run(
            params=params,
            max_new_tokens=max_new_tokens,
            cache=self.target.new_cache(capacity),
            draft_cache=self.drafter.new_cache(capacity + self.drafter.block_size) if drafts else None,
            coins=np.random.Generator(np.random.Philox(params.seed)),
        )

    def _prefill(
        self,
        run: Run,
        prompt_ids: list[int],
        record: Recording | NoRecording,
        on_prefill: Callable[[int, int], None] | None,
        control: Control,
    ) -> None:
        """Read the prompt in chunks; the first output token is sampled from its last row.

        Stopped on the way, it leaves no output.
        """
        start = time.perf_counter()
        ids = torch.tensor(prompt_ids, device=self.target.device)
        for begin in range(0, len(prompt_ids), PREFILL_CHUNK):
            if on_prefill is not None:
                on_prefill(begin, len(prompt_ids))
            chunk = ids[begin : begin + PREFILL_CHUNK]
            positions = torch.arange(begin, begin + len(chunk), device=ids.device)
            hidden = self.target.forward(chunk, positions, run.cache)
            run.cache.advance(len(chunk))
            if run.draft_cache is not None:
                self.drafter.append_context(self.features(), run.draft_cache)
            if control.stopped:
                return
        tree = _root_alone(prompt_ids[-1])
        first = self._accept(
            run, tree, compile_ddtree_retrieve(tree.parents), self.target.logits(hidden[-1:])
        )
        run.root = int(first.outcome.emitted[-1])
        run.output.append(run.root)
        record.prefill(run, first, time.perf_counter() - start)

    def _cut(self, run: Run, emitted: list[int]) -> list[int]:
        """What may join the output: up to a stop token, and no more than max_new_tokens."""
        for index, token in enumerate(emitted):
            if token in self.target.stop_ids:
                emitted = emitted[: index + 1]
                break
        return emitted[: run.max_new_tokens - len(run.output)]

    def _finished(self, run: Run) -> FinishReason | None:
        if run.output[-1] in self.target.stop_ids:
            return "stop"
        if len(run.output) < run.max_new_tokens:
            return None
        return "length" if run.max_new_tokens == run.params.max_new_tokens else "context"


def _seeded(params: GenerateParams) -> GenerateParams:
    """The same request with a seed: where none was asked for, a fresh one, which the trace will name."""
    return params if params.seed is not None else msgspec.structs.replace(params, seed=secrets.randbits(32))


def _root_alone(token: int) -> DraftTree:
    return DraftTree(
        tokens=np.array([token], np.int64),
        parents=np.array([-1], np.int32),
        depths=np.zeros(1, np.int32),
        ranks=np.zeros(1, np.int32),
        scores=np.zeros(1, np.float32),
    )
