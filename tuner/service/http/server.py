"""Run an application with Uvicorn."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI

SHUTDOWN_S = 5
"""Seconds that open requests have to end."""

CONNECTIONS = 1000
"""Connections at once; further ones get 503."""

SWITCH_S = 0.0005
"""How long a thread keeps the interpreter while others wait; a transaction waits for it after each statement."""


def run_server(app: FastAPI, listener: socket.socket, certificate: tuple[Path, Path] | None) -> None:
    """Serve on a bound socket until SIGINT or SIGTERM.

    Args:
        app: the application.
        listener: bound, not listening yet.
        certificate: files of the certificate and its key; None: HTTP.
    """
    sys.setswitchinterval(SWITCH_S)
    make_server(app, certificate).run(sockets=[listener])


def make_server(app: FastAPI, certificate: tuple[Path, Path] | None) -> uvicorn.Server:
    """Return the server of an application; see `run_server`."""
    file, key = (None, None) if certificate is None else certificate
    config = uvicorn.Config(
        app,
        log_config=None,  # the process has its own
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=SHUTDOWN_S,
        ssl_certfile=file,
        ssl_keyfile=key,
    )
    return uvicorn.Server(config)
