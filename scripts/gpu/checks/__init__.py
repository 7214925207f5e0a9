"""The checks of `scripts/gpu/check.py`, one module each: NEEDS names engines of `ENGINES`, `run` judges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddviz.engines.faults import FAULTS
from ddviz.trace import schema
from scripts.gpu.lab import TREE, Answer, EngineProcess

CHAIN = {**TREE, "speculative_ddtree_budget": 15, "speculative_ddtree_topk_cap": 1}
WIDE = {**TREE, "speculative_ddtree_budget": 64, "speculative_ddtree_topk_cap": 0}
DFLASH = {"speculative_algorithm": "DFLASH", "speculative_draft_attention_backend": "triton"}
NGRAM = {
    "speculative_algorithm": "NGRAM",
    "speculative_num_draft_tokens": 12,
    "speculative_draft_model_path": None,
}
EAGLE = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 4,
    "speculative_num_draft_tokens": 16,
}
TRACED = {"dtype": "bfloat16", "trace": "standard"}
MANY = {
    "tf32": True,
    "max_running_requests": 64,
    "cuda_graph_bs_decode": [1, 16, 64],
    "max_total_tokens": 131072,
}
ENGINES: dict[str, dict[str, Any]] = {
    "ar": {},
    "tree": {**TREE, "log_steps": True},
    "wide": {**WIDE, "log_steps": True},
    "chain": {**CHAIN, "log_steps": True},
    "dflash": {**DFLASH, "log_steps": True},
    "tree-eager": {**TREE, "log_steps": True, "disable_cuda_graph": True},
    "tree-sync": {**TREE, "log_steps": True, "disable_overlap_schedule": True},
    "tree-eager-sync": {
        **TREE,
        "log_steps": True,
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
    },
    "tree-small": {**TREE, "log_steps": True, "max_total_tokens": 4096, "context_length": 768},
    "tree-many": {**TREE, **MANY},
    **{f"tree-many-{i}": {**TREE, **MANY} for i in range(5)},
    "wide-many": {**WIDE, **MANY},
    "tree-seeded": {**TREE, "enable_deterministic_inference": True},
    "tree-asked": {**TREE, "enable_custom_logit_processor": True, "grammar_backend": "llguidance"},
    # without overlap: with it, SGLang's penalties count a token a step late
    "ar-asked": {
        "enable_custom_logit_processor": True,
        "grammar_backend": "llguidance",
        "disable_overlap_schedule": True,
    },
    "ar-bf16": {"dtype": "bfloat16"},
    "dflash-bf16": {**DFLASH, "dtype": "bfloat16"},
    "tree-bf16": {**TREE, "dtype": "bfloat16"},
    "wide-bf16": {**WIDE, "dtype": "bfloat16"},
    "traced": {**TREE, **TRACED},
    "wide-traced": {**WIDE, **TRACED},
    "killed": {**TREE, **TRACED, "log_steps": True},
    "killed-scheduler": {**TREE, **TRACED, "log_steps": True},
    "dflash-traced": {**DFLASH, **TRACED},
    "ngram-traced": {**NGRAM, **TRACED},
    "eagle-traced": {**EAGLE, **TRACED},
    "eagle-chain-traced": {**EAGLE, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4, **TRACED},
    "eagle-sync-traced": {**EAGLE, **TRACED, "disable_overlap_schedule": True, "disable_cuda_graph": True},
    **{f"fault-{name}": {**TREE, **TRACED, "fault": name} for name in FAULTS},
    "traceable": {**TREE, "dtype": "bfloat16", "trace": ""},
}


@dataclass(frozen=True, slots=True)
class Context:
    prompts: list[list[int]]  # token ids of the 60 prompts
    tags: list[str]
    target: Path
    draft: Path
    out: Path


@dataclass(slots=True)
class Verdict:
    """What a check found: it passes where no line says why not."""

    figures: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def claim(self, holds: bool, failure: str) -> None:
        if not holds:
            self.failures.append(failure)


Engines = Mapping[str, EngineProcess]


def same_outputs(wanted: Sequence[Answer], got: Sequence[Answer]) -> int:
    """On how many requests two engines said the same tokens."""
    return sum(a.output_ids == b.output_ids for a, b in zip(wanted, got, strict=True))


def accept_length(steps: Sequence[schema.Step]) -> float:
    """Tokens that a step adds in the mean: the accepted nodes, and the bonus."""
    return 1 + sum(step.accept.num_accepted for step in steps) / max(1, len(steps))


def refusal(engine: EngineProcess, prompt: list[int], params: dict[str, Any]) -> str | None:
    """The sentence of a refusal, None where the request was served."""
    try:
        engine.generate([prompt], params)
    except RuntimeError as error:
        return str(error)
    return None
