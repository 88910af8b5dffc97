"""Plans made by hand, a fake server as a process, and servers with chosen faults."""

import asyncio
import json
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from tests.fakes import streaming_server
from tuner.loadgen.plan import PlannedRequest, RequestPlan
from tuner.loadgen.run import PlanResult, PlanRun
from tuner.workloads.results import RequestRecord, RequestStatus

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


def load_against(handler: Handler, requests: list[PlannedRequest], **changes: Any) -> PlanResult:
    """Run a plan against a server that calls `handler` for each connection."""
    return asyncio.run(_both(handler, requests, changes))


async def _both(handler: Handler, requests: list[PlannedRequest], changes: dict[str, Any]) -> PlanResult:
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
        return await PlanRun(plan(url(server.sockets[0].getsockname()[1]), **changes), requests).run()
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
