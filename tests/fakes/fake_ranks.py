"""How the fake's ranks meet, as vLLM's process group does: rank 0 waits for the others, and notices when one ends."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from typing import Any

from fake_vllm import say

JOIN_S = 60.0
CLOSED = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:33717. This is typically caused by a remote worker crashing. Check other ranks for details."
)

OTHERS: list[socket.socket] = []
"""Rank 0's connections, which stay open as long as it runs."""


def meet(flags: dict[str, Any], does: dict[str, Any]) -> None:
    """Return once all ranks of a server have met; a headless rank stays here until rank 0 is gone."""
    count, rank = int(flags.get("nnodes") or 1), int(flags.get("node_rank") or 0)
    if bool(flags.get("headless")) != (rank > 0):
        print(f"ValueError: rank {rank} of a server has an API server, or rank 0 has none", file=sys.stderr)
        raise SystemExit(1)
    if count == 1:
        return
    address = (str(flags.get("master_addr") or "127.0.0.1"), int(flags.get("master_port") or 29501))
    say("Worker", "parallel_state.py:1906", f"world_size={count} rank={rank} backend=fake host_ip={host_ip()}")
    if rank:
        follow(address, rank, does)
    lead(address, count, does)


def host_ip() -> str:
    """Return the address that the rank was given."""
    return os.environ.get("VLLM_HOST_IP", "none")


def lead(address: tuple[str, int], count: int, does: dict[str, Any]) -> None:
    """Wait for the others, and watch them."""
    with socket.create_server(address) as listener:
        listener.settimeout(JOIN_S)
        OTHERS.extend(listener.accept()[0] for _ in range(count - 1))
    if does.get("lost_rank") != "hang":
        threading.Thread(target=watch, daemon=True).start()


def watch() -> None:
    """End as vLLM's rank 0 does when another rank ends."""
    select.select(OTHERS, [], [])
    say("EngineCore", "core.py:1512", "EngineCore encountered a fatal error.", "ERROR")
    say("EngineCore", "core.py:1512", f"Traceback (most recent call last):\n{CLOSED}", "ERROR")
    os._exit(1)


def follow(address: tuple[str, int], rank: int, does: dict[str, Any]) -> None:
    """Join rank 0, and end when it closes the connection, or as `rank_fails` says."""
    deadline = time.monotonic() + JOIN_S
    while True:
        try:
            connection = socket.create_connection(address, timeout=1.0)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    connection.settimeout(None)
    if does.get("rank_fails") == "oom":
        say("Worker_TP1", "multiproc_executor.py:1063", "WorkerProc failed to start.", "ERROR")
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True)
        raise SystemExit(1)
    connection.recv(1)
    say("Worker", "multiproc_executor.py:1063", CLOSED, "ERROR")
    raise SystemExit(1)
