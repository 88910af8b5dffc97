"""A running server whose clients send nothing, half of something, or one byte at a time."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing, contextmanager

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, StreamingResponse

from tuner.service.http.edge.connections import Limits
from tuner.service.http.server import make_server

LIMITS = Limits(most=60, per_address=30, head_s=0.8, body_s=0.8, unread_s=0.8)
HEAD = b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
LATE_S = 10.0
"""How late a deadline may be on a busy machine."""


def application() -> FastAPI:
    app = FastAPI()
    app.state.release = asyncio.Event()

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/body")
    async def body(request: Request) -> int:
        return len(await request.body())

    @app.post("/refused")
    async def refused() -> PlainTextResponse:
        return PlainTextResponse("no", 413)

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        return StreamingResponse(_ticks())

    @app.get("/large")
    async def large() -> PlainTextResponse:
        return PlainTextResponse("x" * 30_000_000)

    return app


async def _ticks() -> AsyncIterator[str]:
    for index in range(20):
        yield f"{index}\n"
        await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = make_server(application(), None, LIMITS)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    number = listener.getsockname()[1]
    while not server.started:
        time.sleep(0.01)
    yield number
    server.should_exit = True
    thread.join()


def opened(port: int, data: bytes = b"") -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=LATE_S)
    found.sendall(data)
    return found


@contextmanager
def many(port: int, count: int, data: bytes) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(opened(port, data))) for _ in range(count)]


def rest(connection: socket.socket) -> bytes:
    """Return what the server sends until it ends the connection."""
    found = b""
    try:
        while data := connection.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


def status(port: int, path: str = "/healthz") -> int:
    return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=LATE_S).status_code


@pytest.mark.parametrize("data", [b"", b"GET /heal", HEAD + b"x", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_health_is_answered_while_one_address_holds_many_connections(port: int, data: bytes) -> None:
    with many(port, 3 * LIMITS.per_address, data) as connections:
        assert status(port) == 200
        for each in connections:
            rest(each)  # each ends


def test_a_half_head_gets_408(port: int) -> None:
    with closing(opened(port, b"GET /heal")) as connection:
        assert rest(connection).startswith(b"HTTP/1.1 408 ")


def test_a_silent_connection_is_closed_without_an_answer(port: int) -> None:
    with closing(opened(port)) as connection:
        assert rest(connection) == b""


def test_a_body_that_never_ends_gets_408(port: int) -> None:
    with closing(opened(port, HEAD + b"x")) as connection:
        assert rest(connection).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("data", [b"", HEAD, HEAD.replace(b"/body", b"/refused")], ids=["head", "body", "answered"])
def test_one_byte_at_a_time_does_not_move_the_deadline(port: int, data: bytes) -> None:
    began = time.monotonic()
    with closing(opened(port, data)) as connection:
        while time.monotonic() < began + LATE_S:
            try:
                connection.send(b"x")
            except (BrokenPipeError, ConnectionResetError):
                break
            time.sleep(0.1)
        else:
            pytest.fail("the connection is still open")


def test_a_long_answer_is_not_cut(port: int) -> None:
    lines = httpx.get(f"http://127.0.0.1:{port}/stream", timeout=LATE_S).text.split()
    assert lines == [str(index) for index in range(20)]  # 2 s, and every deadline is 0.8 s


def test_a_kept_connection_has_a_new_deadline_for_each_request(port: int) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with closing(opened(port)) as connection:
        for _ in range(4):
            time.sleep(0.3)
            connection.sendall(request)
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_body_in_parts_is_read(port: int) -> None:
    with closing(opened(port, HEAD)) as connection:
        for _ in range(4):
            connection.sendall(b"x" * 250)
            time.sleep(0.1)
        assert b"1000" in connection.recv(65536)


def test_a_client_that_does_not_read_is_ended(port: int) -> None:
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(LATE_S)
        connection.connect(("127.0.0.1", port))
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(2 * LIMITS.unread_s)
        assert len(rest(connection)) < 30_000_000


def test_an_address_whose_connections_are_all_answered_gets_health_only(port: int) -> None:
    streams = many(port, LIMITS.per_address, b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with streams as connections:
        for each in connections:
            assert each.recv(10)  # its answer has begun
        assert (status(port), status(port, "/large")) == (200, 503)
        refused = httpx.get(f"http://127.0.0.1:{port}/large", timeout=LATE_S)
        assert refused.headers["retry-after"] == "5"
        assert "no more connections are free" in refused.json()["detail"]
