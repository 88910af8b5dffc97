"""One process of the service: its listening socket."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

from storage.service.store import open_service_store
from tuner.service.serve import _listen
from tuner.settings.serve import ServeSettings


def test_answers_are_sent_at_once(tmp_path: Path) -> None:
    """asyncio sets TCP_NODELAY where a socket names its protocol; accepted ones have that of the listener."""
    service = open_service_store(str(tmp_path / "tuner.db"))
    with closing(service), closing(_listen(ServeSettings(port=0), service)) as listener:
        assert (listener.type, listener.proto) == (socket.SOCK_STREAM, socket.IPPROTO_TCP)
