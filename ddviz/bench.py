"""`ddviz bench`: tokens/s, accept length and losslessness of each mode over a file of prompts.

In:  a loaded TorchEngine, prompts, GenerateParams that hold for all of them.
Out: Report, which prints as a table or as JSON.
Not here: what recording costs (scripts/bench_recorder.py).

Modes are interleaved prompt by prompt, so that a machine that slows down slows all of them. A warm-up request
of each mode goes first and is not counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.table import Table

from ddviz.engines.base import GenerateParams, Mode, require_text
from ddviz.errors import BadValueError
from ddviz.tree import is_greedy

if TYPE_CHECKING:  # torch: wrong settings and prompts are told before it is loaded
    from ddviz.engines.torch_engine.engine import TorchEngine
    from ddviz.engines.torch_engine.run import Result

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    text: str
    tag: str  # the set it belongs to, "" = none


@dataclass(slots=True)
class ModeResult:
    """Sums of one mode over the prompts."""

    results: list[Result] = field(default_factory=list)
    equals_ar: list[bool] | None = None  # per prompt; None where that can't be said

    @property
    def tokens(self) -> int:
        """Emitted by steps: the prefill token is not one of them."""
        return sum(len(result.output_ids) - 1 for result in self.results)

    @property
    def steps(self) -> int:
        return sum(result.steps for result in self.results)

    @property
    def accept_length(self) -> float:
        """Sum of the steps' accept lengths / steps."""
        return sum(sum(result.accept_lengths) for result in self.results) / max(1, self.steps)

    @property
    def tokens_per_step(self) -> float:
        """The same after the cut at stop tokens and max tokens: what reached the output."""
        return self.tokens / max(1, self.steps)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / max(1e-9, sum(result.decode_s for result in self.results))

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens_per_s": round(self.tokens_per_s, 2),
            "accept_length": round(self.accept_length, 4),
            "tokens_per_step": round(self.tokens_per_step, 4),
            "equals_ar": None if self.equals_ar is None else all(self.equals_ar),
            "prompts_equal_ar": None if self.equals_ar is None else sum(self.equals_ar),
            "prompts": len(self.results),
            "steps": self.steps,
            "tokens": self.tokens,
        }


def read_prompts(path: Path, limit: int | None = None, tag: str | None = None) -> list[BenchPrompt]:
    """Prompts of a JSON Lines file: {"prompt": TEXT} or {"messages": [one user message]}, optionally "tag".

    Raises BadValueError with file and line where that is not what it holds.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadValueError(f"{path}: can't read prompts there ({error})") from None
    prompts = [_prompt_of(line, f"{path}: line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    chosen = [prompt for prompt in prompts if tag in (None, prompt.tag)][:limit]
    if not chosen:
        raise BadValueError(f"{path}: no prompts" + (f" with tag {tag!r}" if tag and prompts else ""))
    return chosen


def run_bench(
    engine: TorchEngine,
    prompts: list[BenchPrompt],
    modes: list[Mode],
    params: GenerateParams,
    on_progress: Callable[[int], None] = lambda done: None,
) -> dict[Mode, ModeResult]:
    """Run every prompt in every mode.

    `params.prompt` and `params.mode` are replaced; a seed grows by one a prompt.
    """
    for mode in modes:
        warm_up = msgspec.structs.replace(
            params, prompt=prompts[0].text, mode=mode, max_new_tokens=WARM_UP_TOKENS
        )
        engine.generate(warm_up)
    results = {mode: ModeResult() for mode in modes}
    for index, prompt in enumerate(prompts):
        seed = None if params.seed is None else params.seed + index
        for mode in modes:
            request = msgspec.structs.replace(params, prompt=prompt.text, mode=mode, seed=seed)
            results[mode].results.append(engine.generate(request))
        on_progress(index + 1)
    if "ar" in modes and is_greedy(params.temperature, params.top_k):
        reference = [result.output_ids for result in results["ar"].results]
        for result in results.values():
            pairs = zip(result.results, reference, strict=True)
            result.equals_ar = [mine.output_ids == other for mine, other in pairs]
    return results


def report_json(engine: TorchEngine, params: GenerateParams, results: dict[Mode, ModeResult]) -> str:
    """One JSON object: the modes' figures, and what they were measured with."""
    setting = {
        "date": time.strftime("%Y-%m-%d"),
        "device": engine.device,
        "engine": engine.describe(),
        "target": engine.target.name,
        "draft": engine.drafter.name if engine.drafter else None,
        "budget": params.budget,
        "topk_cap": params.topk_cap,
        "temperature": params.temperature,
        "max_tokens": params.max_new_tokens,
        "seed": params.seed,
    }
    return json.dumps({"modes": {mode: result.as_dict() for mode, result in results.items()}, **setting})


def report_table(engine: TorchEngine, results: dict[Mode, ModeResult]) -> Table:
    """The same as a table for the terminal."""
    table = Table(
        title=f"{engine.target.name} on {engine.device}, {engine.describe()['dtype']}", title_justify="left"
    )
    table.add_column("mode")
    for column in ("tokens/s", "× ar", "accept length", "steps", "tokens", "equal to ar"):
        table.add_column(column, justify="right")
    base = results["ar"].tokens_per_s if "ar" in results else None
    for mode, result in results.items():
        equal = "" if result.equals_ar is None else f"{sum(result.equals_ar)} of {len(result.equals_ar)}"
        table.add_row(
            mode,
            f"{result.tokens_per_s:.1f}",
            f"{result.tokens_per_s / base:.2f}" if base else "",
            f"{result.accept_length:.2f}",
            str(result.steps),
            str(result.tokens),
            equal,
        )
    return table


def _prompt_of(line: str, where: str) -> BenchPrompt:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise BadValueError(f"{where}: not JSON ({error})") from None
    if not isinstance(entry, dict):
        raise BadValueError(f"{where}: must be an object with prompt or messages")
    messages = entry.get("messages")
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], dict):
        entry = {**entry, "prompt": messages[0].get("content")}
    if not isinstance(entry.get("prompt"), str):
        raise BadValueError(f'{where}: needs "prompt", or "messages" with one user message')
    require_text(entry["prompt"], f"{where}: the prompt")
    return BenchPrompt(entry["prompt"], str(entry.get("tag", "")))
