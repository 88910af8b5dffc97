"""HTTP reads with limits: a deadline for the whole answer, a largest size, and the content types that are accepted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import httpx

from tuner.transport import Unreached, explained, speaks_tls, unusable_authorities

Answer = TypeVar("Answer")

_TLS_S = 2.0
"""How long a handshake may take that finds out whether a server speaks TLS, in seconds."""

BODY_LIMIT = 2**20
"""The largest body in bytes, unless the caller gives another."""

JSON = ("application/json",)


class HttpError(Exception):
    """There is no valid answer; the message says why, with what to do if that is known.

    `problem` and `remedy` are the parts of the message. `connected` is False if nothing accepts connections there,
    and `lasting` True if trying again cannot help.
    """

    def __init__(self, problem: str, *, remedy: str = "", connected: bool = True, lasting: bool = False) -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy
        self.connected = connected
        self.lasting = lasting


@dataclass(frozen=True)
class Reply:
    """The answer of a listener; `status` is None if it accepted the connection and sent no valid answer in time.

    In that case `problem` has the reason. `location` is the address that a redirection names.
    """

    status: int | None
    body: bytes = b""
    problem: str | None = field(default=None, compare=False)
    location: str | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """The body as UTF-8; bytes that are not are replaced."""
        return self.body.decode("utf-8", "replace")


@dataclass(frozen=True)
class ReadLimits:
    """What is accepted as an answer.

    Attributes:
        deadline_s: seconds from the start of the connection to the last byte.
        size: largest body in bytes.
        types: content types of an answer with status 200; any if empty. An answer without a type is accepted.
    """

    deadline_s: float
    size: int = BODY_LIMIT
    types: tuple[str, ...] = ()


def fetch(
    url: str, limits: ReadLimits, *, method: str = "GET", headers: Mapping[str, str] | None = None, redirects: int = 0
) -> Reply:
    """Return the answer to a request without a body. Proxies of the environment are used.

    Args:
        url: of `http` or `https`.
        limits: what is accepted.
        method: `GET` or `HEAD`.
        headers: of the request.
        redirects: how many are followed.

    Raises:
        HttpError: for text that is no URL, and without a valid answer within the limits.
    """
    client = _client(headers, redirects)
    try:
        reply = _run(client, method, url, limits)
    except HttpError as error:
        if error.connected and _is_of_tls(url, limits):
            raise _of_tls(url) from None
        raise
    if reply.status == 400 and _is_of_tls(url, limits):  # as nginx and Go answer HTTP without TLS
        raise _of_tls(url)
    return reply


def get_local(
    host: str,
    port: int,
    path: str,
    timeout_s: float,
    *,
    size: int = BODY_LIMIT,
    types: tuple[str, ...] = (),
    headers: Mapping[str, str] | None = None,
) -> Reply | None:
    """Return the answer to `GET path`; None if nothing accepts the connection.

    Proxies of the environment are ignored. Certificates are neither loaded nor needed: the URL is plain HTTP.

    Args:
        host: of this machine.
        port: of the listener.
        path: with its leading slash.
        timeout_s: see `ReadLimits.deadline_s`.
        size: see `ReadLimits`.
        types: see `ReadLimits`.
        headers: of the request.
    """
    client = httpx.AsyncClient(headers=headers, trust_env=False, verify=False, timeout=None)
    try:
        return _run(client, "GET", f"http://{host}:{port}{path}", ReadLimits(timeout_s, size, types))
    except HttpError as error:
        return Reply(None, problem=str(error)) if error.connected else None


def post_json(url: str, body: object, limits: ReadLimits, headers: Mapping[str, str] | None = None) -> Reply:
    """Return the answer to a POST of JSON to a server of this machine; proxies are ignored, as by `get_local`.

    Args:
        url: of plain HTTP.
        body: plain JSON.
        limits: what is accepted.
        headers: of the request.

    Raises:
        HttpError: without a valid answer within the limits.
    """
    client = httpx.AsyncClient(
        headers={**(headers or {}), "content-type": "application/json"}, trust_env=False, verify=False, timeout=None
    )
    return _run(client, "POST", url, limits, json.dumps(body).encode())


def post(url: str, content: bytes, headers: Mapping[str, str], deadline_s: float) -> int:
    """Return the status of the answer to a POST, whose body is not read; no redirect is followed.

    Proxies of the environment are used.

    Args:
        url: of `http` or `https`.
        content: body of the request.
        headers: of the request, with the type of the body.
        deadline_s: seconds from the start of the connection to the answer's head.

    Raises:
        HttpError: for text that is no URL, and without a valid answer in time.
    """
    client = _client(headers)

    async def send() -> int:
        sent = client.stream("POST", url, content=content)
        async with asyncio.timeout(deadline_s), client, sent as response:
            return response.status_code

    return _in_time(send(), deadline_s)


def _is_of_tls(url: str, limits: ReadLimits) -> bool:
    """Return whether a URL of HTTP without TLS names the port of a server that speaks TLS."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parts.scheme == "http" and speaks_tls(parts.host, parts.port or 80, min(_TLS_S, limits.deadline_s))


def _of_tls(url: str) -> HttpError:
    remedy = f"give an address with https://, such as {httpx.URL(url).copy_with(scheme='https', path='/', query=None)}"
    return HttpError("the server speaks TLS", remedy=remedy.rstrip("/"), lasting=True)


def _client(headers: Mapping[str, str] | None, redirects: int = 0) -> httpx.AsyncClient:
    try:
        return httpx.AsyncClient(headers=headers, timeout=None, follow_redirects=redirects > 0, max_redirects=redirects)
    except OSError:
        found = unusable_authorities()
        if found is None:
            raise
        raise HttpError(found.problem, remedy=found.remedy, connected=False, lasting=found.lasting) from None


def _run(client: httpx.AsyncClient, method: str, url: str, limits: ReadLimits, content: bytes | None = None) -> Reply:
    """Send the request in an event loop of its own: only a cancelled task ends a read of a trickled head."""
    return _in_time(_read(client, method, url, limits, content), limits.deadline_s)


def _in_time(reading: Coroutine[None, None, Answer], deadline_s: float) -> Answer:
    """Return what a request returns.

    Raises:
        HttpError: without a valid answer in time.
    """
    try:
        return _in_own_loop(reading)
    except TimeoutError:
        raise HttpError(f"no whole answer within {deadline_s:.3g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        found = explained(error) or Unreached(" ".join(str(error).split()).rstrip(".") or type(error).__name__)
        connected = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
        raise HttpError(found.problem, remedy=found.remedy, connected=connected, lasting=found.lasting) from None


def _in_own_loop(reading: Coroutine[None, None, Answer]) -> Answer:
    """Run the coroutine to its end, in a thread if this one has a running event loop, as a notebook's has."""
    if not _loop_runs():
        return asyncio.run(reading)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, reading).result()


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _read(
    client: httpx.AsyncClient, method: str, url: str, limits: ReadLimits, content: bytes | None = None
) -> Reply:
    identity = {"accept-encoding": "identity"}  # a compressed body may be a thousand times its size
    sent = client.stream(method, url, headers=identity, content=content)
    async with asyncio.timeout(limits.deadline_s), client, sent as response:
        _check_head(response, limits)
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > limits.size:
                raise _too_large(limits)
        return Reply(response.status_code, bytes(body), location=response.headers.get("location"))


def _check_head(response: httpx.Response, limits: ReadLimits) -> None:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise HttpError("the answer is compressed")
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.status_code == 200 and limits.types and kind and kind not in limits.types:
        raise HttpError(f"its type is {kind}, not {' or '.join(limits.types)}")
    announced = response.headers.get("content-length", "")
    if response.request.method != "HEAD" and announced.isdecimal() and int(announced) > limits.size:
        raise _too_large(limits)


def _too_large(limits: ReadLimits) -> HttpError:
    return HttpError(f"more than {limits.size} bytes")
