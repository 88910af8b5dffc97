"""The guard before the application: bodies, rates, and the headers of every answer."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.service.http.access import digest_of_request
from tuner.service.http.edge.rates import Key, Rates
from tuner.service.http.problems import Problem

LARGEST_BODY = 4 * 1024 * 1024
"""Most bytes of a request's body."""

EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""The hash of an empty text. Plotly makes an empty `<style>` and adds its rules by script, which no policy forbids."""

HEADERS = {
    # Plotly writes `style` attributes within its SVG. Only they may be inline; scripts and style sheets are files.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; script-src 'self'; style-src 'self'; "
    f"style-src-elem 'self' {EMPTY_STYLE}; style-src-attr 'unsafe-inline'; object-src 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of an answer that does not set its own."""


class Guard:
    """Refuses a body that is too large or has no size, and too many requests; adds the headers of every answer.

    Starlette's own base class for this costs a quarter of a small request.
    """

    def __init__(self, app: ASGIApp, rates: Rates) -> None:
        self._app, self._rates = app, rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        digest = digest_of_request(Request(scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                if digest is not None and answer is self._app:
                    self._rates.answered(digest, scope["path"], message["status"])
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        address = scope["client"][0] if scope.get("client") else ""
        key = self._rates.key(scope["method"], scope["path"], digest, address)
        answer = _refused_body(Headers(scope=scope)) or self._refused_rate(key) or self._app
        await answer(scope, receive, send_with_headers)

    def _refused_rate(self, key: Key | None) -> Response | None:
        """Count a request, and return the answer to one that is too many."""
        wait = None if key is None else self._rates.wait(key)
        if key is None or wait is None:
            return None
        rate = key[1]
        rule = f"{rate.rate:g} requests a second, and {rate.burst:,} at once, are the most"
        detail = f"too many requests: {rule}; wait {wait} s"
        return Problem(429, detail, rule=rule, headers={"Retry-After": str(wait)}).response()


def _refused_body(headers: Headers) -> Response | None:
    """Return the answer to a request whose body is refused by its headers."""
    length = headers.get("content-length")
    if headers.get("transfer-encoding") is not None or (length is not None and not length.isdigit()):
        return Problem(413, "a body needs a Content-Length").response()
    if length is not None and int(length) > LARGEST_BODY:
        return Problem(413, f"a body has at most {LARGEST_BODY:,} bytes, not {int(length):,}").response()
    return None
