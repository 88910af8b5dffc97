#!/usr/bin/env python3
"""A small proxy before a server of completions: it clips lengths, and answers a request that it knows from its cache.

    caching_proxy.py --port 0 --server http://127.0.0.1:8001

It has `/v1/completions` and passes `/v1/models` on; other paths answer 404. Its settings are environment variables:

    CACHE             folder of answers, which outlives the proxy; none without it
    MOST_TOKENS       the largest `max_tokens` that is passed on
    MOST_PROMPT       the most tokens of a prompt of token ids that are passed on
    PROXY_LOG         a file that gets a line for each completion: `hit` or `miss`

Prints its port as the first line. Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LOG_LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """One connection, which ends after its answer."""

    server_url: str

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self.answer(404, b"{}")
            return
        try:
            with urllib.request.urlopen(self.server_url + self.path, timeout=5) as reply:
                self.answer(reply.status, reply.read())
        except urllib.error.URLError:
            self.answer(502, b"{}")

    def do_POST(self) -> None:
        body = clipped(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        data = json.dumps(body, sort_keys=True).encode()
        folder = os.environ.get("CACHE")
        kept = None if folder is None else Path(folder) / hashlib.sha256(data).hexdigest()
        known = kept is not None and kept.exists()
        note("hit" if known else "miss")
        if kept is not None and known:
            self.answer(200, kept.read_bytes(), "text/event-stream")
            return
        request = urllib.request.Request(
            self.server_url + self.path, data=data, headers={"Content-Type": "application/json"}
        )
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        answer = b""
        with urllib.request.urlopen(request, timeout=60) as reply:
            while piece := reply.read1(65536):
                self.wfile.write(piece)
                self.wfile.flush()
                answer += piece
        if kept is not None:
            kept.parent.mkdir(exist_ok=True)
            kept.write_bytes(answer)

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def clipped(body: dict[str, Any]) -> dict[str, Any]:
    """Return the request with its lengths clipped."""
    most, longest = os.environ.get("MOST_TOKENS"), os.environ.get("MOST_PROMPT")
    if most is not None:
        body["max_tokens"] = min(body["max_tokens"], int(most))
    if longest is not None:
        body["prompt"] = body["prompt"][: int(longest)]
    return body


def note(word: str) -> None:
    """Write a line into the log."""
    if "PROXY_LOG" in os.environ:
        with LOG_LOCK, open(os.environ["PROXY_LOG"], "a") as log:
            log.write(f"{word}\n")


class Server(ThreadingHTTPServer):
    """One thread for each connection; the threads do not delay the end."""

    daemon_threads = True
    request_queue_size = 256  # with the default of 5, users of a busy machine try again after a second


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--server", required=True)
    arguments = parser.parse_args()
    Handler.server_url = arguments.server
    server = Server(("127.0.0.1", arguments.port), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
