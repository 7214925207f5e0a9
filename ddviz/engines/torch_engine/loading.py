"""From EngineOptions to an engine that can run: fetch the demo target if need be, load, apply DDVIZ_FAULT.

In:  EngineOptions, a function that is told how far things are.
Out: TorchEngine.
"""

from collections.abc import Callable

import torch

from ddviz.engines.base import EngineOptions, ModelInfo, State
from ddviz.engines.torch_engine.engine import TorchEngine
from ddviz.engines.torch_engine.faults import engine_class
from ddviz.engines.torch_engine.fetch import demo_drafter, demo_target
from ddviz.engines.torch_engine.models import load_pair
from ddviz.engines.torch_engine.tuning import Choice, choose

Report = Callable[[State, str, float | None], None]  # state, sentence, fraction done or None


def load_engine(options: EngineOptions, report: Report = lambda *_: None) -> TorchEngine:
    """Load what the options ask for. Raises EngineError with what is missing and what to do."""
    kind = engine_class()
    target, draft = options.target, options.draft
    if target is None:
        target = str(demo_target(lambda sentence, fraction: report("fetching", sentence, fraction)))
        draft = draft or str(demo_drafter())
    choice = _choose(options, target, draft, report) if options.dtype == "auto" else None
    dtype = choice.dtype if choice else options.dtype.replace("auto", "float32")
    report("loading", "loading the model", None)
    engine = kind(load_pair(target, draft, dtype, options.device, options.draft_dtype))
    engine.choice = choice
    return engine


def _choose(options: EngineOptions, target: str, draft: str | None, report: Report) -> Choice | None:
    """The faster dtype, by measuring. None where there is nothing to measure: on CUDA, or without drafter."""
    on_cpu = options.device == "cpu" or (options.device == "auto" and not torch.cuda.is_available())
    if draft is None or not on_cpu:
        return None
    return choose(target, draft, lambda sentence: report("loading", sentence, None))


def model_info(engine: TorchEngine) -> ModelInfo:
    target, drafter, choice = engine.target, engine.drafter, engine.choice
    return ModelInfo(
        target=target.name,
        draft=None if drafter is None else drafter.name,
        block_size=None if drafter is None else drafter.block_size,
        context_length=target.context_length,
        vocab_size=target.vocab_size,
        device=engine.device,
        dtype=str(target.dtype).removeprefix("torch."),
        note=choice.sentence if choice else "",
        budget=choice.budget if choice else None,
        topk_cap=choice.topk_cap if choice else None,
    )
