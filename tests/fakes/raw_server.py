"""A server that sends chosen bytes, whatever it is asked: what a broken or hostile server may answer."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterable, Iterator

Part = bytes | Iterable[bytes]
ENDLESS = itertools.repeat(b"x" * 65536)


class Trickle:
    """A byte every 50 ms, for ever."""

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield b"x"
            time.sleep(0.05)


TRICKLE = Trickle()


@contextlib.contextmanager
def answering(*parts: Part, close: bool = False) -> Iterator[int]:
    """A port on which each connection gets these bytes, and then silence, or its end if `close` is True."""
    stop = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(60)
            for part in parts:
                for piece in [part] if isinstance(part, bytes) else part:
                    connection.sendall(piece)
            if not close:
                stop.wait(60)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
