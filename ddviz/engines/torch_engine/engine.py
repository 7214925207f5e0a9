"""A request from its prompt to its end: prepare -> prefill -> steps until it is finished or stopped.

It can halt before each step, so that one thread runs several requests in turns (`turns`).

In:  GenerateParams, a Control, a step recorder.
Out: Result; and the trace, written by the recorder.
Not here: a step and its stages (step.py), loading (models.py), what a step's record holds (record.py), the
process around it (__main__.py).
"""

import secrets
import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import msgspec
import numpy as np
import torch

from ddviz.engines.base import Control, GenerateParams
from ddviz.engines.torch_engine.models import device_name
from ddviz.engines.torch_engine.record import NoRecording, Recording
from ddviz.engines.torch_engine.run import Result, Run
from ddviz.engines.torch_engine.step import StepEngine, root_alone
from ddviz.engines.torch_engine.tuning import Choice
from ddviz.errors import RefusedError, TraceError
from ddviz.tree import compile_ddtree_retrieve

PREFILL_CHUNK = 512  # tokens a prefill forward takes, so that progress shows and a stop is heard


class TorchEngine(StepEngine):
    """Runs requests on a loaded pair, one forward at a time."""

    name = "torch_engine"
    fault: str | None = None
    choice: Choice | None = None  # why it was loaded in its dtype, where that was measured

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

    def generate(
        self,
        params: GenerateParams,
        record: Recording | NoRecording | None = None,
        control: Control | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Result:
        """Run one request to its end.

        on_prefill(done, total) is called while the prompt is read. Raises RefusedError (DdvizError) for a
        request that can't run: bad values, no drafter, a prompt as long as the context. The recorder's errors
        pass through.
        """
        record, control = record or NoRecording(), control or Control()
        with closing(self.turns(params, record, control, on_prefill)) as turns:
            while True:
                try:
                    is_before_step = next(turns)
                except StopIteration as end:
                    return end.value
                if is_before_step:
                    control.before_step()

    @torch.inference_mode()
    def turns(
        self,
        params: GenerateParams,
        record: Recording | NoRecording,
        control: Control,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Generator[bool, None, Result]:
        """As `generate`, but halting wherever another request may have its turn.

        Yields True before each step, which is for the caller to allow (Control.may_step), False between two
        parts of the prompt. Closed before its end, it ends its trace as stopped.
        """
        prompt_ids, text = self.prepare(params)
        run = self._new_run(_seeded(params), len(prompt_ids))
        record.begin(self, run, prompt_ids, text)
        try:
            yield from self._prefill(run, prompt_ids, record, on_prefill, control)
            result = yield from self._decode(run, record, control)
        except TraceError:
            raise  # nothing more can be written
        except (KeyboardInterrupt, GeneratorExit):
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
            raise RefusedError(f"mode {params.mode} needs a drafter; pass --draft, or choose mode ar")
        prompt_ids, text = self.target.encode(params.prompt, params.chat)
        context = self.target.context_length
        if not prompt_ids:
            raise RefusedError("the prompt has no tokens; type something to continue")
        if len(prompt_ids) >= context:
            raise RefusedError(
                f"the prompt has {len(prompt_ids)} tokens, the target's context holds {context}, "
                "output included; shorten the prompt"
            )
        return prompt_ids, text

    def _decode(
        self, run: Run, record: Recording | NoRecording, control: Control
    ) -> Generator[bool, None, Result]:
        start, accept_lengths = time.perf_counter(), []
        reason = run.finished() if run.output else "stopped"
        while reason is None:
            yield True
            if control.stopped:
                reason = "stopped"
            else:
                accept_lengths.append(self._step(run, record))
                reason = run.finished()
        return Result(run.output, reason, run.steps, accept_lengths, time.perf_counter() - start)

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
            stop_ids=self.target.stop_ids,
            coins=np.random.Generator(np.random.Philox(params.seed)),
        )

    def _prefill(
        self,
        run: Run,
        prompt_ids: list[int],
        record: Recording | NoRecording,
        on_prefill: Callable[[int, int], None] | None,
        control: Control,
    ) -> Generator[bool, None, None]:
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
            if begin + PREFILL_CHUNK < len(prompt_ids):
                yield False
        tree = root_alone(prompt_ids[-1])
        first = self._accept(
            run, tree, compile_ddtree_retrieve(tree.parents), self.target.logits(hidden[-1:])
        )
        run.root = int(first.outcome.emitted[-1])
        run.output.append(run.root)
        record.prefill(run, first, time.perf_counter() - start)


def _seeded(params: GenerateParams) -> GenerateParams:
    """The same request with a seed: where none was asked for, a fresh one, which the trace will name."""
    return params if params.seed is not None else msgspec.structs.replace(params, seed=secrets.randbits(32))
