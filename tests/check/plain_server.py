"""A server that speaks as much of SGLang's HTTP API as losslessness needs; its tokens have a fixed law.

PlainServer(law, algorithm).url                   in this process
python -m tests.check.plain_server --port N ...   a process of its own, as SGLang is started
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

LAW = (0.5, 0.3, 0.2)


class PlainServer:
    def __init__(self, law=LAW, algorithm=None, port=0, target="fake-target", seed=0, dtype="float32"):
        self.law, self.asked = law, []
        self.info = {
            "version": "0.5.17", "speculative_algorithm": algorithm, "model_path": target, "dtype": dtype
        }  # fmt: skip
        self._random = np.random.default_rng(seed)
        self.http = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def start(self):
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def answer(self, body):
        self.asked.append(body)
        prompts = body.get("input_ids", body.get("text"))
        tokens = body["sampling_params"]["max_new_tokens"]
        if isinstance(prompts, str):
            return {"output_ids": self._tokens(tokens)}
        return [{"output_ids": self._tokens(tokens)} for _ in prompts]

    def _tokens(self, count):
        return self._random.choice(len(self.law), count, p=self.law).tolist()

    def _handler(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self._say(server.info)

            def do_POST(self):
                self._say(server.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

            def _say(self, answer):
                raw = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args):
                pass

        return Handler


if __name__ == "__main__":
    flags = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    if flags["--model-path"] == "broken":
        sys.exit("no such model")
    PlainServer(port=int(flags["--port"]), target=flags["--model-path"], seed=9).http.serve_forever(0.02)
