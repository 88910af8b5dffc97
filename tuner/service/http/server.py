"""Run an application with Uvicorn."""

from __future__ import annotations

import resource
import socket
import sys
from dataclasses import replace
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from tuner.service.http.edge.connections import Connections, DoorConfig, Limits

SHUTDOWN_S = 5
"""Seconds that open requests have to end."""

OPEN_FILES = 4096
"""Open files that the process asks the system for; each connection is one."""

OWN_FILES = 200
"""Open files that are no connections: databases, logs, and pipes to drivers."""

SWITCH_S = 0.0005
"""How long a thread keeps the interpreter while others wait; a transaction waits for it after each statement."""


def run_server(
    app: FastAPI, listener: socket.socket, certificate: tuple[Path, Path] | None, limits: Limits | None = None
) -> None:
    """Serve on a bound socket until SIGINT or SIGTERM.

    The listener is bound, and does not listen yet. The certificate is its file and that of its key; None: HTTP.
    """
    sys.setswitchinterval(SWITCH_S)
    asked = limits or Limits()
    limits = replace(asked, most=max(1, min(asked.most, _open_files() - OWN_FILES)))
    make_server(app, certificate, limits).run(sockets=[listener])


def make_server(app: FastAPI, certificate: tuple[Path, Path] | None, limits: Limits | None = None) -> uvicorn.Server:
    """Return the server of an application; see `run_server`."""
    file, key = (None, None) if certificate is None else certificate
    config = DoorConfig(
        app,
        Connections(limits or Limits()),
        log_config=None,  # the process has its own
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
        ssl_certfile=file,
        ssl_keyfile=key,
    )
    return uvicorn.Server(config)


def _open_files() -> int:
    """Return how many files the process may open, after it has asked for more."""
    present = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (OPEN_FILES if each == resource.RLIM_INFINITY else each for each in present)
    wanted = min(OPEN_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, present[1]))
    return max(soft, wanted)
