"""An HTTP server of this process, which answers as a function of a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Asked:
    """A request."""

    method: str
    path: str
    headers: Message[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    content: str | bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def http_server(answer: Callable[[Asked], Answer]) -> Iterator[str]:
    """Yield the address of a server whose threads answer each request with what the function returns."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            found = answer(Asked(self.command, self.path, self.headers, body))
            content = found.content.encode() if isinstance(found.content, str) else found.content
            self.send_response(found.status)
            for name, value in {"content-length": str(len(content)), **found.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
