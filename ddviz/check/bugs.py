"""Real bugs of tree and block speculative decoding, and what would have told them.

In:  public issues and pull requests, read in 2026.
Out: BUGS, the second table of docs/doctor.md.
Not here: the rules (rules_*.py).

Each row says which rule would have spoken, had the engine been traced; a row without rules says why no rule
can. Where the signal lies in what a trace does not hold, the audit may still see the effect.
"""

from typing import NamedTuple


class Bug(NamedTuple):
    references: tuple[str, ...]  # OWNER/REPOSITORY#NUMBER
    wrong: str  # what the engine did, and why
    signal: str  # what of it stands in a trace
    rules: tuple[str, ...] = ()  # that speak
    beyond: str = ""  # what else tells, or why no rule can


def _sglang(*numbers: int) -> tuple[str, ...]:
    return tuple(f"sgl-project/sglang#{number}" for number in numbers)


def _vllm(*numbers: int) -> tuple[str, ...]:
    return tuple(f"vllm-project/vllm#{number}" for number in numbers)


AUDIT = "`ddviz audit` sees the wrong logits"


BUGS: tuple[Bug, ...] = (
    Bug(
        _sglang(15360),
        "trees with several children: the KV of accepted nodes stayed at its tree slots, the next step "
        "read the front ones, and text fell apart after a few steps",
        "`commit.dst_slots` are not the step's first slots; later steps write over what was committed",
        ("commit", "kept-slots"),
        f"{AUDIT} where slots look right and only the move is missing",
    ),
    Bug(
        _sglang(18744, 18803),
        "overlap scheduling gave a request's row of the slot table away while the forward before still "
        "read it",
        "two running requests write one slot, or a step's slots change between verify and commit",
        ("shared-slots", "commit"),
    ),
    Bug(
        _sglang(26380, 28843, 29353, 31687, 29541, 29556),
        "a write-after-read barrier between the scheduler's stream and the speculative graph was missing "
        "or too wide",
        "a race: sometimes a step's arrays contradict each other, more often only its logits are wrong; a"
        " barrier that is too wide shows as time",
        ("shapes", "links", "accept-index", "stage-time"),
        f"{AUDIT}; the race itself is in no trace, which holds no events of streams",
    ),
    Bug(
        _sglang(31072),
        "an event was recorded on one runner and waited for on another: the server hung",
        "the trace ends without an end event after a step that took for ever",
        ("incomplete", "stage-time"),
    ),
    Bug(
        _sglang(33579, 33581),
        "near the context's end a step wrote 2T rows where T + 4 were reserved: into the next request's row",
        "`commit.reserved_len` is beyond `row_width`; a neighbour's slots repeat",
        ("row-width", "shared-slots"),
    ),
    Bug(
        _sglang(28179, 28180, 28200, 28535, 28242, 40244),
        "DFLASH left out repetition and frequency penalties and min_new_tokens: endless loops",
        "the filtered rows equal the raw ones; but a trace does not say which penalties the request asked"
        " for",
        (),
        "none: compare `target.filtered` with `target.raw` in the app",
    ),
    Bug(
        _sglang(35771),
        "a coin of exactly 0 passes `coin <= sum` where the sum is 0: a token of probability 0 is emitted",
        "an accepted child with a target_prob of 0, the coin beside it",
        ("zero-probability",),
    ),
    Bug(
        _sglang(39160, 39287, 27469),
        "sliding windows counted a tree's flat indices as distances, not its depths",
        "the windows are the attention kernel's own: mask and positions are right, logits are not",
        (),
        AUDIT,
    ),
    Bug(
        _sglang(31978, 31979),
        "the grammar's mask was not applied to the rows of verify: output broke the grammar",
        "a trace does not hold the grammar",
        (),
        "none: the grammar that the request names must judge the text",
    ),
    Bug(
        _sglang(30096, 27165),
        "structured output together with DFLASH was refused",
        "the request never reached a step: no trace, or one that ends with an error and its reason",
        ("incomplete",),
    ),
    Bug(
        _sglang(27789, 7130, 6888),
        "pages that were allocated for a tree and not accepted were never freed: the pool's check failed "
        "when idle",
        "`reserved_len` runs away from `committed_len`, which is allowed, until it exceeds the row",
        ("row-width",),
        "only once the row is full; the allocator's free list is in no trace",
    ),
    Bug(
        _sglang(24361, 24401),
        "NGRAM in a padded batch: mask and indices were shorter than the rows that the kernel read",
        "the mask holds fewer bits than T x T, or an index list is shorter than T",
        ("shapes",),
    ),
    Bug(
        _sglang(24697),
        "after sleep and wake-up, graphs still pointed at the drafter's old buffers: a crash",
        "the trace ends without an end event; where it did not crash, the drafter guesses blindly",
        ("incomplete", "accept-collapse"),
    ),
    Bug(
        _sglang(33872, 33800),
        "an auxiliary state of fixed width held four draft tokens: wrong output as soon as there were more",
        "acceptance by depth falls off at one index; the state itself is not recorded",
        (),
        f"{AUDIT}; `ddviz stats` shows acceptance by depth",
    ),
    Bug(
        _sglang(35150, 36548),
        "hybrid models committed the recurrent state of another index, in batches of two and more",
        "the state is not recorded: arrays are right, logits of the next step are not",
        (),
        AUDIT,
    ),
    Bug(
        ("sgl-project/sglang#7477", "volcengine/verl#2157"),
        "NaN in logits or probabilities went into the tree builder: `invalid eagle tree`",
        "null among scores, draft log-probabilities or node_probs; `target.nonfinite`",
        ("nonfinite", "draft-rows"),
    ),
    Bug(
        _sglang(27338, 27460),
        "an index buffer was sized without the draft tokens: a write out of its bounds",
        "a step writes beyond what its request has reserved",
        ("row-width",),
        "the buffer's own size is in no trace",
    ),
    Bug(
        _sglang(26972),
        "pages and several children: a draft with holes is longer than the row's headroom",
        "as for #33579: the step writes beyond what is reserved",
        ("row-width",),
    ),
    Bug(
        _sglang(26329),
        "hidden states of a chunked prefill's last chunk were not handed to the drafter",
        "the drafter's KV is shorter than the committed text",
        ("draft-kv", "accept-collapse"),
        f"{AUDIT} of the draft",
    ),
    Bug(
        _sglang(38009),
        "DFLASH greedy parted from plain greedy in thinking mode",
        "the step where it parted: its margin tells a tie from a bug",
        ("near-tie",),
        f"{AUDIT} where it is no tie; `ddviz diff` finds the step",
    ),
    Bug(
        _sglang(32922),
        "one platform always took the greedy branch: the temperature was ignored",
        "`accept.kernel` is greedy though the request's temperature is not 0",
        ("kernel-choice", "filters"),
    ),
    Bug(
        _sglang(29907),
        "review of a DDTree: sampled requests verified greedily, ids of a vocabulary's shard taken for "
        "ids of the whole, a logits buffer too small, a mask built on the host in every step",
        "the kernel's name; ids that are not those of the draft or beyond the vocabulary; lists too "
        "short; time",
        ("kernel-choice", "draft-tokens", "token-range", "shapes", "stage-time"),
    ),
    Bug(
        _sglang(29587),
        "a test passed with a wrong mask: rows and columns were confused in the test as well",
        "a row of the mask is not the chain of its node's ancestors",
        ("mask",),
    ),
    Bug(
        ("z-lab/dflash#38", "z-lab/dflash#61"),
        "illegal memory accesses in a DFLASH worker: indices did not fit the buffers",
        "ids out of range, or no end event after the crash",
        ("token-range", "links", "retrieve-index", "incomplete"),
    ),
    Bug(
        ("z-lab/dflash#4", "z-lab/dflash#57", "z-lab/dflash#159", "vllm-project/vllm#54928"),
        "`lossless` output differed from the baseline: bfloat16 rounds otherwise in batches of another shape",
        "the two best logits are closer than the number format resolves at the token where the texts part",
        ("near-tie",),
        "`ddviz diff` finds the token; the same run in float32 decides",
    ),
    Bug(
        _vllm(49559, 49614),
        "the drafter was fed hidden states of a wrong layer or offset: under 1 % accepted",
        "nothing is accepted for many steps, and the target's argmax is not among the candidates of depth 1",
        ("accept-collapse",),
        "`ddviz audit` computes the draft again",
    ),
    Bug(
        _vllm(55279),
        "a counter only ever grew: out of bounds after some 11,000 steps",
        "a number of a forward that does not rise, or a length beyond its bound",
        ("batch-order", "row-width", "incomplete"),
        "only if the counter is one that is recorded",
    ),
    Bug(
        ("vllm-project/vllm#54360", "z-lab/dflash#165"),
        "the prefix cache never hit, since the drafter's KV was kept apart from the target's",
        "`prefill.cached_tokens` is 0 for a prompt that was read before",
        (),
        "none: a cache may be off, or emptied meanwhile; look at `cached_tokens` of both traces",
    ),
    Bug(
        _vllm(42910, 40809),
        "a port of DDTree used one mask for the whole batch, and positions by index",
        "positions are not prefix_len + depth; the mask is that of another tree",
        ("positions", "mask"),
        AUDIT,
    ),
    Bug(
        ("vllm-project/vllm-ascend#11374",),
        "the drafter's head was overwritten by the target's: acceptance fell from 25 to 1.7 %",
        "nothing is accepted for many steps, and the target's argmax is not among the candidates of depth 1",
        ("accept-collapse",),
        "`ddviz audit` computes the draft again",
    ),
    Bug(
        ("vllm-project/vllm-ascend#9340",),
        "positions were used as slots where positions have several axes",
        "slots repeat among siblings, which share a position; another request's slots are written",
        ("slots", "shared-slots"),
    ),
    Bug(
        (
            "Avarok-Cybersecurity/atlas#302",
            "Avarok-Cybersecurity/atlas#655",
            "guoqingbao/xinfer#481",
        ),
        "stale or dropped rows in the drafter's KV, in batches of two or right after prefill: acceptance "
        "collapsed",
        "the drafter's KV does not grow by the accepted path, or is empty at the first step",
        ("draft-kv", "accept-collapse"),
        "`ddviz audit` computes the draft again",
    ),
    Bug(
        (
            "ggml-org/llama.cpp#25792",
            "ggml-org/llama.cpp#27407",
            "ggml-org/llama.cpp#27975",
            "Luce-Org/lucebox#642",
        ),
        "a malformed tree was accepted silently and degenerated to its root",
        "one node though the budget allows more; nodes that no link reaches",
        ("best-first", "parents", "links"),
    ),
    Bug(
        _vllm(42121),
        "tree attention was removed upstream: there is no backend that is maintained",
        "nothing: no engine, no trace",
        (),
        "none",
    ),
)
