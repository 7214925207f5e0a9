"""SGLang engines for the checks of this folder: several at once on one GPU, each a process of its own.

    with Lab(target, draft, out) as lab:
        ar, tree = lab.start("ar"), lab.start("tree", speculative_algorithm="DDTREE")
        lab.wait()
        answers = tree.generate(prompt_ids, {"temperature": 0, "max_new_tokens": 64})

A module of check.py, not a command. Each engine logs to OUT/NAME.log. An engine started with `log_steps=True`
also notes, after every step, which tokens SGLang took from it for which request, and the free slots of its KV
pool whenever it is idle: from SGLang's own result, whatever the algorithm.
"""

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

DDVIZ = (sys.executable, "-m", "ddviz.cli")
DRAFT = str(Path(__file__).resolve().parents[2] / "ddviz/models/smollm2-135m-dflash")
START_LIMIT_S = 400
PORTS = itertools.count(41000 + 200 * (os.getpid() % 50), 10)  # one engine needs a few; runs go side by side
DEFAULTS: dict[str, Any] = {
    "dtype": "float32",
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "disable_prefill_cuda_graph": True,
    "context_length": 2048,
    "max_total_tokens": 65536,
    "max_running_requests": 16,
    "cuda_graph_bs_decode": [1, 4, 16],
    "mem_fraction_static": 0.5,
    "sleep_on_idle": True,  # the engines share the host's cores
    "log_level": "info",
    "random_seed": 1,
}
TREE = {
    "speculative_algorithm": "DDTREE",
    "speculative_ddtree_budget": 16,
    "speculative_ddtree_topk_cap": 4,
}


@dataclass(frozen=True, slots=True)
class Answer:
    output_ids: list[int]
    text: str
    meta: dict[str, Any]  # SGLang's meta_info
    accept_lens: list[int] = field(default_factory=list)  # per step, with log_steps

    @property
    def finish(self) -> Any:
        return self.meta["finish_reason"]


class EngineProcess:
    """One engine: its process, its log, and what it noted; asked through a socket, one call at a time."""

    def __init__(
        self,
        name: str,
        options: dict[str, Any],
        folder: Path,
        out: Path,
        environment: dict[str, str],
        *,
        log_steps: bool,
        tf32: bool,
        trace: str | None,
    ) -> None:
        self.name = name
        self._address = str(folder / f"{name}.socket")
        self._steps = folder / f"{name}.steps" if log_steps else None
        self._log = out / f"{name}.log"
        self._listener = Listener(self._address)
        self._connection: Connection | None = None
        environment = {**os.environ, **environment}
        environment["PYTHONPATH"] = f"{folder}:{environment.get('PYTHONPATH', '')}"
        if options["dtype"] == "float32":
            environment["DDVIZ_LAB_NATIVE"] = "1"
            if not tf32:
                environment["TRITON_F32_DEFAULT"] = "ieee"
        environment["SGLANG_ENABLE_JIT_DEEPGEMM"] = "0"  # for fp8, which nothing here has
        self.traces: Path | None = None  # the folder of its traces
        if trace is not None:
            self.traces = folder / f"{name}.traces"
            environment |= {"DDVIZ_TRACE_DIR": str(self.traces), "DDVIZ_TRACE": trace}
        if self._steps:
            environment["DDVIZ_LAB_STEPS"] = str(self._steps)
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._address, json.dumps(options)],
            env=environment,
            stdout=self._log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self, deadline: float) -> None:
        """Until the engine is ready. RuntimeError with the end of its log where it is not."""
        self._listener._listener._socket.settimeout(1.0)
        while self._connection is None:
            try:
                self._connection = self._listener.accept()
            except TimeoutError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.close()
                    raise RuntimeError(f"{self.name} did not start:\n{self.log_tail()}") from None

    def generate(
        self, input_ids: list[list[int]], params: Any, together: bool = True, **more: Any
    ) -> list[Answer]:
        """One answer a prompt. together: all in one call, else one after the other."""
        if together:
            return self._generate(input_ids, params, more)
        each = params if isinstance(params, list) else [params] * len(input_ids)
        return [self._generate([ids], [p], more)[0] for ids, p in zip(input_ids, each, strict=True)]

    def call(self, method: str, **arguments: Any) -> Any:
        """Any method of sgl.Engine."""
        if self._connection is None:
            raise RuntimeError(f"{self.name} did not start")
        self._connection.send((method, arguments))
        while not self._connection.poll(1.0):
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} died:\n{self.log_tail()}")
        try:
            ok, value = self._connection.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError(f"{self.name} died:\n{self.log_tail()}") from None
        if not ok:
            raise RuntimeError(f"{self.name}: {value}")
        return value

    def free_slots(self) -> list[int]:
        """Free slots of the KV pool, each time that it changed while idle."""
        return [line["free"] for line in self._step_lines() if "free" in line]

    def steps(self) -> list[dict[str, Any]]:
        """Every step so far: accept_lens by request, whether a graph ran, and when the scheduler took it."""
        return [line for line in self._step_lines() if "accept_lens" in line]

    def trace_files(self) -> list[Path]:
        """The traces of an engine that was started with `trace`."""
        assert self.traces is not None, f"{self.name} cannot trace"
        return sorted(self.traces.glob("*.ddviz"))

    @property
    def pid(self) -> int:
        """The engine's first process, from which it starts all others."""
        return self._process.pid

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:])

    def close(self) -> None:
        """End it and its processes at once: there is nothing to save. Writers of traces end by themselves."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _generate(self, input_ids: list[list[int]], params: Any, more: dict[str, Any]) -> list[Answer]:
        known = len(self._step_lines()) if self._steps else 0
        answers = self.call("generate", input_ids=input_ids, sampling_params=params, **more)
        lens: dict[str, list[int]] = {}
        if self._steps:
            for line in self._step_lines()[known:]:
                for rid, count in line.get("accept_lens", {}).items():
                    lens.setdefault(rid, []).append(count)
        return [
            Answer(a["output_ids"], a.get("text", ""), a["meta_info"], lens.get(a["meta_info"]["id"], []))
            for a in answers
        ]

    def _step_lines(self) -> list[dict[str, Any]]:
        if self._steps is None or not self._steps.exists():
            return []
        whole = self._steps.read_text().rpartition("\n")[0]  # the last line may be under way
        return [json.loads(line) for line in whole.splitlines()]


class Lab:
    """The engines of one pair of models. A context manager: it ends them all."""

    def __init__(self, target: Path, draft: Path, out: Path) -> None:
        self.target, self.draft, self.out = target, draft, out
        out.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory()
        self._engines: list[EngineProcess] = []
        _install_plugin(Path(self._folder.name))

    def start(
        self,
        name: str,
        log_steps: bool = False,
        tf32: bool = False,
        trace: str | None = None,
        fault: str | None = None,
        **options: Any,
    ) -> EngineProcess:
        """Begin to start an engine; `wait` before its first use.

        trace  what the engine traces of requests that do not say: "" nothing, "light", "standard"; None: it
               cannot trace at all
        fault  what it does wrong, one of ddviz.engines.faults.FAULTS
        tf32   let float32 attention multiply in TF32, tens of times faster and good to three digits
        """
        options = {"model_path": str(self.target), "nccl_port": next(PORTS), **DEFAULTS, **options}
        if options.get("speculative_algorithm"):
            options.setdefault("speculative_draft_model_path", str(self.draft))
        folder = Path(self._folder.name)
        more = {} if fault is None else {"DDVIZ_FAULT": fault, "DDVIZ_DEBUG": "1"}
        engine = EngineProcess(
            name, options, folder, self.out, more, log_steps=log_steps, tf32=tf32, trace=trace
        )
        self._engines.append(engine)
        return engine

    def wait(self) -> None:
        """Until all are ready; one that did not start is told, and fails the checks that use it."""
        begun = time.monotonic()
        for engine in self._engines:
            try:
                engine.wait(begun + START_LIMIT_S)
            except RuntimeError as error:
                print(error, flush=True)
        print(f"{len(self._engines)} engines started in {time.monotonic() - begun:.0f} s", flush=True)

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, *exception: object) -> None:
        for engine in self._engines:
            engine.close()


def arguments(doc: str | None, out: Path) -> argparse.Namespace:
    """Of a script that starts SGLang servers: target, draft, words for the servers; the folder out, made."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="folder of the target that --draft fits")
    parser.add_argument("--draft", default=DRAFT, help="folder of the DFlash drafter (default: ddviz's own)")
    parser.add_argument("--out", type=Path, default=out, help="for logs and traces (default: %(default)s)")
    parser.add_argument("words", nargs="*", help="for sglang.launch_server")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def prompts_of(path: Path, target: Path, limit: int | None = None) -> list[list[int]]:
    """Token ids of the prompts of a JSON Lines file, in the target's chat template."""
    lines = [json.loads(line) for line in path.read_text().splitlines()][:limit]
    return chats([line["messages"] for line in lines], target)


def chats(messages: list[list[dict[str, str]]], target: Path) -> list[list[int]]:
    """Token ids of each, in the target's chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    encoded = [
        tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False) for said in messages
    ]
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in encoded]


def questions(texts: Sequence[str], target: Path) -> list[list[int]]:
    """Token ids of one user's message each."""
    return chats([[{"role": "user", "content": text}] for text in texts], target)


def _install_plugin(folder: Path) -> None:
    """A second SGLang plugin, found because its folder is on the engine's PYTHONPATH."""
    if importlib.util.find_spec("deep_gemm") is None:  # a trimmed host: EAGLE imports it, uses it not
        (folder / "deep_gemm.py").touch()
    info = folder / "ddviz_lab-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ddviz-lab\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nddviz_lab = ddviz_lab_plugin:register\n")
    (folder / "ddviz_lab_plugin.py").write_text(_PLUGIN)


# SGLang's kernels for RMSNorm, RoPE and SiLU know bf16 and fp16 only: in float32 its own PyTorch twins run.
_PLUGIN = """
import json, os, time
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

NATIVE = ("layernorm.RMSNorm", "activation.SiluAndMul", "rotary_embedding.base.RotaryEmbedding")
PROCESSOR = "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"

def register():
    if os.environ.get("DDVIZ_LAB_NATIVE"):
        for name in NATIVE:
            HookRegistry.register(f"sglang.srt.layers.{name}.forward_cuda", native, HookType.AROUND)
    if os.environ.get("DDVIZ_LAB_STEPS"):
        log = open(os.environ["DDVIZ_LAB_STEPS"], "a", buffering=1)
        note_steps(lambda **line: log.write(json.dumps(line) + "\\n"))

def native(original, module, *args, **kwargs):
    return module.forward_native(*args, **kwargs)

def note_steps(note):
    last = {}

    def step(tokens, processor, result, batch):
        counted = zip(batch.reqs, result.accept_lens.tolist())
        # with overlap one more step of a finished request is under way, which SGLang drops
        lens = {req.rid: int(n) for req, n in counted if not (req.finished() or req.is_retracted)}
        note(accept_lens=lens, graph=bool(result.can_run_cuda_graph), at=time.time())

    def idle(result, scheduler):
        free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
        if last.get("free") != free:
            last["free"] = free
            note(free=int(free))

    HookRegistry.register(PROCESSOR + "._resolve_spec_v2_tokens", step, HookType.AFTER)
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.on_idle", idle, HookType.AFTER)
"""


def _serve(address: str, options: dict[str, Any]) -> None:
    """The engine's process: one sgl.Engine, asked through a socket."""
    import sglang

    engine = sglang.Engine(**options)
    connection = Client(address)
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            engine.shutdown()
            return
        try:
            connection.send((True, getattr(engine, method)(**arguments)))
        except Exception as error:  # the caller's to judge
            connection.send((False, f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    _serve(sys.argv[1], json.loads(sys.argv[2]))
