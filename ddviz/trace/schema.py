"""The trace file's events, one Struct each: the only description of the format that code reads.

A trace is JSON Lines, each line one event tagged by "event", each line its own zstd frame (frames.py). One
file is one request. docs/trace-format.md and docs/trace-schema.json are generated from this file.

A step holds what the engine's own buffers held, never what could be derived from them: the difference is the
bug one looks for. Absent is null (None), and -1 is the kernels' "none". Letters: n nodes with the root, T
width of the kernel's arrays (T >= n), B block size, K draft candidates kept per position, m target tokens
kept per node.
JSON has no NaN: such a value is null, and `target.nonfinite` counts them.
"""

from typing import Literal

from msgspec import Struct

FORMAT = "ddviz-trace"
VERSION = "1.0"  # major.minor; readers refuse a newer major, and skip what they do not know of a newer minor

Algorithm = Literal["AR", "DDTREE", "DFLASH", "EAGLE", "EAGLE3", "NGRAM"]
CaptureLevel = Literal["light", "standard", "full"]
STAGES = ("draft", "build", "compile", "verify", "commit")  # of a step, in order
FinishReason = Literal["stop", "length", "context", "stopped", "error", "unknown"]  # unknown: an import's gap


class Event(Struct, tag_field="event", omit_defaults=True):
    """Base of every line of a trace."""


class Part(Struct, omit_defaults=True):
    """Base of every object inside an event."""


class EngineInfo(Part, kw_only=True):
    name: str  # torch_engine, sglang, or your own
    version: str
    device: str | None = None  # "cpu: AMD EPYC, 2 threads", "cuda: NVIDIA H200"
    options: dict[str, str | int | float | bool | None] = {}  # dtype, attention backend, fault ...


class SamplingParams(Part, kw_only=True, omit_defaults=False):
    temperature: float = 0.0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    seed: int | None = None
    max_new_tokens: int | None = None
    stop_token_ids: list[int] = []


class Header(Event, tag="header", kw_only=True, omit_defaults=False):
    """First line: who made the trace, with what."""

    format: str = FORMAT
    version: str = VERSION
    created: str  # ISO 8601, UTC
    engine: EngineInfo
    algorithm: Algorithm  # AR: n = 1 and no draft
    target: str  # model id or folder name
    draft: str | None = None
    block_size: int | None = None  # B
    budget: int | None = None  # nodes allowed beside the root
    topk_cap: int | None = None  # children a parent may have, 0 = no cap
    sampling: SamplingParams
    threshold_single: float = 1.0
    threshold_acc: float = 1.0
    score_kind: Literal["logprob", "prob", "none"] = "logprob"  # of tree.scores
    vocab_size: int | None = None
    level: CaptureLevel = "standard"
    request_id: str
    notes: list[str] = []  # sentences for the reader: a clamped cap, an import's gaps


class Prompt(Event, tag="prompt", kw_only=True):
    token_ids: list[int]
    text: str  # as rendered by the chat template


class Prefill(Event, tag="prefill", kw_only=True):
    """The first output token, sampled in prefill: the root of step 0. A retracted request writes another."""

    token: int
    prob: float | None = None  # the sampled distribution's value for it (greedy: softmax of the raw logits)
    coin: float | None = None  # uniform sample it was drawn with; null for greedy
    cached_tokens: int = 0  # prompt tokens found in the prefix cache
    time_us: float | None = None


class Tokens(Event, tag="tokens", kw_only=True):
    """Raw bytes of token ids, each id once, before the first event that names it: base64.

    A trace has one even where no id has a text: an empty one.
    """

    bytes: dict[int, bytes]


class Batch(Part, kw_only=True):
    id: int  # the engine's forward counter; traces of one server join on it
    size: int
    row: int  # b of flat = b*T + node
    q_len: int  # T
    mode: Literal["eager", "graph"] = "eager"


class Draft(Part, kw_only=True):
    """The drafter's distribution, one row per position 1 .. B-1, candidates falling."""

    top_ids: list[list[int]]  # [B-1][K]
    top_logprobs: list[list[float | None]] | None = None  # [B-1][K] at temperature 1, 5 digits


class Tree(Part, kw_only=True):
    tokens: list[int]  # [n] tokens[0] = root
    parents: list[int]  # [n] parents[0] = -1
    ranks: list[int] | None = None  # [n] in the draft distribution
    scores: list[float | None] | None = None  # [n] float32; see header.score_kind


class Retrieve(Part, kw_only=True):
    """As the kernel got them."""

    index: list[int]  # [T] flat
    next_token: list[int]  # [T] local, -1 = no child
    next_sibling: list[int]  # [T] local, -1 = last sibling


class TargetRows(Part, kw_only=True):
    """The target's logits, one row per node, reduced. Lists are [n]."""

    top_ids: list[list[int]]  # [n][m] by raw logit
    top_probs: list[list[float | None]]  # [n][m] softmax of the raw logits, 5 digits
    entropy: list[float | None]  # of the raw softmax, nats, 5 digits
    logsumexp: list[float | None]  # of the raw logits, 5 digits
    argmax: list[int]
    margin: list[float | None]  # best raw logit - second, float32
    node_probs: list[float | None] | None = None  # raw softmax, node's token in its parent's row; root null


class FilteredRows(Part, kw_only=True):
    """After penalties, bias, grammar, temperature, top-k and top-p: what acceptance used. Lists are [n]."""

    node_probs: list[float | None]  # target_prob: the node's token in its parent's row, float32; root null
    top_ids: list[list[int]] | None = None  # [n][m]
    top_probs: list[list[float | None]] | None = None  # [n][m] 5 digits


class Target(Part, kw_only=True):
    raw: TargetRows
    filtered: FilteredRows | None = None  # null for a greedy step whose logits nothing changed
    nonfinite: int = 0  # NaN and infinities in the logits

    @property
    def argmax(self) -> list[int]:
        """[n] what a greedy step follows: of the raw logits, or of those that something changed."""
        if self.filtered is None or self.filtered.top_ids is None:
            return self.raw.argmax
        return [row[0] for row in self.filtered.top_ids]

    @property
    def margin(self) -> list[float | None]:
        """[n] by how much `argmax` leads the raw logits; null where a change put it first."""
        pairs = zip(self.raw.margin, self.raw.argmax, self.argmax, strict=False)
        return [margin if raw == token else None for margin, raw, token in pairs]


class Sampling(Part, kw_only=True):
    """What the sampled decision used; null for a greedy step. All float32."""

    coins: list[float | None]  # [n] coin i decides among the children of node i; null = NaN
    final_coin: float | None
    residual_sum: float | None  # mass the bonus was drawn from
    bonus_cdf: float | None  # residual mass of the tokens before the bonus
    bonus_prob: float | None  # residual mass of the bonus


class Accept(Part, kw_only=True):
    index: list[int]  # flat, as the kernel wrote it, root first, without the -1 tail
    num_accepted: int  # root and bonus not counted
    predicts: list[int]  # predicts[i] = token emitted after index[i]; the last is the bonus
    bonus: int
    kernel: Literal["greedy", "sampled"]  # which rule decided


class Commit(Part, kw_only=True):
    src_slots: list[int]  # where the accepted nodes' KV was
    dst_slots: list[int]  # where it is now
    committed_len: int  # KV rows committed after this step
    reserved_len: int | None = None  # rows the request may write
    row_width: int | None = None  # rows it owns
    draft_kv_positions: list[int] | None = None  # positions appended to the drafter's KV
    draft_kv_rows: int | None = None  # its length afterwards


class Step(Event, tag="step", kw_only=True):
    """One decoding step: draft -> build -> compile -> verify -> commit."""

    index: int  # 0, 1, 2 ...
    prefix_len: int  # KV rows committed before the step = position of the root
    batch: Batch | None = None
    draft: Draft | None = None
    tree: Tree
    retrieve: Retrieve | None = None
    positions: list[int] | None = None  # [T]
    slots: list[int] | None = None  # [T] KV slot of each node
    mask: bytes | None = None  # base64 of packbits(mask[T, T], axis=1, bitorder="little")
    target: Target | None = None
    sampling: Sampling | None = None
    accept: Accept
    commit: Commit | None = None
    emitted: list[int]  # tokens that joined the output: predicts, cut at a stop token or max_new_tokens
    times_us: dict[str, float] = {}  # microseconds per stage

    @property
    def total_us(self) -> float | None:
        """Microseconds of the whole step: the entry `total` or `step`, else the sum of its stages."""
        times = self.times_us
        return times.get("total", times.get("step", sum(times.values()))) if times else None

    @property
    def flat_root(self) -> int:
        """Flat index of node 0, row*T; local = flat - this.

        Where the batch was not recorded: what the kernel got for the root, else what it wrote first.
        """
        if self.batch is not None:
            return self.batch.row * self.batch.q_len
        recorded = self.retrieve.index if self.retrieve is not None else []
        return (recorded or self.accept.index or [0])[0]

    @property
    def local_path(self) -> list[int]:
        """The accepted path by local index, as it was recorded: it may be none."""
        root = self.flat_root
        return [flat - root for flat in self.accept.index]


class Dropped(Event, tag="dropped", kw_only=True):
    """Steps the recorder could not keep."""

    first: int
    last: int
    reason: str


class End(Event, tag="end", kw_only=True):
    finish_reason: FinishReason
    output_ids: list[int]  # prefill token + all emitted
    steps: int
    time_us: float | None = None  # decoding, prefill not counted
    message: str | None = None  # why, for "error"
    engine_text: str | None = None  # the engine's own detokenised text


AnyEvent = Header | Prompt | Prefill | Tokens | Step | Dropped | End
