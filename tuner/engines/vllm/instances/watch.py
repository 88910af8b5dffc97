"""`/health` and `/metrics` of several instances as those of one server."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TIMEOUT_S = 5.0


def fetched(host: str, port: int, path: str) -> tuple[int, bytes] | None:
    """Return status and body of a GET; None if there is no answer within `TIMEOUT_S` seconds."""
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def healthy(host: str, port: int) -> bool:
    """Return whether a server answers `/health` with 200."""
    reply = fetched(host, port, "/health")
    return reply is not None and reply[0] == 200


def joined_metrics(host: str, ports: Sequence[int]) -> bytes:
    """Return the samples of all instances, without comments; a reader sums those of one name, as over labels."""
    pages = [reply[1] for port in ports if (reply := fetched(host, port, "/metrics")) is not None and reply[0] == 200]
    lines = [line for page in pages for line in page.splitlines() if line and not line.startswith(b"#")]
    return b"\n".join(lines) + b"\n"


@contextmanager
def watching(host: str, ports: Sequence[int]) -> Iterator[int]:
    """Answer `/health` and `/metrics` for the instances on a port of this machine, which is returned."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._send(200, joined_metrics(host, ports))
            elif self.path == "/health":
                self._send(200 if all(healthy(host, port) for port in ports) else 503, b"")
            else:
                self._send(404, b"")

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write no access log."""

    server = ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="watch", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
