"""One process of the service: its listening socket."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

from storage.service.store import open_service_store
from tuner.service.serve import ServeSettings, _listen


def test_answers_are_sent_at_once(tmp_path: Path) -> None:
    """asyncio sets TCP_NODELAY where a socket names its protocol; accepted ones have that of the listener."""
    settings = ServeSettings(str(tmp_path / "tuner.db"), tmp_path, port=0)
    with closing(open_service_store(settings.url)) as service, closing(_listen(settings, service)) as listener:
        assert (listener.type, listener.proto) == (socket.SOCK_STREAM, socket.IPPROTO_TCP)
