"""Who is asked for short generations: the embedded engine in one of its modes, an SGLang server, the target.

In:  how many, the request's parameters.
Out: output token ids, a tuple for each generation; of the target, the distribution after a prefix.
Not here: judging them (losslessness.py).
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ddviz.check.plain import PlainTarget, choose_device, load_target
from ddviz.check.remembering import remembering
from ddviz.engines.base import GenerateParams, Mode
from ddviz.engines.sglang_server.api import Api, UnreachableError
from ddviz.engines.sglang_server.asking import distribution, facts_of
from ddviz.engines.sglang_server.child import Child
from ddviz.engines.sglang_server.own import ASKS_S, LAUNCH, free_port
from ddviz.engines.torch_engine.engine import TorchEngine
from ddviz.errors import BadValueError, EngineError
from ddviz.tree import target_probs

TOKENS = 3  # of a generation; the first comes from prefill
AT_ONCE = 64  # requests in one call of a server
OnProgress = Callable[[int], None]


class EmbeddedSampler:
    """The embedded engine, every forward computed once. Generation i has seed `seed` + i."""

    def __init__(self, engine: TorchEngine, mode: Mode, seed: int) -> None:
        self._engine, self._mode, self._seed = remembering(engine), mode, seed
        self.name = f"{engine.name}, {mode}"

    def draw(self, n: int, params: GenerateParams, on_progress: OnProgress) -> list[tuple[int, ...]]:
        asked = msgspec.structs.replace(params, mode=self._mode, max_new_tokens=TOKENS)
        if self._mode == "ar":
            asked = msgspec.structs.replace(asked, threshold_single=1.0, threshold_acc=1.0)
        outputs = []
        for i in range(n):
            on_progress(i)
            outputs.append(
                tuple(self._engine.generate(msgspec.structs.replace(asked, seed=self._seed + i)).output_ids)
            )
        self._seed += n
        return outputs


class ServerSampler:
    """An SGLang server, over HTTP. Its seeds are its own."""

    def __init__(self, url: str, prompt_ids: Sequence[int] | None = None) -> None:
        self._api = Api(url)
        self.info: dict[str, Any] = self._api.server_info()
        self.facts = facts_of(self.info)
        self.prompt_ids = prompt_ids
        self.name = f"{self.facts.name} at {url}"

    def draw(self, n: int, params: GenerateParams, on_progress: OnProgress) -> list[tuple[int, ...]]:
        sampling = {
            **distribution(params),
            "max_new_tokens": TOKENS,
            "ignore_eos": True,
            "custom_params": {"ddviz": {"level": "off"}},
        }
        outputs: list[tuple[int, ...]] = []
        while len(outputs) < n:
            on_progress(len(outputs))
            count = min(AT_ONCE, n - len(outputs))
            said = {"text": [params.prompt] * count}
            prompts = said if self.prompt_ids is None else {"input_ids": [list(self.prompt_ids)] * count}
            answers = self._api.generate_many({"sampling_params": sampling, **prompts})
            if len(answers) != count or not all(answer.get("output_ids") for answer in answers):
                raise EngineError(f"{self._api.url} answered {len(answers)} of {count} requests with tokens")
            outputs += [tuple(answer["output_ids"]) for answer in answers]
        return outputs


class TargetLaw:
    """The target itself, read plainly: `ddviz.tree.target_probs` after any tokens."""

    def __init__(self, target: PlainTarget, prompt_ids: Sequence[int], name: str) -> None:
        self._target, self._prompt = target, list(prompt_ids)
        self.name = f"target_probs of {name}"

    def probs(self, prefix: Sequence[int], params: GenerateParams) -> NDArray[np.float32]:
        [(row, _)] = self._target.logprobs([*self._prompt, *prefix], [[]])
        return target_probs(row[0], params.temperature, params.top_k, params.top_p)


def target_law(server: ServerSampler, prompt: str, target: str | None, device: str | None) -> TargetLaw:
    """The law of a server's target, loaded here; the server is from now on asked with its token ids."""
    from transformers import AutoTokenizer

    name = target or str(server.info.get("model_path") or "")
    if not target and not Path(name).is_dir():
        raise BadValueError(
            "--reference embedded needs the server's target here: name its folder with --target"
        )
    plain = PlainTarget(load_target(name, server.facts.dtype, choose_device(device)))
    ids = AutoTokenizer.from_pretrained(name)(prompt)["input_ids"]
    server.prompt_ids = ids
    return TargetLaw(plain, ids, Path(name).name)


class Restarted:
    """A server of the same target without speculation, started here for as long as the `with` lasts."""

    def __init__(
        self, server: ServerSampler, extra: Sequence[str] = (), launch: Sequence[str] = LAUNCH
    ) -> None:
        self._port = free_port()
        info = server.info
        command = [*launch, "--model-path", str(info.get("model_path")), "--dtype", server.facts.dtype]
        command += ["--host", "127.0.0.1", "--port", str(self._port), *extra]
        self._child = Child(command, {}, lambda child, progress: None, lambda child: None)

    def __enter__(self) -> ServerSampler:
        api = Api(f"http://127.0.0.1:{self._port}")
        while True:
            if not self._child.is_running():
                last = "\n".join(self._child.log()[-12:])
                raise EngineError(
                    f"the reference server {self._child.fate()}; the last lines of its log:\n{last}"
                )
            try:
                api.generate({"text": "The", "sampling_params": {"max_new_tokens": 1}})
                return ServerSampler(api.url)
            except UnreachableError:
                time.sleep(ASKS_S)

    def __exit__(self, *exc: object) -> None:
        self._child.end()


def reference_server(server: ServerSampler, url: str) -> ServerSampler:
    """Another server of the same target that does not speculate. Raises BadValueError for any other."""
    reference = ServerSampler(url)
    if reference.facts.algorithm is not None:
        raise BadValueError(f"{url} runs {reference.facts.algorithm}; the reference must not speculate")
    if reference.facts.target != server.facts.target:
        raise BadValueError(f"{url} serves {reference.facts.target}, not {server.facts.target}")
    return reference
