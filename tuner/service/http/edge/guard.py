"""The guard before the application: bodies, rates, and the headers of every answer."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.service.http.access import digest_of_request
from tuner.service.http.edge.rates import HEALTH, Key, Rates
from tuner.service.http.edge.refusals import Refusals
from tuner.service.http.problems import Problem
from tuner.service.watching.meters import Meters

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
    """Refuses bodies without a size or with too large ones, and too many requests.

    It counts answers, has refusals written to the audit log, and adds headers to each answer.

    Starlette's own base class for this costs a quarter of a small request.
    """

    def __init__(
        self, app: ASGIApp, rates: Rates, meters: Meters, refusals: Refusals, names: frozenset[str] | None
    ) -> None:
        self._app, self._rates, self._meters, self._refusals, self._names = app, rates, meters, refusals, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0
        digest = digest_of_request(Request(scope))
        address = scope["client"][0] if scope.get("client") else ""
        key = self._rates.key(scope["method"], scope["path"], digest, address)
        headers = Headers(scope=scope)
        refusal = _refused_body(headers) or self._refused_name(scope["path"], headers) or self._refused_rate(key)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._count(scope, status, began)
                if digest is not None and refusal is None:
                    self._rates.answered(digest, scope["path"], message["status"])
                await self._refusals.note(scope, status)
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await (refusal or self._app)(scope, receive, send_with_headers)
        finally:
            if not status:  # an exception, which Starlette answers around this class
                self._count(scope, 500, began)

    def _count(self, scope: Scope, status: int, began: float) -> None:
        route = getattr(scope.get("route"), "path", None)
        self._meters.answered(scope["method"], route, status, time.perf_counter() - began)

    def _refused_name(self, path: str, headers: Headers) -> Response | None:
        """Return the answer to a request for another server: a page of that name could use this one (DNS rebinding)."""
        if self._names is None or path in HEALTH or _name_of(headers.get("host", "")) in self._names:
            return None
        rule = f"this server's names are {', '.join(sorted(self._names))}"
        return Problem(421, f"{rule}; use one, or ask an admin of the server", "Host", rule=rule).response()

    def _refused_rate(self, key: Key | None) -> Response | None:
        """Count a request, and return the answer to one that is too many."""
        wait = None if key is None else self._rates.wait(key)
        if key is None or wait is None:
            return None
        rate = key[1]
        rule = f"{rate.rate:g} requests a second, and {rate.burst:,} at once, are the most"
        detail = f"too many requests: {rule}; wait {wait} s"
        return Problem(429, detail, rule=rule, headers={"Retry-After": str(wait)}).response()


def _name_of(host: str) -> str | None:
    """Return the name in a `Host` header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _refused_body(headers: Headers) -> Response | None:
    """Return the answer to a request whose body is refused by its headers."""
    length = headers.get("content-length")
    if headers.get("transfer-encoding") is not None or (length is not None and not length.isdigit()):
        return Problem(413, "a body needs a Content-Length").response()
    if length is not None and int(length) > LARGEST_BODY:
        return Problem(413, f"a body has at most {LARGEST_BODY:,} bytes, not {int(length):,}").response()
    return None
