#!/usr/bin/env python3
"""A fake server of streamed completions for load generators: exact pace, chosen faults, its own record of arrivals.

    streaming_server.py [--first-ms 20] [--token-ms 5] [--faults JSON] [--log FILE] [--port 0] [--model fake]
                        [--missing PATH]… [--die TEXT] [--slots N]

Prints its port as the first line. `--missing` are paths that answer 404; `--slots` limits the answers at a time;
`--die` ends it with exit code 1 and the text. It answers `POST /v1/completions` and `/v1/chat/completions` with
`stream: true`: the first token after `--first-ms`, then one every `--token-ms`, `max_tokens` in all, the usage,
`[DONE]`. `--faults` maps the number of a request, in the order of arrival from 0, to what happens to it:

    stall      half the tokens, then nothing more
    reset      half the tokens, then the connection is reset
    half       half the tokens, then the connection is closed as if that were the end
    short      half the tokens, then a well-formed end
    malformed  half the tokens, then an event that is no JSON
    429, 500   that status, with a JSON body

`--log` gets a line a request: its number, CLOCK_MONOTONIC in seconds at which its last byte had arrived, and its
prompt's length in words. One thread, standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
import sys
from typing import Any, TextIO

HALVED = ("stall", "reset", "half", "short", "malformed")


class Server:
    """Counts arrivals and answers them."""

    def __init__(self, arguments: argparse.Namespace, log: TextIO | None) -> None:
        self.first_s: float = arguments.first_ms / 1000
        self.token_s: float = arguments.token_ms / 1000
        self.faults: dict[str, str] = json.loads(arguments.faults)
        self.model: str = arguments.model
        self.missing: list[str] = arguments.missing
        self.places = asyncio.Semaphore(arguments.slots)
        self.log = log
        self.count = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, request after request."""
        try:
            while (request := await read_request(reader)) is not None:
                if not await self.reply(*request, writer):
                    return
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def reply(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return False if the connection must not be used again."""
        if path in self.missing:
            respond(writer, 404, {"error": "no such endpoint"})
        elif path.endswith("/completions"):
            return await self.complete(body, writer)
        else:
            respond(writer, 200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        return True

    async def complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        """Answer one completion; return False if the connection must not be used again."""
        number, self.count = self.count, self.count + 1
        if self.log is not None:
            words = len(str(body.get("prompt", "")).split())
            self.log.write(f"{number} {asyncio.get_running_loop().time():.6f} {words}\n")
            self.log.flush()
        fault = self.faults.get(str(number))
        if fault is not None and fault.isdecimal():
            respond(writer, int(fault), {"error": {"message": f"refused with {fault}", "code": int(fault)}})
            return True
        async with self.places:
            return await self.stream(body, fault, writer)

    async def stream(self, body: dict[str, Any], fault: str | None, writer: asyncio.StreamWriter) -> bool:
        """Send the tokens at their times, whatever the sending of each took."""
        wanted = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        tokens = wanted // 2 if fault in HALVED else wanted
        loop = asyncio.get_running_loop()
        due = loop.time() + self.first_s
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for index in range(tokens):
            await asyncio.sleep(max(0.0, due - loop.time()))
            event(writer, {"id": "x", "object": "text_completion", "choices": [choice(index, None)]})
            due += self.token_s
        if fault == "stall":
            await asyncio.Event().wait()
        if fault == "reset":
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await writer.drain()
            writer.transport.abort()
            return False
        if fault == "half":
            await writer.drain()
            return False
        if fault == "malformed":
            chunk(writer, b'data: {"choices": [{"text": \n\n')
        return finish(writer, body, tokens)


def choice(index: int, reason: str | None) -> dict[str, Any]:
    """Return one choice that fits completions and chat completions."""
    text = f" t{index}"
    return {"index": 0, "text": text, "delta": {"content": text}, "finish_reason": reason}


def finish(writer: asyncio.StreamWriter, body: dict[str, Any], tokens: int) -> bool:
    """Send the usage and the end of the stream."""
    prompt = body.get("prompt", "")
    words = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
    usage = {"prompt_tokens": words, "completion_tokens": tokens, "total_tokens": words + tokens}
    event(writer, {"id": "x", "object": "text_completion", "choices": [], "usage": usage})
    chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    return True


def event(writer: asyncio.StreamWriter, data: dict[str, Any]) -> None:
    """Send one event."""
    chunk(writer, b"data: " + json.dumps(data).encode() + b"\n\n")


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send one HTTP chunk."""
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def respond(writer: asyncio.StreamWriter, status: int, data: dict[str, Any]) -> None:
    """Send a whole JSON answer."""
    send(writer, status, json.dumps(data), "application/json")


def send(writer: asyncio.StreamWriter, status: int, text: str = "", kind: str = "text/plain") -> None:
    """Send a whole answer."""
    body = text.encode()
    head = f"HTTP/1.1 {status} Status\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def refuse(writer: asyncio.StreamWriter, message: str) -> None:
    """Refuse a request in the form of SGLang and TensorRT-LLM."""
    error = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
    respond(writer, 400, error)


async def read_request(reader: asyncio.StreamReader) -> tuple[str, dict[str, Any]] | None:
    """Read one request; return its path and its JSON body, None at the end of the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    lines = head.split("\r\n")
    headers = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return lines[0].split(" ")[1], json.loads(body) if body else {}


async def serve(arguments: argparse.Namespace, log: TextIO | None) -> None:
    """Serve until the process is ended."""
    server = Server(arguments, log)
    listening = await asyncio.start_server(server.connected, "127.0.0.1", arguments.port, backlog=1024, limit=2**22)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first-ms", type=float, default=20.0)
    parser.add_argument("--token-ms", type=float, default=5.0)
    parser.add_argument("--faults", default="{}")
    parser.add_argument("--log")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="fake")
    parser.add_argument("--missing", action="append", default=[])
    parser.add_argument("--slots", type=int, default=2**20)
    parser.add_argument("--die")
    arguments = parser.parse_args()
    if arguments.die is not None:
        sys.exit(arguments.die)
    log = open(arguments.log, "w") if arguments.log else None  # noqa: SIM115  closed by the end of the process
    try:
        asyncio.run(serve(arguments, log))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
