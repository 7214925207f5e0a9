"""Who asks: a browser is known by a cookie, so that each has a run of its own.

In:  every HTTP request, on its way to Gradio.
Out: `visitor()`, anywhere below: a random name, the same for all pages of one browser.
Not here: who may come in (guard.py), what a visitor runs (session.py).
"""

import re
import secrets
from contextvars import ContextVar
from http.cookies import CookieError, SimpleCookie
from typing import Any

COOKIE = "ddviz-visitor"
NAME = re.compile(r"[A-Za-z0-9_-]{22}")

_visitor: ContextVar[str] = ContextVar("visitor", default="")


def visitor() -> str:
    """The browser whose request is being answered; "" for one without cookies, and outside of requests."""
    return _visitor.get()


class Visitors:
    """ASGI middleware: names a browser with the first page that it opens, and tells `visitor` who asks."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        name = _named(scope)
        is_new = not name and scope["method"] == "GET" and scope["path"] == "/"

        async def send_named(message: Any) -> None:
            if is_new and message["type"] == "http.response.start":
                cookie = f"{COOKIE}={secrets.token_urlsafe(16)}; Path=/; HttpOnly; SameSite=Strict"
                message["headers"] = [*message["headers"], (b"set-cookie", cookie.encode())]
            await send(message)

        token = _visitor.set(name)
        try:
            return await self.app(scope, receive, send_named)
        finally:
            _visitor.reset(token)


def _named(scope: Any) -> str:
    cookies = b"; ".join(value for key, value in scope["headers"] if key == b"cookie")
    try:
        found = SimpleCookie(cookies.decode("latin-1")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None and NAME.fullmatch(found.value) else ""
