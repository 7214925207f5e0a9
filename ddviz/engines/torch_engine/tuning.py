"""Which dtype and tree decode fastest on this CPU: measured once, kept in the user's cache.

In:  names of target and drafter.
Out: Choice, shown by Live. `ddviz record` and `ddviz bench` don't use it:
they default to float32, 16-4, reproducible.
Not here: whether a dtype is right; bfloat16 may part from autoregressive output at near-ties.

A CPU with bf16 matrix units verifies a tree in bfloat16 for little more than one token; one without them is
several times faster in float32. The rate of a setting is its accept length on the demo pair's greedy table
over the measured time of a draft and a verify.
"""

import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec
import torch
from filelock import FileLock, Timeout

from ddviz.cache import cache_root
from ddviz.engines.torch_engine.models import Pair, device_name, load_pair

ACCEPT_LENGTH = {
    (16, 4): 3.35,
    (32, 8): 3.65,
    (64, 0): 3.93,
}  # (budget, topk_cap): mean of the 60 prompts at T = 0
CONTEXT = 200  # committed tokens while measuring
REPEATS = 4


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    dtype: str
    budget: int
    topk_cap: int
    tokens_per_s: float  # estimated for the choice
    ar_tokens_per_s: float  # estimated for autoregression in its faster dtype

    @property
    def sentence(self) -> str:
        """What was chosen, true also where no tree is worth its cost, and how to have it measured again."""
        faster = ", which is faster here" if self.ar_tokens_per_s > self.tokens_per_s else ""
        return (
            f"the fastest tree as measured on this machine: {self.dtype}, budget {self.budget}, "
            f"cap {self.topk_cap}, about {self.tokens_per_s:.0f} tokens/s; "
            f"autoregressive about {self.ar_tokens_per_s:.0f}{faster}. "
            "Measured once, beside whatever else ran; "
            f"to measure again, delete {_told(tuning_file())} and start ddviz again."
        )


def choose(target: str, draft: str, on_measure: Callable[[str], None] = lambda sentence: None) -> Choice:
    """The cached choice for this machine, torch and pair, measured first where there is none (about 15 s).

    Two processes may ask at once: one measures, undisturbed by the other, which waits and reads the result.
    """
    cache = tuning_file()
    key = "|".join([device_name(torch.device("cpu")), torch.__version__, target, draft])
    if key in (known := _read(cache)):
        return known[key]
    with _alone(cache, on_measure):
        known = _read(cache)  # again: another process may have measured meanwhile
        if key not in known:
            on_measure("measuring this machine once, to choose between float32 and bfloat16")
            known[key] = measure(target, draft)
            _write(cache, known)
    return known[key]


def tuning_file() -> Path:
    """Where the choices are kept."""
    return cache_root() / "tuning.json"


def measure(target: str, draft: str) -> Choice:
    """The dtype by the default tree; then, in that dtype, the tree."""
    default, plain, rates = next(iter(ACCEPT_LENGTH)), [], {}
    for dtype in ("float32", "bfloat16"):
        pair = load_pair(target, draft, dtype, "cpu")
        plain.append(1 / step_seconds(pair, nodes=1, drafted=False))
        rates[dtype] = rate_of(pair, default)
    dtype = max(rates, key=rates.__getitem__)
    pair = load_pair(target, draft, dtype, "cpu")
    by_setting = {setting: rate_of(pair, setting) for setting in ACCEPT_LENGTH}
    (budget, cap), rate = max(by_setting.items(), key=lambda item: item[1])
    return Choice(
        dtype=dtype,
        budget=budget,
        topk_cap=cap,
        tokens_per_s=round(rate, 1),
        ar_tokens_per_s=round(max(plain), 1),
    )


def rate_of(pair: Pair, setting: tuple[int, int]) -> float:
    """Tokens/s that a step of this setting would give on text like the demo pair's."""
    return ACCEPT_LENGTH[setting] / step_seconds(pair, nodes=setting[0] + 1, drafted=True)


@torch.inference_mode()
def step_seconds(pair: Pair, nodes: int, drafted: bool) -> float:
    """Median seconds of a target forward over `nodes` nodes, and of a draft before it."""
    target, drafter = pair.target, pair.drafter
    cache = target.new_cache(CONTEXT + nodes)
    cache.advance(CONTEXT)
    tokens = torch.zeros(nodes, dtype=torch.long)
    positions = torch.arange(CONTEXT, CONTEXT + nodes)
    mask = None if nodes == 1 else torch.ones(nodes, CONTEXT + nodes, dtype=torch.bool)
    draft_cache = drafter.new_cache(CONTEXT + drafter.block_size)
    draft_cache.advance(CONTEXT)
    block = target.embed(torch.zeros(drafter.block_size, dtype=torch.long))
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        if drafted:
            target.logits(drafter(block, draft_cache).to(target.dtype))
        target.logits(target.forward(tokens, positions, cache, mask))
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _alone(cache: Path, report: Callable[[str], None]) -> AbstractContextManager[object]:
    """Holds the lock beside the cache, waiting for who holds it; nothing where no file can be written."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache.with_name(".tuning.lock"))
        try:
            return lock.acquire(timeout=0)
        except Timeout:
            report("another ddviz measures this machine: waiting for it")
            return lock.acquire()
    except (OSError, NotImplementedError):
        return nullcontext()


def _told(path: Path) -> str:
    """The path as a shell takes it, the home folder short."""
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def _read(cache: Path) -> dict[str, Choice]:
    """What is known; a file that is missing or damaged counts as empty."""
    try:
        return msgspec.json.decode(cache.read_bytes(), type=dict[str, Choice])
    except (OSError, msgspec.MsgspecError):
        return {}


def _write(cache: Path, known: dict[str, Choice]) -> None:
    """Keep what is known; where that can't be written, the next start measures again."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        fresh = cache.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(msgspec.json.encode(known))
        fresh.replace(cache)
    except OSError:
        pass
