"""What a server can be asked for, and how it is asked.

In:  /server_info of a server, GenerateParams.
Out: ModelInfo; the JSON of POST /generate; which limits of the server a request exceeds.
Not here: HTTP (api.py).
"""

from pathlib import Path
from typing import Any, NamedTuple

from ddviz.engines.base import GenerateParams, Mode, ModelInfo
from ddviz.errors import EngineError, RefusedError

TESTED = "0.5.17"  # the version of SGLang that the plugin is written against

Json = dict[str, Any]


class Limits(NamedTuple):
    """Of a tree: nodes beside the root, children of a node."""

    budget: int
    topk_cap: int

    def exceeded_by(self, other: "Limits") -> bool:
        return other.budget > self.budget or other.topk_cap > self.topk_cap

    def with_room_for(self, other: "Limits") -> "Limits":
        return Limits(max(self.budget, other.budget), max(self.topk_cap, other.topk_cap))


class Facts(NamedTuple):
    """What a server says of itself."""

    version: str
    algorithm: str | None  # None: it does not speculate
    has_plugin: bool  # ddviz's
    limits: Limits | None  # DDTREE's
    block_size: int | None
    target: str
    draft: str | None
    device: str
    dtype: str
    context_length: int

    @property
    def modes(self) -> tuple[Mode, ...]:
        """DFlash's chain is a tree of width one; without a tree only what the server was started with."""
        if self.limits is not None:
            return ("ddtree", "dflash")
        if self.algorithm is None:
            return ("ar",)
        return ("dflash",) if self.algorithm == "DFLASH" else ("server",)

    @property
    def name(self) -> str:
        """SGLang 0.5.17, DDTREE."""
        untested = "" if self.version == TESTED else f" (ddviz is tested with {TESTED})"
        return f"SGLang {self.version}{untested}, {self.algorithm or 'without speculation'}"


def facts_of(info: Json) -> Facts:
    """Read /server_info: SGLang's arguments with ddviz's flags among them, and a little about its state.

    Raises EngineError where a number in it is none.
    """
    try:
        return _facts_of(info)
    except (TypeError, ValueError) as error:
        raise EngineError(f"the server's account of itself makes no sense: {error}") from None


def _facts_of(info: Json) -> Facts:
    algorithm = str(info.get("speculative_algorithm") or "").upper() or None
    budget = info.get("speculative_ddtree_budget")
    cap = info.get("speculative_ddtree_topk_cap")
    return Facts(
        version=str(info.get("version") or "of an unknown version"),
        algorithm=algorithm,
        has_plugin=budget is not None,
        limits=Limits(int(budget), int(cap or budget)) if algorithm == "DDTREE" and budget else None,
        block_size=info.get("speculative_dflash_block_size"),
        target=_name(info.get("model_path")) or "?",
        draft=_name(info.get("speculative_draft_model_path")),
        device=str(info.get("device") or "?"),
        dtype=str(info.get("dtype") or "?"),
        context_length=int(info.get("context_length") or info.get("max_req_input_len") or 0),
    )


def model_info(facts: Facts, where: str, may_grow: bool, view_only: bool) -> ModelInfo:
    limits = facts.limits
    return ModelInfo(
        target=facts.target,
        draft=facts.draft,
        block_size=facts.block_size,
        context_length=facts.context_length,
        vocab_size=None,
        device=facts.device,
        dtype=facts.dtype,
        note=f"{facts.name}, {where}",
        modes=facts.modes,
        algorithm=facts.algorithm or "",
        may_grow=may_grow,
        view_only=view_only,
        **({} if limits is None else {"max_budget": limits.budget, "max_topk_cap": limits.topk_cap}),
    )


def needs(params: GenerateParams, facts: Facts) -> Limits | None:
    """The limits that a request's tree takes; None where it asks for no tree of its own."""
    if facts.limits is None:
        return None
    if params.mode == "dflash":
        return Limits((facts.block_size or facts.limits.budget + 1) - 1, 1)
    return Limits(params.budget, min(params.topk_cap or params.budget, params.budget))


def generate_request(params: GenerateParams, facts: Facts, rid: str, prompt: Json) -> Json:
    """The body of POST /generate.

    prompt  {"text"} or {"input_ids"}

    Raises RefusedError for a mode that the server does not offer.
    """
    if params.mode not in facts.modes:
        raise RefusedError(f"this server can't run mode {params.mode}, only {' and '.join(facts.modes)}")
    custom: Json = {"ddviz": {"level": "standard"}}
    tree = needs(params, facts)
    if tree is not None:
        custom["ddtree"] = tree._asdict()
    sampling = {
        **distribution(params),
        "max_new_tokens": params.max_new_tokens,
        "custom_params": custom,
    }
    if params.seed is not None:
        sampling["sampling_seed"] = params.seed
    return {"rid": rid, "sampling_params": sampling, **prompt}


def distribution(params: GenerateParams) -> Json:
    """What a request samples from, in SGLang's words."""
    return {
        "temperature": params.temperature,
        "top_k": params.top_k or -1,  # SGLang's word for off
        "top_p": params.top_p,
    }


def probe_request(rid: str, tokens: int, level: str, temperature: float = 0.0) -> Json:
    """A short request of ddviz's own: to see that a server generates and traces, and to warm it up."""
    sampling = {
        "temperature": temperature,
        "max_new_tokens": tokens,
        "ignore_eos": True,
        "custom_params": {"ddviz": {"level": level}},
    }
    return {"rid": rid, "text": "The capital of France is", "sampling_params": sampling}


def _name(path: Any) -> str | None:
    return None if not path else Path(path).name if Path(path).exists() else str(path)
