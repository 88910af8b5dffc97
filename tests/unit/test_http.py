"""One GET: answers, listeners that send none, and ports on which nothing listens."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tuner.http import Reply, get_local


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/good" else 503)
        self.end_headers()
        self.wfile.write(b"caf\xc3\xa9 \xff")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_an_answer_has_its_status_and_body(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nothing listens there: a request by it would fail
    reply = get_local("127.0.0.1", port, "/good", 10)
    assert reply is not None
    assert (reply.status, reply.text) == (200, "café \ufffd")
    bad = get_local("127.0.0.1", port, "/bad", 10)
    assert bad is not None
    assert bad.status == 503


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert get_local("127.0.0.1", port, "/", 10) is None


def test_a_silent_listener_has_no_status() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        begun = time.monotonic()
        assert get_local("127.0.0.1", listener.getsockname()[1], "/", 0.2) == Reply(None)
        assert time.monotonic() - begun < 10


def test_a_listener_that_speaks_no_http_has_no_status() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            connection.sendall(b"220 mail ready\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        assert get_local("127.0.0.1", listener.getsockname()[1], "/", 10) == Reply(None)
        thread.join()
