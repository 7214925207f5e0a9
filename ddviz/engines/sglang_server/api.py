"""SGLang's HTTP API, as much of it as an engine needs (0.5.17, sglang/srt/entrypoints/http_server.py).

In:  the address of a server, requests.
Out: its answers; EngineError with the server's own sentence where it refuses.
Not here: what is asked (asking.py), what became of it (engine.py).
"""

import os
from typing import Any

import httpx

from ddviz.errors import EngineError

QUICK_S = 10.0  # for everything but a generation
API_KEY = "DDVIZ_API_KEY"  # environment: a key has no place on a command line, which others can read
LONGEST_SENTENCE = 500  # characters of a server's refusal that are shown

Json = dict[str, Any]


class UnreachableError(EngineError):
    """No server answers there, or one that is still starting."""


class Api:
    """One server. Thread-safe. Proxies of the environment are not used; its key, in DDVIZ_API_KEY, is."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._key = os.environ.get(API_KEY)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx.Client(base_url=self.url, timeout=QUICK_S, trust_env=False, headers=headers)

    def server_info(self) -> Json:
        """What it was started with. Raises EngineError where that is no SGLang server."""
        info = self._ask("GET", "/server_info")
        if not isinstance(info, dict) or "model_path" not in info:
            raise EngineError(f"{self.url} does not say what SGLang says of itself: is another server there?")
        return info

    def is_alive(self) -> bool:
        try:
            self._ask("GET", "/model_info")
        except UnreachableError:
            return False
        except EngineError:
            pass  # it answers
        return True

    def chat_ids(self, prompt: str) -> list[int]:
        """The prompt as the target's chat template wraps it, as token ids."""
        answer = self._ask("POST", "/tokenize", {"messages": [{"role": "user", "content": prompt}]})
        return list(answer["tokens"])

    def prompt(self, text: str, chat: bool) -> Json:
        """The prompt in the words of /generate, through the chat template where that is asked for."""
        return {"input_ids": self.chat_ids(text)} if chat else {"text": text}

    def generate(self, request: Json) -> Json:
        """The whole answer; waits for it as long as it takes."""
        answer = self._ask("POST", "/generate", request, timeout=None)
        if not isinstance(answer, dict):
            raise EngineError(f"{self.url} answered /generate with something that SGLang does not say")
        return answer

    def generate_many(self, request: Json) -> list[Json]:
        """The answers of one call that holds a list of prompts."""
        return list(self._ask("POST", "/generate", request, timeout=None))

    def abort(self, rid: str) -> None:
        self._ask("POST", "/abort_request", {"rid": rid})

    def pause(self) -> None:
        """No further step of any request, what they have stays in the cache."""
        self._ask("POST", "/pause_generation", {"mode": "in_place"})

    def go_on(self) -> None:
        self._ask("POST", "/continue_generation", {"torch_empty_cache": False})

    def _ask(self, method: str, path: str, body: Json | None = None, timeout: float | None = QUICK_S) -> Any:
        try:
            answer = self._client.request(method, path, json=body, timeout=timeout)
        except httpx.HTTPError as error:
            raise UnreachableError(f"{self.url} does not answer ({_reason(error)})") from None
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            raise UnreachableError(f"{self.url} is not ready")
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            refused = f"refuses the API key in {API_KEY}" if self._key else f"wants an API key: set {API_KEY}"
            raise EngineError(f"{self.url} {refused}")
        if answer.is_error and answer.text.lstrip().startswith("<"):  # a proxy's page
            raise EngineError(f"{self.url} answered {path} with HTTP {answer.status_code}: is SGLang there?")
        if answer.is_error:
            raise EngineError(_sentence(answer))
        try:
            return answer.json() if answer.content else {}
        except ValueError:
            raise EngineError(f"{self.url} answered {path} with something that is no JSON") from None


def _sentence(answer: httpx.Response) -> str:
    """What a server said as it refused: {"error": {"message"}}, {"message"}, or plain text."""
    said: Any = None
    try:
        said = answer.json()
        said = said.get("error") or said
        said = said.get("message") if isinstance(said, dict) else said
    except (ValueError, AttributeError):
        pass
    text = str(said or answer.text or f"HTTP {answer.status_code}").strip()
    return text.split("\n")[0][:LONGEST_SENTENCE]


def _reason(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
