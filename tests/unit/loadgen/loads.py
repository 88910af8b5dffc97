"""Plans made by hand, a fake server in a process of its own or beside the generator, and servers with chosen faults."""

import argparse
import asyncio
import io
import json
import selectors
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from tests.fakes import streaming_server
from tuner.loadgen.plan import PlannedRequest, RequestPlan
from tuner.loadgen.progress import ProgressWriter
from tuner.loadgen.run import PlanResult, PlanRun
from tuner.workloads.results import RequestRecord, RequestStatus

Result = TypeVar("Result")
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\n'
DONE = b"data: [DONE]\n\n"


def chunks(*parts: bytes) -> bytes:
    """Return the parts as HTTP chunks, without the last one."""
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def stream(*parts: bytes) -> bytes:
    """Return a whole reply with status 200 and these parts as its body."""
    return HEAD + chunks(*parts) + b"0\r\n\r\n"


GOOD = stream(TOKEN, USAGE, DONE)
"""The whole reply to a request for one token."""


class Fake:
    """The fake streaming server as a process, with its log of arrivals."""

    def __init__(self, folder: Path, first_ms: float, token_ms: float, faults: dict[str, str]) -> None:
        self.log = folder / "arrivals.txt"
        argv = [sys.executable, streaming_server.__file__, "--log", str(self.log), "--faults", json.dumps(faults)]
        argv += ["--first-ms", str(first_ms), "--token-ms", str(token_ms)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = url(int(self.process.stdout.readline()))

    def arrivals(self) -> list[float]:
        """Return when each request arrived, in seconds of the monotonic clock."""
        return [float(line.split()[1]) for line in self.log.read_text().splitlines()]

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


class Beside:
    """The fake streaming server for `load_against`, in the process and the time of the generator."""

    def __init__(self, first_ms: float = 5, token_ms: float = 2, faults: dict[str, str] | None = None) -> None:
        self._log = io.StringIO()
        known = {"model": "fake", "missing": [], "slots": 2**20, "faults": json.dumps(faults or {})}
        pace = argparse.Namespace(first_ms=first_ms, token_ms=token_ms, **known)
        self.handler: Handler = streaming_server.Server(pace, self._log).connected

    def arrivals(self) -> list[float]:
        """Return when each request arrived, in seconds of the event loop's clock."""
        return [float(line.split()[1]) for line in self._log.getvalue().splitlines()]


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1/completions"


def plan(at: str, **changes: Any) -> RequestPlan:
    """Return a plan of an open loop with deadlines that nothing meets by accident."""
    known = {"model": "m", "users": None, "max_in_flight": None, "timeout_s": 30.0, "limit_s": 60.0}
    return RequestPlan(url=at, **{**known, **changes})


def due(*times: float | None, tokens: int = 4) -> list[PlannedRequest]:
    """Return a request for each time, for some tokens; its prompt has three words."""
    return [PlannedRequest(index, "a", at, "one two three", 3, tokens) for index, at in enumerate(times)]


def statuses(records: Iterable[RequestRecord]) -> Counter[RequestStatus]:
    return Counter(record.status for record in records)


class VirtualTime(asyncio.SelectorEventLoop):
    """An event loop whose clock takes a microsecond a turn, and goes on to the next timer when all wait.

    So a test waits for no timer, and a machine that is slow or stands still changes no time. Server and client are in
    this loop: between them, no bytes are under way for longer than the system takes.
    """

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now


class _Selector(selectors.DefaultSelector):
    SETTLES_S = 0.001
    """Seconds for bytes that are under way, before each step of the clock; the generator has a timer every 5 ms."""

    TURN_S = 1e-6
    """Without it, one who waits for a time that a timer's rounding missed would wait for ever."""

    def __init__(self, loop: VirtualTime) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0 if timeout == 0 else None if timeout is None else self.SETTLES_S)
        self._loop.now += self.TURN_S + (0 if found else timeout or 0)
        return found


def in_virtual_time(running: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine."""
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(running)


def load_against(
    handler: Handler, requests: list[PlannedRequest], progress: ProgressWriter | None = None, /, **changes: Any
) -> PlanResult:
    """Run a plan in virtual time, against a server that calls `handler` for each connection."""
    return in_virtual_time(_both(handler, requests, progress, changes))


async def _both(
    handler: Handler, requests: list[PlannedRequest], progress: ProgressWriter | None, changes: dict[str, Any]
) -> PlanResult:
    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=2**22)
    try:
        at = url(server.sockets[0].getsockname()[1])
        return await PlanRun(plan(at, **changes), requests, progress).run()
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)


async def asked(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Read one request and return its body."""
    request = await streaming_server.read_request(reader)
    if request is None:
        raise ConnectionError("the client is gone")
    return request[1]


async def forever() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


def replying(reply: bytes, stay: bool = False) -> Handler:
    """Return a handler that sends every request this reply and then closes the connection, unless `stay`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked(reader)
        writer.write(reply)
        await writer.drain()
        if stay:
            await forever()

    return handle


def reset(writer: asyncio.StreamWriter) -> None:
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
