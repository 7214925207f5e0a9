"""What stands before Gradio: which requests are answered at all, and under which headers.

In:  every request, as ASGI has it.
Out: the same request, known to be well formed; or a refusal, {"error": sentence}.
Not here: passwords (access.py), what our own functions ask of their arguments (requests.py).

A browser names the host it believes to speak to and the page that speaks. A page of another site may point
its own name at this machine (DNS rebinding) or post to it blindly; both show in these names. Gradio's own
check lets any origin through where the app is not known as localhost.
"""

import asyncio
import base64
import hashlib
import ipaddress
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
import msgspec
from starlette.requests import ClientDisconnect

from ddviz.app.traces import MAX_UPLOAD
from ddviz.app.uploads import bytes_after_sweeping

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

API = "/gradio_api"
PREDICT, ASK, UPLOAD = f"{API}/run/predict", f"{API}/component_server", f"{API}/upload"
PAGES = {"/", "/config", "/login", "/logout", "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json"}
ANSWERED = {  # all that the page asks for; Gradio has far more
    "GET": re.compile(
        rf"(?:{'|'.join(map(re.escape, PAGES - {'/login'}))})|/(?:assets|static|svelte)/[\w./@-]+"
        rf"|{API}/(?:startup-events|upload_progress|theme\.css|heartbeat/[\w-]{{1,64}})"
    ),
    "POST": re.compile(rf"/login|{PREDICT}/?|{ASK}/?|{UPLOAD}"),
}
MAX_BODY = 4 << 20  # bytes of a request that is no upload
MAX_UPLOAD_BODY = MAX_UPLOAD + (64 << 10)  # with what a form adds
MAX_UPLOADS = 8 << 30  # bytes of all uploads that were not cleared away yet
MAX_TEXT = 1 << 20  # characters in one field of a form
_SESSION = re.compile(r"[\w-]{1,64}", re.ASCII)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:\[\]/@]+)(?::(\d{1,5}))?")
_INLINE = re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL)
_CLOSED = "default-src 'none'; frame-ancestors 'none'"
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
}


class HttpError(Exception):
    """A request that is not answered: status, and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Guard:
    """ASGI middleware.

    page   whose functions may be called
    hosts  names of the app beside localhost and addresses in figures, which no name server can forge
    """

    def __init__(self, app: Any, page: gr.Blocks, hosts: Iterable[str] = ()) -> None:
        self._app, self._page = app, page
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # the page has none
            return
        answer = _Answer(send, is_page=scope["path"] == "/")
        try:
            self._check(scope)
            await self._app(scope, await self._checked_body(scope, receive), answer)
        except HttpError as refused:
            await answer.refuse(refused)
        except ClientDisconnect:
            return  # nobody waits for an answer
        except Exception as error:
            if answer.begun:
                raise
            print(f"ddviz: {scope['path']!r:.200}: {error!r:.500}", file=sys.stderr)
            await answer.refuse(_failure(scope["path"], error))

    def _check(self, scope: Scope) -> None:
        """Raises HttpError for a request that another site began, or that the page has no use for."""
        method, path, headers = scope["method"], scope["path"], _headers(scope)
        host = _only(headers, "host")
        name = _name_of(host)
        if name is None or not self._is_known(name):
            raise HttpError(
                403,
                f"the app does not answer to the host {host or ''!r:.120}; if it is right, start ddviz with"
                " --allowed-host NAME",
            )
        origin = _only(headers, "origin")
        if origin is not None and not self._is_own(origin, host or ""):
            raise HttpError(403, f"a page of {origin!r:.120} may not use this app")
        if path != "/" and _only(headers, "sec-fetch-site") in ("cross-site", "same-site"):
            raise HttpError(403, "a page of another site may not use this app")
        answered = ANSWERED.get("GET" if method == "HEAD" else method)
        if answered is None or not answered.fullmatch(path):
            raise HttpError(404, f"the app has nothing at {method:.20} {path!r:.120}")

    def _is_known(self, name: str) -> bool:
        return name in self._hosts or _is_address(name)

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether the page that speaks is the one that was spoken to, or a known proxy's."""
        try:
            parts = urlsplit(origin)
            return parts.scheme in ("http", "https") and (
                parts.netloc.lower() == host.lower() or (parts.hostname or "") in self._hosts - {"localhost"}
            )
        except ValueError:
            return False

    async def _checked_body(self, scope: Scope, receive: Receive) -> Receive:
        """What gives the body to Gradio: bounded, and where it calls a function checked and written anew."""
        path, length = scope["path"], _only(_headers(scope), "content-length")
        most = MAX_UPLOAD_BODY if path == UPLOAD else MAX_BODY
        if length is not None and not re.fullmatch(r"[0-9]{1,18}", length):
            raise HttpError(400, "content-length is no number")
        if length is not None and int(length) > most:
            raise _too_large(most)
        if path == UPLOAD:
            folder = scope["app"].uploaded_file_dir if "app" in scope else None
            if folder and await asyncio.to_thread(bytes_after_sweeping, Path(folder)) > MAX_UPLOADS:
                raise HttpError(413, f"uploads take more than {MAX_UPLOADS >> 30} GiB; try again tomorrow")
        bounded = _bounded(receive, most)
        if scope["method"] != "POST" or path.rstrip("/") not in (PREDICT, ASK):
            return bounded
        kind = (_only(_headers(scope), "content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HttpError(415, "a request must be JSON")
        try:
            asked = msgspec.json.decode(await _whole(bounded))
        except (msgspec.DecodeError, RecursionError):
            raise HttpError(400, "a request must be JSON") from None
        checked = self._call if path.rstrip("/") == PREDICT else self._question
        body = msgspec.json.encode(checked(asked))
        scope["headers"] = [
            *((key, value) for key, value in scope["headers"] if key.lower() != b"content-length"),
            (b"content-length", str(len(body)).encode()),
        ]
        return _once(body, receive)

    def _call(self, asked: Any) -> dict[str, Any]:
        """A call of an event's function, with nothing in it but what Gradio's own page sends."""
        function = self._page.fns.get(_whole_number(asked, "fn_index"))
        data, event = asked.get("data"), asked.get("event_data")
        if function is None or function.fn is None:  # what has none the page does alone
            raise HttpError(400, "fn_index names no event")
        if not isinstance(data, list) or len(data) != len(function.inputs):
            raise HttpError(400, f"data must be a list of {len(function.inputs)} values")
        if event is not None and not isinstance(event, dict):
            raise HttpError(400, "event_data must be an object or null")
        trigger = None if asked.get("trigger_id") is None else _whole_number(asked, "trigger_id")
        values = [
            self._file(value) if isinstance(block, gr.File) else _plain(value)
            for block, value in zip(function.inputs, data, strict=True)
        ]
        return {
            "fn_index": asked["fn_index"],
            "data": values,
            "event_data": event,
            "trigger_id": trigger,
            "session_hash": _session(asked),
        }

    def _question(self, asked: Any) -> dict[str, Any]:
        """A call of a panel's server function, which checks `data` itself."""
        block = self._page.blocks.get(_whole_number(asked, "component_id"))
        name = asked.get("fn_name")
        function = getattr(block, name, None) if isinstance(name, str) else None
        if not getattr(function, "_is_server_fn", False):
            raise HttpError(400, "component_id and fn_name name no function")
        return {
            "component_id": asked["component_id"],
            "fn_name": name,
            "data": asked.get("data"),
            "session_hash": _session(asked),
        }

    def _file(self, value: Any) -> dict[str, Any] | None:
        """An uploaded file, by the path that the upload gave it; the client's own name is left out."""
        if value is None:
            return None
        path = value.get("path") if isinstance(value, dict) else None
        if not isinstance(path, str) or path not in self._page.upload_file_set:
            raise HttpError(400, "a file must have been uploaded first")
        if not Path(path).is_file():
            raise HttpError(400, "the upload is not here any more; drop the file again")
        return {"path": path, "meta": {"_type": "gradio.FileData"}}


class _Answer:
    """`send`, with our headers; the page itself with a policy that names its own inline scripts."""

    def __init__(self, send: Send, is_page: bool) -> None:
        self._send, self._is_page = send, is_page
        self._start: Message | None = None  # held back until the page's body is known
        self._body = b""
        self.begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = not self._is_page
            if self._is_page:
                self._start = message
            else:
                await self._send(_with_headers(message, _CLOSED))
        elif self._start is not None and message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                self.begun = True
                await self._send(_with_headers(self._start, policy(self._body)))
                await self._send({"type": "http.response.body", "body": self._body})
        else:
            await self._send(message)

    async def refuse(self, refused: HttpError) -> None:
        body = msgspec.json.encode({"error": str(refused)})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        start = {"type": "http.response.start", "status": refused.status, "headers": headers}
        await self._send(_with_headers(start, _CLOSED))
        await self._send({"type": "http.response.body", "body": body})


def policy(page: bytes) -> str:
    """The Content-Security-Policy of a page of Gradio.

    Its inline scripts are allowed by their hashes. 'unsafe-eval': Gradio makes a function of each panel's
    script. Inline styles: Svelte writes them.
    """
    digests = (base64.b64encode(hashlib.sha256(text).digest()).decode() for text in _INLINE.findall(page))
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src 'self' 'unsafe-eval' {hashes}".rstrip(),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self'",
            "connect-src 'self'",
            "manifest-src 'self'",
            "base-uri 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        ]
    )


def _with_headers(start: Message, csp: str) -> Message:
    added = {**HEADERS, b"content-security-policy": csp.encode()}
    kept = [(key, value) for key, value in start.get("headers", []) if key.lower() not in added]
    return {**start, "headers": [*kept, *added.items()]}


def _headers(scope: Scope) -> list[tuple[str, str]]:
    return [(key.decode("latin-1").lower(), value.decode("latin-1")) for key, value in scope["headers"]]


def _only(headers: list[tuple[str, str]], name: str) -> str | None:
    """A header's value; None where it is missing. Raises HttpError where it comes twice."""
    values = [value.strip() for key, value in headers if key == name]
    if len(values) > 1:
        raise HttpError(400, f"the header {name} comes twice")
    return values[0] if values else None


def _name_of(host: str | None) -> str | None:
    """`[::1]:7860` -> `[::1]`, in small letters; None for what is no host."""
    match = _HOST.fullmatch(host or "")
    return match[1].lower().removesuffix(".") if match else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _failure(path: str, error: Exception) -> HttpError:
    """What is said of an exception that came out of Gradio."""
    if path != UPLOAD:
        return HttpError(500, "the app failed; see its log")
    if isinstance(error, OSError) and error.errno:
        return HttpError(
            507, f"the upload can't be kept ({error.strerror}); DDVIZ_CACHE moves it to another disk"
        )
    return HttpError(400, "the upload is no form with a file")


def _too_large(most: int) -> HttpError:
    return HttpError(413, f"a request may have {most >> 20} MiB here; this one has more")


def _bounded(receive: Receive, most: int) -> Receive:
    """`receive`, which raises HttpError as soon as more than `most` bytes came."""
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise _too_large(most)
        return message

    return bounded


async def _whole(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise HttpError(400, "the request was cut off")
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _once(body: bytes, receive: Receive) -> Receive:
    """Gives the body, then what comes after it: the client going away."""
    given = False

    async def once() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return once


def _whole_number(asked: Any, name: str) -> int:
    value = asked.get(name) if isinstance(asked, dict) else None
    if type(value) is not int:  # True is none
        raise HttpError(400, f"a request must be an object with a whole number {name}")
    return value


def _session(asked: dict[str, Any]) -> str:
    value = asked.get("session_hash")
    if not isinstance(value, str) or not _SESSION.fullmatch(value):
        raise HttpError(400, "session_hash must be up to 64 letters and digits")
    return value


def _plain(value: Any) -> Any:
    """A field of a form: text, a number, a tick or nothing. What it means, its function checks."""
    if isinstance(value, list | dict):
        raise HttpError(400, "a field must be text, a number, true, false or null")
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise HttpError(400, f"a field may have {MAX_TEXT >> 20} Mi characters; this one has more")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise HttpError(400, "a number is too large")
    return value
