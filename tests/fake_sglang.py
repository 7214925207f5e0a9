"""A server that speaks as much of SGLang's HTTP API as ddviz uses, and traces as the plugin does.

    FakeServer(traces).url                             in this process, as if it were started elsewhere
    python -m tests.fake_sglang --port 30000 ...       a process of its own, with SGLang's flags and log lines

What a test wants of it beyond SGLang is said by --fake-... flags, or fields of FakeServer. The story that it
tells and its steps are the viewer's fixtures; the gate and the refusals are the plugin's own.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ddviz.engines.sglang_plugin import gate
from ddviz.engines.sglang_plugin.requests import refusal
from ddviz.trace import Recorder, schema
from tests.viewer.fixtures import B, Words, make_step

VERSION = "0.5.17"
CONTEXT = 1000  # tokens
WORDS = Words(hostile=False)

LOADING = [
    "[2026-11-30 03:40:30] server_args=ServerArgs(model_path='fake-target', ...)",
    "[2026-11-30 03:40:31] Load weight begin. avail mem=138.00 GB",
    "Loading safetensors checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]\r"
    "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00,  1.00it/s]\r"
    "Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:00<00:00,  1.00it/s]",
    "[2026-11-30 03:40:32] Load weight end. elapsed=1.00 s, type=LlamaForCausalLM, dtype=torch.bfloat16",
    "[2026-11-30 03:40:33] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 100000, KV size: 8.00 GB",
    "[2026-11-30 03:40:34] Capture target verify CUDA graph begin. This can take up to several minutes.",
    "Capturing batches (bs=1 avail_mem=100.00 GB):  50%|█████     | 4/8 [00:00<00:00,  8.00it/s]",
    "[2026-11-30 03:40:35] Capture target verify CUDA graph end. Time elapsed: 1.00 s.",
]


@dataclass
class FakeServer:
    traces: Path | None  # None: it has no trace folder
    algorithm: str | None = "DDTREE"
    budget: int = 16
    topk_cap: int = 4
    step_s: float = 0.01
    port: int = 0
    has_plugin: bool = True
    version: str = VERSION
    dies: str | None = None  # a prompt that holds these words kills the process at its fourth step
    key: str | None = None  # without it nothing is answered
    warm_s: float = 0.0  # how long it answers HTTP before it generates
    asked: list[dict[str, Any]] = field(default_factory=list)  # bodies of /generate
    calls: list[str] = field(default_factory=list)  # paths

    def __post_init__(self) -> None:
        self._running = threading.Condition()  # steps run while it is not paused
        self._paused = False
        self._aborted: set[str] = set()
        self._born = time.monotonic()
        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    # --- the API: path -> (status, answer)

    def answer(self, path: str, body: dict[str, Any], authorization: str | None) -> tuple[int, Any]:
        self.calls.append(path)
        if self.key is not None and authorization != f"Bearer {self.key}":
            return 401, {"error": "Unauthorized"}
        match path:
            case "/server_info":
                return 200, self._info()
            case "/model_info":
                return 200, {"model_path": "fake-target", "is_generation": True}
            case "/health":
                return 200, None
            case "/tokenize":
                return 200, {"tokens": list(range(3 + len(body["messages"][0]["content"].split())))}
            case "/abort_request":
                self._aborted.add(body["rid"])
                return 200, None
            case "/pause_generation" | "/continue_generation":
                assert body.get("mode", "in_place") == "in_place", "abort, SGLang's default, ends requests"
                with self._running:
                    self._paused = path == "/pause_generation"
                    self._running.notify_all()
                return 200, {"status": "ok"}
            case "/generate":
                return self._generate(body)
        return 404, {"detail": "Not Found"}

    def _info(self) -> dict[str, Any]:
        flags = {"speculative_ddtree_budget": self.budget, "speculative_ddtree_topk_cap": self.topk_cap}
        return {
            "version": self.version,
            "model_path": "fake-target",
            "speculative_draft_model_path": "fake-draft" if self.algorithm else None,
            "speculative_algorithm": self.algorithm,
            "speculative_dflash_block_size": B,
            "device": "cuda",
            "dtype": "bfloat16",
            "context_length": CONTEXT,
            **(flags if self.has_plugin else {}),
        }

    def _generate(self, body: dict[str, Any]) -> tuple[int, Any]:
        if time.monotonic() < self._born + self.warm_s:
            return 503, None
        self.asked.append(body)
        params = body["sampling_params"]
        custom = params.get("custom_params") or {}
        ids = body.get("input_ids") or list(range(len(body["text"].split())))
        plugin_params = SimpleNamespace(
            min_p=0, sampling_seed=params.get("sampling_seed"), custom_params=custom
        )
        refused = refusal(plugin_params, self.budget, self.topk_cap or self.budget, deterministic=False)
        if len(ids) >= CONTEXT:
            refused = f"The input ({len(ids)} tokens) is longer than the model's context length ({CONTEXT})."
        if refused:
            return 400, {"error": {"message": refused}}
        request = Request(self, body.get("rid") or uuid.uuid4().hex, ids, body.get("text", ""), params)
        with self._running:
            self._running.wait_for(lambda: not self._paused)
        return 200, request.run()

    def may_step(self, rid: str) -> bool:
        """After the pause and the gate; False: the request was aborted."""
        with self._running:
            self._running.wait_for(lambda: not self._paused)
        gate.pass_through()
        return rid not in self._aborted

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # http.server's name
                self._reply(server.answer(self.path, {}, self.headers["Authorization"]))

            def do_POST(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length))
                self._reply(server.answer(self.path, body, self.headers["Authorization"]))

            def _reply(self, said: tuple[int, Any]) -> None:
                raw = b"" if said[1] is None else json.dumps(said[1]).encode()
                self.send_response(said[0])
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args: Any) -> None: ...

        return Handler


@dataclass
class Request:
    server: FakeServer
    rid: str
    ids: list[int]
    text: str
    params: dict[str, Any]

    def run(self) -> dict[str, Any]:
        custom = self.params.get("custom_params") or {}
        level = (custom.get("ddviz") or {}).get("level", "off")
        folder = self.server.traces
        if folder is None or not self.server.has_plugin or level == "off":
            return self._said([WORDS.next(0)], "length")
        tree = custom.get("ddtree") or {}
        budget = tree.get("budget", self.server.budget)
        cap = tree.get("topk_cap") or self.server.topk_cap or budget
        stamp = time.strftime("%Y%m%d-%H%M%S")
        header = self._header(budget, cap, level)
        with Recorder(folder / f"{stamp}-{self.rid}.ddviz", header, WORDS.bytes.__getitem__) as recorder:
            recorder.prompt(self.ids, self.text or "a prompt through the chat template")
            recorder.prefill(schema.Prefill(token=WORDS.next(0), cached_tokens=0))
            output, steps, reason = self._steps(recorder, budget, cap)
            recorder.end(schema.End(finish_reason=reason, output_ids=output, steps=steps))
        return self._said(output, "abort" if reason == "stopped" else reason)

    def _steps(self, recorder: Recorder, budget: int, cap: int) -> tuple[list[int], int, Any]:
        rng = np.random.default_rng(0)
        output, steps, most = [WORDS.next(0)], 0, self.params["max_new_tokens"]
        while len(output) < most:
            if not self.server.may_step(self.rid):
                return output, steps, "stopped"
            time.sleep(self.server.step_s)
            if steps == 3 and self.server.dies and self.server.dies in self.text:
                print("RuntimeError: CUDA error: an illegal memory access was encountered", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            place = len(output)
            temperature = float(self.params.get("temperature", 1.0))
            step = make_step(
                rng, WORDS, steps, output[-1], place, len(self.ids) + place - 1, budget, cap, temperature
            )
            step.emitted = step.emitted[: most - place]
            recorder.step(step)
            output, steps = output + step.emitted, steps + 1
        return output, steps, "length"

    def _said(self, output: list[int], reason: str) -> dict[str, Any]:
        text = b"".join(WORDS.bytes[token] for token in output).decode(errors="replace")
        return {"text": text, "output_ids": output, "meta_info": {"id": self.rid, "finish_reason": reason}}

    def _header(self, budget: int, cap: int, level: Any) -> schema.Header:
        return schema.Header(
            created="2026-11-30T03:40:30+00:00",
            engine=schema.EngineInfo(name="sglang", version=VERSION, device="cuda: fake"),
            algorithm="DDTREE",
            target="fake-target",
            draft="fake-draft",
            block_size=B,
            budget=budget,
            topk_cap=cap,
            sampling=schema.SamplingParams(
                temperature=self.params.get("temperature", 1.0),
                max_new_tokens=self.params["max_new_tokens"],
            ),
            level=level,
            vocab_size=len(WORDS.bytes),
            request_id=self.rid,
        )


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--speculative-algorithm")
    parser.add_argument("--speculative-ddtree-budget", type=int, default=16)
    parser.add_argument("--speculative-ddtree-topk-cap", type=int, default=4)
    parser.add_argument("--fake-step-s", type=float, default=0.01)
    parser.add_argument("--fake-load-s", type=float, default=0.0, help="between two lines of its log")
    parser.add_argument("--fake-warm-s", type=float, default=0.0)
    parser.add_argument("--fake-dies", help="words of the prompt that kills it")
    parser.add_argument("--fake-refuses-to-start", help="the sentence")
    parser.add_argument(
        "--fake-stubborn", help="it and a process of its group ignore SIGTERM; a file for their ids"
    )
    parser.add_argument("--fake-no-traces", action="store_true")
    args, _ = parser.parse_known_args()
    for line in LOADING:
        print(line, file=sys.stderr, flush=True)
        time.sleep(args.fake_load_s)
    if args.fake_refuses_to_start:
        sys.exit(f"Traceback (most recent call last):\nValueError: {args.fake_refuses_to_start}")
    if args.fake_stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        other = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & wait; sleep 600"])
        Path(args.fake_stubborn).write_text(f"{os.getpid()} {other.pid}")
    folder = os.environ.get("DDVIZ_TRACE_DIR")
    FakeServer(
        traces=Path(folder) if folder and not args.fake_no_traces else None,
        algorithm=args.speculative_algorithm,
        budget=args.speculative_ddtree_budget,
        topk_cap=args.speculative_ddtree_topk_cap,
        step_s=args.fake_step_s,
        port=args.port,
        dies=args.fake_dies,
        warm_s=args.fake_warm_s,
    )
    print("INFO:     Uvicorn running on http://127.0.0.1 (Press CTRL+C to quit)", file=sys.stderr, flush=True)
    print("[2026-11-30 03:40:36] The server is fired up and ready to roll!", file=sys.stderr, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
